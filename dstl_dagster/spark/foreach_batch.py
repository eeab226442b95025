"""`foreachBatch` with checkpoints: state and any number of files of a micro-batch, true together.

Owns what a micro-batch's repetition means for the user's function. Does not own steps 1 to 3 (`batch`) nor
which batch may come next (`query_batches`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from typing import Any

from pyspark.sql import DataFrame

from dstl_dagster.checkpoint import Batch, Checkpoint, CheckpointCoordinator
from dstl_dagster.errors import InternalError
from dstl_dagster.settings import CheckpointOptions, GSFileSystemOptions
from dstl_dagster.spark.batch import CheckpointBatch
from dstl_dagster.spark.sink.query_batches import POSITION, QueryBatch
from dstl_dagster.spark.stores import open_shared_store

__all__ = ["checkpointed_batches"]

log = logging.getLogger(__name__)


def checkpointed_batches(
    update: Callable[[CheckpointBatch, DataFrame], None],
    *,
    store: str,
    job: str,
    options: CheckpointOptions | None = None,
    file_options: GSFileSystemOptions | None = None,
    adopt_after: str | None = None,
    take_over: bool = False,
    clean_up_every: int = 10,
) -> Callable[[DataFrame, int], None]:
    """What to give to `writeStream.foreachBatch`: each micro-batch becomes one checkpoint of `job`, once.

    `update` is called with the open batch and the micro-batch's rows, and writes with `merge_state`,
    `write_state` and `write_files` of the batch. Then the checkpoint is completed and its files are
    published. Where it raises, nothing of the batch is ever visible, and the query fails. A batch that
    Spark repeats after a crash is not given to `update` again if its checkpoint is complete.

    Args:
        store: the job's, as a URI that tasks can open.
        adopt_after, take_over, clean_up_every: as options of the sink.

    The returned function raises: ConflictError (kind `other_query`, `batch_gap`, `attempt_open`),
    FencedError (another driver took over), and what `update` raises.
    """

    def run(rows: DataFrame, batch_id: int) -> None:
        batch = QueryBatch(_query_id(rows), batch_id)
        with closing(open_shared_store(store)) as opened:
            coordinator = CheckpointCoordinator(
                job, opened, options, owner=f"spark query {batch.query_id}", file_options=file_options
            )
            _run(coordinator, batch, rows)

    def _run(coordinator: CheckpointCoordinator, now: QueryBatch, rows: DataFrame) -> None:
        def check(parent: Checkpoint | None) -> None:
            last = None if parent is None else QueryBatch.last_of(parent.positions)
            now.require_after(last, adopt_after)

        latest = coordinator.latest()
        if latest is not None and now.is_in(QueryBatch.last_of(latest.positions)):
            log.info("batch %s is already in a checkpoint", now)
            coordinator.compose_commit()
            _run_to_the_end(rows)
            return
        with _CompletedBatch(
            coordinator, clean_up_every, now.idempotency_key, take_over=take_over, check=check
        ) as batch:
            batch.move_position(POSITION, now.position)
            update(batch, rows)

    return run


class _CompletedBatch(CheckpointBatch):
    """A batch whose checkpoint is completed here, on leaving, instead of by later steps elsewhere."""

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
        raise InternalError("Spark did not say of which query this micro-batch is: use it in foreachBatch")
    return query_id


def _run_to_the_end(rows: DataFrame) -> None:
    """A plan before us may have state of its own, which Spark wants completed for this batch."""
    rows.write.format("noop").mode("overwrite").save()
