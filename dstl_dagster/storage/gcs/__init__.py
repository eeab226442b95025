"""Google Cloud Storage: the one part of this package that imports Google's libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face

if TYPE_CHECKING:
    from dstl_dagster.storage.gcs.store import GCSObjectStore, open_gcs

__all__ = ["GCSObjectStore", "open_gcs"]

__getattr__, __dir__ = lazy_face(__name__, {"store": ["GCSObjectStore", "open_gcs"]})
