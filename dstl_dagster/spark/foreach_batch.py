"""`foreachBatch` with checkpoints: state and any number of files of a micro-batch, committed together.

Owns what happens when Spark repeats a micro-batch. Does not own steps 1 to 3 (`batch`), nor which
micro-batch may come next (`micro_batches`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from typing import Any

from pyspark.sql import DataFrame

from dstl_dagster.checkpoint import Batch, Checkpoint, CheckpointCoordinator
from dstl_dagster.errors import InternalError
from dstl_dagster.settings import JobOptions, Options
from dstl_dagster.spark.batch import CheckpointBatch
from dstl_dagster.spark.sink.micro_batches import POSITION, MicroBatch
from dstl_dagster.spark.stores import open_shared_store

__all__ = ["checkpointed_batches"]

log = logging.getLogger(__name__)


def checkpointed_batches(
    update: Callable[[CheckpointBatch, DataFrame], None],
    *,
    store: str,
    job: str,
    options: Options | None = None,
    adopt_after: str | None = None,
    take_over: bool = False,
    clean_up_every: int = 10,
) -> Callable[[DataFrame, int], None]:
    """A function for `writeStream.foreachBatch`: each micro-batch becomes one checkpoint of `job`, once.

    `update` is called with the open batch and the micro-batch's rows, and writes with the batch's
    `merge_state`, `write_state` and `write_files`. Then the checkpoint is completed and its files are
    published. If `update` raises, the attempt is aborted, nothing of it is ever visible, and the query
    fails. A micro-batch that Spark repeats after a crash is not passed to `update` again if its checkpoint
    is complete.

    Args:
        store: the job's, as a URI that tasks can open.
        options: of the job: for its checkpoints and for the tasks of `update`'s writes.
        adopt_after, take_over, clean_up_every: as in the options of the sink.

    Raises: InvalidInputError for an option that is none, or cannot be used.

    The returned function raises: ConflictError (kind `other_query`, `batch_gap`, `attempt_open`),
    FencedError (another driver took over), and what `update` raises.
    """
    job_options = JobOptions.resolve(options)

    def run(rows: DataFrame, batch_id: int) -> None:
        micro_batch = MicroBatch(_query_id(rows), batch_id)
        with closing(open_shared_store(store, job_options)) as opened:
            coordinator = CheckpointCoordinator(job, opened, job_options, owner=micro_batch.owner)
            _run(coordinator, micro_batch, rows)

    def _run(coordinator: CheckpointCoordinator, micro_batch: MicroBatch, rows: DataFrame) -> None:
        def check(parent: Checkpoint | None) -> None:
            last = None if parent is None else MicroBatch.last_of(parent.positions)
            micro_batch.require_after(last, adopt_after)

        latest = coordinator.latest()
        if latest is not None and micro_batch.is_in(MicroBatch.last_of(latest.positions)):
            log.info("micro-batch %s is already in a checkpoint", micro_batch)
            coordinator.compose_commit()
            _drain(rows)
            return
        with _CompletingBatch(
            coordinator, clean_up_every, micro_batch.idempotency_key, take_over=take_over, check=check
        ) as batch:
            batch.move_position(POSITION, micro_batch.position)
            update(batch, rows)

    return run


class _CompletingBatch(CheckpointBatch):
    """Completes its checkpoint on leaving, instead of handing over to steps that run elsewhere."""

    def __init__(
        self, coordinator: CheckpointCoordinator, clean_up_every: int, key: str, **arguments: Any
    ) -> None:
        super().__init__(coordinator, idempotency_key=key, **arguments)
        self._clean_up_every = clean_up_every

    def _end(self, batch: Batch) -> None:
        batch.fold_due_logs()
        batch.complete(clean_up_every=self._clean_up_every)


def _query_id(rows: DataFrame) -> str:
    query_id = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        raise InternalError("these rows are not of a streaming query: use the function in foreachBatch")
    return query_id


def _drain(rows: DataFrame) -> None:
    """Run the plan, whose stateful operators Spark wants to finish this micro-batch."""
    rows.write.format("noop").mode("overwrite").save()
