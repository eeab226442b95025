"""What the driver opens for its tasks' sake: stores that they can open as well, and batches on them.

Owns that check, and finding the batch of an attempt that came from elsewhere. Does not own stores (`storage`)
nor batches (`checkpoint`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from dstl_dagster.checkpoint import Attempt, Batch, CheckpointCoordinator
from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.storage import ObjectStore, open_store

__all__ = ["batch_of", "open_shared_store", "require_shared"]


def require_shared(store_uri: str) -> None:
    """Raises: InvalidInputError (kind `store_not_shared`) where only this process sees the store."""
    if store_uri.startswith("memory:"):
        raise InvalidInputError(
            f"Spark's tasks are other processes and cannot see {store_uri}: use file:///folder or gs://bucket",
            kind=ErrorKind.STORE_NOT_SHARED,
        )


def open_shared_store(store_uri: str) -> ObjectStore:
    """The store, if tasks can open it too. Raises: InvalidInputError (kind `store_not_shared`)."""
    require_shared(store_uri)
    return open_store(store_uri)


@contextmanager
def batch_of(work: Attempt | Batch) -> Iterator[Batch]:
    """The batch as it is given, with its parent; of a bare attempt, the parent is looked up in its store.

    Raises: InvalidInputError (kind `store_not_shared`); as `Batch.resume`.
    """
    if isinstance(work, Batch):
        require_shared(work.attempt.store_uri)
        yield work
        return
    with closing(open_shared_store(work.store_uri)) as store:
        yield Batch.resume(CheckpointCoordinator(work.job, store), work)
