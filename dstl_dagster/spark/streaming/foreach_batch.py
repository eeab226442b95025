"""`foreachBatch` with checkpoints: state and any number of files of a micro-batch, committed together.

Owns what happens when Spark repeats a micro-batch, and the coordinator that is cached between them. Does not
own steps 1 to 3 (`batch`), which query a micro-batch is of (`serving`), nor which micro-batch may come next
(`micro_batches`).

A micro-batch that follows the one that this process completed last begins with what it has seen: no request
asks what the timeline says. If another driver has gone on with the query meanwhile, or has fenced this one,
the slot of the first record is taken; then the tail is read, and what it says counts. After any error the
next micro-batch begins as in a new process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator, Opening
from dstl_dagster.settings import JobOptions, Options
from dstl_dagster.spark.batch import CheckpointBatch
from dstl_dagster.spark.errors import raise_as_raised
from dstl_dagster.spark.stores import open_shared_store
from dstl_dagster.spark.streaming.micro_batches import MicroBatch
from dstl_dagster.spark.streaming.serving import ServedQuery, served_query

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
    query_name: str | None = None,
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
        query_name: the query's, as in `queryName`. Required by Spark Connect, which runs the function, and so
            `update`, in a process of the server's; the name is for one `checkpointLocation`. Of no effect
            elsewhere.

    Raises: InvalidInputError for an option that is none, or cannot be used, and without a `query_name` in a
    client of Spark Connect.

    The returned function raises: ConflictError (kind `other_query`, `attempt_open`),
    FencedError (another driver took over), and what `update` raises.
    """
    raise_as_raised()
    kept = _Kept(store, job, JobOptions.resolve(options))
    return _Batches(update, kept, served_query(query_name), adopt_after, take_over, clean_up_every)


@dataclass(frozen=True)
class _Batches:
    """Called by Spark. A client of Spark Connect sends it to the server, before it is called."""

    update: Callable[[CheckpointBatch, DataFrame], None]
    kept: _Kept
    query: ServedQuery
    adopt_after: str | None
    take_over: bool
    clean_up_every: int

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        micro_batch = MicroBatch(self.query(rows), batch_id)
        step = self._apply if self.kept.is_before(micro_batch) else self._apply_unless_applied
        try:
            while True:
                try:
                    return step(self.kept.coordinator_of(micro_batch), micro_batch, rows)
                except _CompletedElsewhere:
                    log.info("another driver has completed micro-batch %s", micro_batch)
                    step = self._apply_unless_applied
        except BaseException:
            self.kept.forget()
            raise

    def _apply_unless_applied(
        self, coordinator: CheckpointCoordinator, micro_batch: MicroBatch, rows: DataFrame
    ) -> None:
        latest = coordinator.latest()
        if latest is not None and micro_batch.is_in(MicroBatch.last_of(latest.positions)):
            log.info("micro-batch %s is already in a checkpoint", micro_batch)
            coordinator.compose_commit()
            _drain(rows)
            return
        self._apply(coordinator, micro_batch, rows)

    def _apply(self, coordinator: CheckpointCoordinator, micro_batch: MicroBatch, rows: DataFrame) -> None:
        def check(parent: Checkpoint | None) -> None:
            last = None if parent is None else MicroBatch.last_of(parent.positions)
            if micro_batch.is_in(last):
                raise _CompletedElsewhere
            micro_batch.require_after(last, self.adopt_after)

        opening = Opening(micro_batch.key, self.take_over, check, micro_batch.claim(operators=None))
        with _MicroBatch(coordinator, opening, clean_up_every=self.clean_up_every) as batch:
            self.update(batch, rows)
        self.kept.completed(micro_batch)


class _Kept:
    """The job's coordinator, for as long as one query's micro-batches follow each other without an error.

    Its store is of the query's process: it lives as long as the function that Spark calls. Not thread-safe: a
    query runs one micro-batch at a time.
    """

    def __init__(self, store: str, job: str, options: JobOptions) -> None:
        self._store = store
        self._job = job
        self._options = options
        self._coordinator: CheckpointCoordinator | None = None
        self._last: MicroBatch | None = None

    def is_before(self, micro_batch: MicroBatch) -> bool:
        """Whether the coordinator has completed the micro-batch before this one, and nothing since."""
        return self._last == replace(micro_batch, batch_id=micro_batch.batch_id - 1)

    def coordinator_of(self, micro_batch: MicroBatch) -> CheckpointCoordinator:
        """The cached one, or a new one that has read nothing."""
        if self._last is not None and self._last.query_id != micro_batch.query_id:
            self.forget()
        if self._coordinator is None:
            store = open_shared_store(self._store, self._options)
            self._coordinator = CheckpointCoordinator(
                self._job, store, self._options, owner=micro_batch.owner
            )
        return self._coordinator

    def completed(self, micro_batch: MicroBatch) -> None:
        self._last = micro_batch

    def forget(self) -> None:
        """The next micro-batch begins as in a new process."""
        if self._coordinator is not None:
            self._coordinator.store.close()
        self._coordinator = self._last = None


class _CompletedElsewhere(Exception):  # noqa: N818 (not an error: the tail says what to do)
    """The parent, as read for step 1, holds this micro-batch; what this process saw before it did not."""


class _MicroBatch(CheckpointBatch):
    """Its caller has seen that it is not applied: step 1 alone looks again."""

    def _find_applied(self) -> None:
        return None


def _drain(rows: DataFrame) -> None:
    """Run the plan, whose stateful operators Spark wants to finish this micro-batch."""
    rows.write.format("noop").mode("overwrite").save()
