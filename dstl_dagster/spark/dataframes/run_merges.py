"""Large merges of older runs as Spark tasks, where the batch has a session: each merges some ranges.

Owns the task, and the action that runs them. Does not own which runs are due, nor merging a range
(`keyed.merge`). Imports pyspark for types alone.

A task writes files of its attempt and returns their handles, as tasks that write rows do (`state_tasks`).
What a killed or repeated one wrote, or one whose attempt was fenced meanwhile, is in no report.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dstl_dagster.changelog import process_cache
from dstl_dagster.errors import DstlError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.keyed import MergedRange, MergeExecutor, RunMerge, open_attempt_changelog, write_range
from dstl_dagster.spark.dataframes.outcomes import outcome_row, run_tasks
from dstl_dagster.spark.errors import refusal
from dstl_dagster.spark.stores import COST, cost_of, counted_store
from dstl_dagster.state import EncodedChanges
from dstl_dagster.storage import CostMeter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dstl_dagster.checkpoint import Batch
    from dstl_dagster.concurrency import Progress


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MergeRunsTask:
    """Merges some ranges of key groups, one for each row that it is called with.

    Called by `mapInArrow` with record batches of one integer column: indices into `ranges`. Yields an outcome
    for each, with `handle` (null: nothing is left), `upserts`, `deletes` and `cost`.
    """

    merge: RunMerge
    ranges: tuple[KeyGroupRange, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield outcome_row(self._outcome(self.ranges[index]))

    def _outcome(self, key_groups: KeyGroupRange) -> dict[str, Any]:
        merge, state, meter = self.merge, self.merge.state, CostMeter()

        def write(changes: Iterator[EncodedChanges]) -> ChangelogStateHandle:
            return write_range(storage, merge.attempt, state.operator, state.schema, key_groups, changes)

        try:
            with (
                counted_store(state.store_uri, meter, state.options.files) as store,
                open_attempt_changelog(store, merge.attempt, state.options) as storage,
                state.opened(store, process_cache()).reading() as reader,
            ):
                handle, upserts, deletes = merge.of_range(key_groups, reader, write)
        except DstlError as error:
            return refusal(error)
        written = None if handle is None else handle.to_json()
        return {"handle": written, "upserts": upserts, "deletes": deletes, COST: meter.cost.to_json()}


def merges_in_tasks(spark: SparkSession, batch: Batch, progress: Progress | None) -> MergeExecutor:
    """The session's tasks as the place of the batch's large merges, as long as they can work.

    A program may have stopped its session by then, or lost its executors: the batch does not need them.
    """
    from dstl_dagster.spark.dataframes.partitioning import task_count  # PySpark: not in the tasks

    def merged(merge: RunMerge, ranges: Sequence[KeyGroupRange]) -> list[MergedRange] | None:
        task = MergeRunsTask(merge, tuple(ranges))
        try:
            indices = spark.range(0, len(ranges), 1, task_count(spark, None, len(ranges)))
            found = run_tasks(indices, task, progress)
        except DstlError:
            raise
        except Exception:
            log.warning("this process merges older runs, as tasks of Spark did not", exc_info=True)
            return None
        batch.meter.add(cost_of(found))
        return [from_outcome(each) for each in found]

    return merged


def from_outcome(outcome: dict[str, Any]) -> MergedRange:
    """What a task's outcome says."""
    handle = outcome["handle"]
    return MergedRange(
        None if handle is None else ChangelogStateHandle.from_json(handle),
        outcome["upserts"],
        outcome["deletes"],
    )
