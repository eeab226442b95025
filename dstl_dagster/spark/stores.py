"""Stores that the driver and its tasks can both open.

Owns that check. Does not own stores (`storage`). Imports little: the planner of a read needs it.
"""

from __future__ import annotations

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.settings import JobOptions
from dstl_dagster.storage import ObjectStore, open_store

__all__ = ["open_shared_store", "require_shared"]


def require_shared(store_uri: str) -> None:
    """Raises: InvalidInputError (kind `store_not_shared`) if only this process sees the store."""
    if store_uri.startswith("memory:"):
        raise InvalidInputError(
            f"Spark's tasks are other processes and cannot see {store_uri}: use file:///folder or gs://bucket",
            kind=ErrorKind.STORE_NOT_SHARED,
        )


def open_shared_store(store_uri: str, options: JobOptions) -> ObjectStore:
    """The store, if tasks can open it too. Raises: InvalidInputError (kind `store_not_shared`)."""
    require_shared(store_uri)
    return open_store(store_uri, options.files)
