"""Stores that the driver and its tasks can both open, and batches on them.

Owns that check, and resuming the batch of an attempt that was opened elsewhere. Does not own stores
(`storage`) or batches (`checkpoint.Batch`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from dstl_dagster.checkpoint import Attempt, Batch, CheckpointCoordinator
from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.settings import JobOptions, Options
from dstl_dagster.storage import ObjectStore, open_store

__all__ = ["batch_of", "open_shared_store", "require_shared"]


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


@contextmanager
def batch_of(work: Attempt | Batch, options: Options | None = None) -> Iterator[tuple[Batch, JobOptions]]:
    """The given batch, or a bare attempt's, whose parent is read from its store; and the options to write by.

    `options`: of this call, on top of the batch's.

    Raises: InvalidInputError (kind `store_not_shared`, or a wrong option); as `Batch.resume`.
    """
    if isinstance(work, Batch):
        require_shared(work.attempt.store_uri)
        yield work, work.coordinator.job_options.with_call(options)
        return
    given = JobOptions.of(options)
    with closing(open_shared_store(work.store_uri, given)) as store:
        yield Batch.resume(CheckpointCoordinator(work.job, store, given), work), given
