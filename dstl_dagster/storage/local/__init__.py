"""Plain files of this machine as an object store, and what else needs files that others share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face

if TYPE_CHECKING:
    from dstl_dagster.storage.local.store import LocalObjectStore, open_local

__all__ = ["LocalObjectStore", "open_local"]

__getattr__, __dir__ = lazy_face(__name__, {"store": ["LocalObjectStore", "open_local"]})
