"""The batch of an attempt that was opened elsewhere.

Owns resuming it. Does not own batches (`checkpoint.Batch`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from dstl_dagster.checkpoint import Attempt, Batch, CheckpointCoordinator
from dstl_dagster.settings import JobOptions, Options
from dstl_dagster.spark.stores import open_shared_store, require_shared

__all__ = ["batch_of"]


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
