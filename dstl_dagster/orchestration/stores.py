"""Stores opened with the credentials of a resource. Owns the choice of the client; nothing else."""

from __future__ import annotations

from typing import Any

from dstl_dagster.settings import JobOptions
from dstl_dagster.storage import ObjectStore, open_store, split_bucket_uri

__all__ = ["open_with"]


def open_with(gcs: Any, uri: str, options: JobOptions) -> ObjectStore:
    """The store at `uri`; a bucket by the client of `gcs` (anything with `get_client()`), unless it is None.

    Raises: InvalidInputError.
    """
    if gcs is None or not uri.startswith("gs://"):
        return open_store(uri, options.files)
    from dstl_dagster.storage import GCSObjectStore  # half a second: only for a bucket

    bucket_name, prefix = split_bucket_uri(uri, "gs")
    return GCSObjectStore(gcs.get_client(), bucket_name, prefix, options=options.files)
