"""Stores that Spark's tasks can open as well. Owns that one check; does not own stores (`storage`)."""

from __future__ import annotations

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.storage import ObjectStore, open_store

__all__ = ["open_shared_store", "require_shared"]


def require_shared(store_uri: str) -> None:
    """Raises: InvalidInputError (kind `store_not_shared`) where only this process sees the store."""
    if store_uri.startswith("memory:"):
        raise InvalidInputError(
            f"Spark's tasks are other processes and cannot see {store_uri}: use file:///folder or gs://bucket",
            kind="store_not_shared",
        )


def open_shared_store(store_uri: str) -> ObjectStore:
    """The store, if tasks can open it too. Raises: InvalidInputError (kind `store_not_shared`)."""
    require_shared(store_uri)
    return open_store(store_uri)
