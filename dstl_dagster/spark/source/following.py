"""Following a job: its changes from checkpoint to checkpoint, as a stream of another one.

Owns the stream's offsets, which checkpoints make up a micro-batch, and what is said when they are gone. Does
not own what changed between two states (`keyed.diff`), or its rows in Spark (`source`).

An offset is a checkpoint, by id and attempt. Ids are never reused, so an offset means one state for ever, and
a micro-batch that Spark repeats after a crash leads from the same state to the same state. What a micro-batch
holds depends on its two offsets and on the checkpoints between them that are still kept; the rows of each
have its id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import StateAt, compared_runs
from dstl_dagster.spark.source.options import SourceOptions
from dstl_dagster.spark.source.source import CHANGE_COLUMNS, partitions_of, read_changes, state_or_none
from dstl_dagster.spark.spending import task_store
from dstl_dagster.spark.stores import open_shared_store
from dstl_dagster.spark.types import arrow_schema
from dstl_dagster.timeline import TimelineView

__all__ = [
    "ChangesStreamReader",
    "Offset",
    "offset_after",
    "path_between",
    "require_followed",
    "stream_reader",
]


@dataclass(frozen=True)
class Offset:
    """Where a stream is: everything up to this checkpoint has been told.

    Attributes:
        checkpoint_id: 0: nothing has been told yet.
        attempt: that completed the checkpoint; empty for 0.
    """

    checkpoint_id: int
    attempt: str = ""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Offset:
        return cls(int(fields["checkpoint_id"]), str(fields["attempt"]))

    @classmethod
    def of(cls, view: TimelineView, checkpoint_id: int) -> Offset:
        return cls(checkpoint_id, str(view.checkpoints[checkpoint_id].completed.attempt))

    def to_json(self) -> dict[str, Any]:
        return {"checkpoint_id": self.checkpoint_id, "attempt": self.attempt}


def require_followed(view: TimelineView, start: Offset, job: str, *, follow_restores: bool) -> None:
    """Pass if what came after `start` can be told.

    Raises: NotFoundError, kind `checkpoint_gone` (cleaned up) or `no_checkpoint` (another job's);
    ConflictError, kind `abandoned` (by a restore), unless `follow_restores`.
    """
    if not start.checkpoint_id:
        return
    at = f"checkpoint {start.checkpoint_id} of job {job!r}, where this stream is,"
    anew = (
        "start a query with a new checkpointLocation, which tells the whole state first, and let it replace "
        "what this one wrote"
    )
    entry = view.checkpoints.get(start.checkpoint_id)
    if (
        entry is not None and str(entry.completed.attempt) != start.attempt
    ) or start.checkpoint_id > view.highest_id:
        raise NotFoundError(
            f"{at} is of another job of that name, dropped since: {anew}", ErrorKind.NO_CHECKPOINT
        )
    if entry is None or entry.subsumed is not None:
        raise NotFoundError(
            f"{at} was cleaned up before the stream came back, so the changes since cannot be told: {anew}; "
            "a longer retention, or a savepoint, keeps it next time",
            ErrorKind.CHECKPOINT_GONE,
        )
    if view.is_abandoned(start.checkpoint_id) and not follow_restores:
        raise ConflictError(
            f"{at} was abandoned by a restore: set option followRestores=true to be told, with the job's "
            f"next checkpoint, what differs from it, or {anew}",
            ErrorKind.ABANDONED,
        )


def offset_after(view: TimelineView, start: Offset, most: int | None, until: int | None = None) -> Offset:
    """The end of the next micro-batch; `start` if there is nothing to tell. Pure.

    The first micro-batch of a stream that has been told nothing is the whole state at the newest checkpoint.

    Args:
        most: so many checkpoints; `None`: all.
        until: none after this one; `None`: up to the newest.
    """
    ids = [
        each.checkpoint_id
        for each in view.retained
        if each.checkpoint_id > start.checkpoint_id and (until is None or each.checkpoint_id <= until)
    ]
    if not ids:
        return start
    whole = most is None or not start.checkpoint_id
    return Offset.of(view, ids[-1] if whole else ids[: most or 1][-1])


def path_between(view: TimelineView, start: int, end: int) -> list[int]:
    """The checkpoints of a micro-batch, ascending: after `start` (exclusive) up to `end`. Pure.

    Only those whose states are kept: what a missing one changed is told with the next. `end` may have been
    abandoned since the micro-batch was planned; then its own ancestors are taken.
    """
    if not start:
        return [end]
    kept = {each.checkpoint_id: each for each in view.kept}
    if not view.is_abandoned(end):
        return [each.checkpoint_id for each in view.retained if start < each.checkpoint_id <= end]
    path, at = [end], kept[end].completed.parent if end in kept else None
    while at is not None and at > start and at in kept:
        path.append(at)
        at = kept[at].completed.parent
    return path[::-1]


@dataclass(frozen=True)
class ChangesPartition(InputPartition):
    """The changes of some key groups from one state to the next; all that a task needs."""

    older: StateAt
    newer: StateAt


class ChangesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of an operator after each new checkpoint, a range of key groups per task.

    Spark keeps one of these for a query, in a process of its own, and sends another one to the tasks.
    """

    def __init__(self, options: SourceOptions, schema: st.StructType, columns: pa.Schema) -> None:
        """`columns`: of the state, as the query expects them."""
        self._options = options
        self._spark_schema = schema
        self._columns = columns
        self._coordinator: CheckpointCoordinator | None = None
        self._until: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        starting = self._options.starting_checkpoint
        if starting is None:
            return Offset(0).to_json()
        checkpoint = self._job.at(starting)
        return Offset(checkpoint.checkpoint_id, str(checkpoint.attempt)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Spark knows no limit by checkpoints: this one is handed back as it is.
        return ReadMaxFiles(self._options.max_checkpoints_per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        view, at = self._job.timeline.tail(), Offset.from_json(start)
        require_followed(view, at, self._options.job, follow_restores=self._options.follow_restores)
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        assert most is not None or isinstance(limit, ReadAllAvailable)
        return offset_after(view, at, most, self._until).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        view = self._job.timeline.tail()
        return None if view.last_completed_id is None else Offset.of(view, view.last_completed_id).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = self._job.timeline.tail().last_completed_id or 0

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, last = Offset.from_json(start), Offset.from_json(end)
        if begin == last:
            return []
        view = self._job.timeline.tail()
        # What was planned before a crash is told again, whatever was restored since.
        require_followed(view, begin, self._options.job, follow_restores=True)
        require_followed(view, last, self._options.job, follow_restores=True)
        ids = path_between(view, begin.checkpoint_id, last.checkpoint_id)
        known = [begin.checkpoint_id, *ids] if begin.checkpoint_id else ids
        states = [self._state(each) for each in known]
        empty = next((replace(each, handles=(), ttl=None) for each in states if each is not None), None)
        if empty is None:
            return []
        there = [] if begin.checkpoint_id else [empty]
        there += [
            replace(empty, checkpoint_id=each) if state is None else state
            for each, state in zip(known, states, strict=True)
        ]
        found: list[InputPartition] = []
        for older, newer in pairwise(there):
            runs = compared_runs(older.opened(self._job.store), newer.opened(self._job.store))
            wanted = partitions_of(runs, self._options.key_groups, newer.schema)
            found += [self._partition(older, newer, each.key_groups) for each in wanted]
        return found

    def read(self, partition: InputPartition) -> Any:
        assert isinstance(partition, ChangesPartition)
        older, newer = partition.older, partition.newer
        with task_store(newer.store_uri, None, newer.options.files) as store:
            yield from read_changes(older.opened(store), newer.opened(store), self._spark_schema)

    def stop(self) -> None:
        if self._coordinator is not None:
            self._coordinator.store.close()

    @property
    def _job(self) -> CheckpointCoordinator:
        """The job, whose timeline is read on from where it was read last."""
        if self._coordinator is None:
            options = self._options
            store = open_shared_store(options.store, options.job_options)
            self._coordinator = CheckpointCoordinator(options.job, store, options.job_options)
        return self._coordinator

    def _state(self, checkpoint_id: int) -> StateAt | None:
        state = state_or_none(self._job.store, self._options, self._job.get(checkpoint_id))
        # The query's columns are fixed when it starts: those that the state lacks are null.
        return None if state is None else state.expecting(self._columns)

    @staticmethod
    def _partition(older: StateAt, newer: StateAt, key_groups: KeyGroupRange) -> ChangesPartition:
        return ChangesPartition(older.within(key_groups), newer.within(key_groups))


def stream_reader(options: SourceOptions, schema: st.StructType) -> ChangesStreamReader:
    """The reader of a query with these columns. Raises: InvalidInputError if they are not of changes."""
    missing = [name for name in CHANGE_COLUMNS if name not in schema.names]
    if missing:
        raise InvalidInputError(f"a stream of changes has a column {missing[0]!r}, which its schema lacks")
    known = st.StructType([field for field in schema if field.name not in CHANGE_COLUMNS])
    columns = arrow_schema(known, f"state of operator {options.operator!r}", case_sensitive=True)
    return ChangesStreamReader(options, schema, columns)
