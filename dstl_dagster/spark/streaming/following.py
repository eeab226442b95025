"""Following a job: its changes from checkpoint to checkpoint, as a stream of another one.

Owns the stream's offsets, which checkpoints make up a micro-batch, and what is said when they are gone or
have other columns. Does not own what changed between two states (`keyed.diff`), its rows in Spark (`source`),
or which columns those have (`columns`).

An offset is a checkpoint of an operator, by id and attempt. Ids are never reused, so an offset means one
state for ever, and a micro-batch that Spark repeats after a crash leads from the same state to the same
state. What a micro-batch holds depends on its two offsets and on the checkpoints between them that are still
stored; the rows of each have its id.

The columns of a query never change. So a micro-batch ends before a checkpoint that changed them, and the next
one fails: started again, the query reads on in the new columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as st
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.keyed import StateAt
from dstl_dagster.spark.source.columns import FollowedColumns
from dstl_dagster.spark.source.options import SourceOptions
from dstl_dagster.spark.source.source import (
    CHANGE_COLUMNS,
    ChangesPartition,
    changes_partitions,
    newest_state,
    read_changes,
    without_change_columns,
)
from dstl_dagster.spark.stores import open_shared_store
from dstl_dagster.timeline import AsOf, TimelineView

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit


@dataclass(frozen=True)
class Offset:
    """Where a stream is: everything up to this checkpoint has been delivered.

    Attributes:
        operator: whose state is followed.
        timeline: that the checkpoint is of; empty before the job begins.
        checkpoint_id: 0: nothing has been delivered yet.
        attempt: that completed the checkpoint; empty for 0.
    """

    operator: str
    timeline: str = ""
    checkpoint_id: int = 0
    attempt: str = ""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Offset:
        """Raises: InvalidInputError if another source wrote it."""
        if fields.keys() != cls("").to_json().keys():
            raise InvalidInputError(
                f"this query's checkpointLocation is of another source, with offset {dict(fields)}: start a "
                "query with a new one"
            )
        return cls(**fields)

    @classmethod
    def of(cls, view: TimelineView, operator: str, checkpoint_id: int) -> Offset:
        attempt = str(view.checkpoints[checkpoint_id].completed.attempt) if checkpoint_id else ""
        return cls(operator, view.timeline_id, checkpoint_id, attempt)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def require_followed(
    view: TimelineView, start: Offset, options: SourceOptions, *, follow_restores: bool
) -> None:
    """Pass if the changes after `start` can be delivered.

    Raises: NotFoundError, kind `checkpoint_gone` (cleaned up) or `no_checkpoint` (another job's);
    ConflictError, kind `abandoned` (by a restore), unless `follow_restores`; InvalidInputError if the
    offset is of another operator.
    """
    anew = (
        "start a query with a new checkpointLocation, which reads the whole state first, and let it replace "
        "what this one wrote"
    )
    job, operator = options.job, options.operator
    if start.operator != operator:
        raise InvalidInputError(
            f"this query's checkpointLocation is of operator {start.operator!r}, not of {operator!r}: follow "
            f"{start.operator!r} again, or {anew}"
        )
    entry = view.checkpoints.get(start.checkpoint_id)
    at = f"checkpoint {start.checkpoint_id} of job {job!r}, where this stream is,"
    if (
        (start.timeline and start.timeline != view.timeline_id)
        or (entry is not None and str(entry.completed.attempt) != start.attempt)
        or start.checkpoint_id > view.highest_id
    ):
        raise NotFoundError(
            f"{at} is of another job, or of one of that name that was dropped since: {anew}",
            ErrorKind.NO_CHECKPOINT,
        )
    if not start.checkpoint_id:
        return
    if entry is None or entry.subsumed is not None:
        raise NotFoundError(
            f"{at} was cleaned up before the stream came back, so the changes since are gone: {anew}; "
            "a longer retention, or a savepoint, keeps it next time",
            ErrorKind.CHECKPOINT_GONE,
        )
    if view.is_abandoned(start.checkpoint_id) and not follow_restores:
        raise ConflictError(
            f"{at} was abandoned by a restore: set option followRestores=true to read, with the job's "
            f"next checkpoint, what differs from it, or {anew}",
            ErrorKind.ABANDONED,
        )


def checkpoint_after(view: TimelineView, start: int, most: int | None, until: int | None = None) -> int:
    """The checkpoint at the end of the next micro-batch; `start` if there is nothing to deliver. Pure.

    The first micro-batch of a stream that has had none is the whole state at the newest checkpoint.

    Args:
        most: so many checkpoints; `None`: all.
        until: none after this one; `None`: up to the newest.
    """
    ids = [
        each.checkpoint_id
        for each in view.retained
        if each.checkpoint_id > start and (until is None or each.checkpoint_id <= until)
    ]
    if not ids:
        return start
    return ids[-1] if most is None or not start else ids[:most][-1]


def path_between(view: TimelineView, start: int, end: int) -> list[int]:
    """The checkpoints of a micro-batch, ascending: after `start` (exclusive) up to `end`. Pure.

    Only those whose states are stored: the changes of a missing one come with the next. `end` may have been
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


class ChangesStreamReader(DataSourceStreamReader):
    """Reads the changes of an operator after each new checkpoint, a range of key groups per task.

    Spark keeps one of these for a query, in a process of its own, and sends another one to the tasks.
    PySpark 4.1 asks for the next offset without saying where the query is. It has by then asked for the
    partitions of the micro-batch before it, in a new process too, or there was none.
    """

    def __init__(
        self, options: SourceOptions, schema: st.StructType, columns: FollowedColumns | None = None
    ) -> None:
        """`columns`: of the query; `None`: `schema` says which, of the first state that there is."""
        self._options = options
        self._spark_schema = schema
        self._columns = columns
        self._coordinator: CheckpointCoordinator | None = None
        self._states: dict[int, StateAt | None] = {}
        self._until: int | None = None
        self._at: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        if self._at is None:
            starting, view = self._options.starting_checkpoint, self._job.timeline.tail()
            if starting == AsOf.of(None):
                begin = view.last_completed_id or 0
            else:
                begin = 0 if starting is None else self._job.at(starting).checkpoint_id
            self._at = Offset.of(view, self._options.operator, begin)
        return self._at.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        from pyspark.sql.streaming.datasource import ReadMaxFiles  # since PySpark 4.2, which calls this

        # Spark knows no limit by checkpoints: this one is handed back as it is.
        return ReadMaxFiles(self._options.max_checkpoints_per_trigger)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """`start`, `limit`: `None` by PySpark 4.1. A limit that is not ours takes all."""
        begin = start or self.initialOffset()
        view, at = self._job.timeline.tail(), Offset.from_json(begin)
        require_followed(view, at, self._options, follow_restores=self._options.follow_restores)
        ours = self._options.max_checkpoints_per_trigger
        most = ours if limit is None else getattr(limit, "max_files", None)
        end = checkpoint_after(view, at.checkpoint_id, most, self._until)
        if end == at.checkpoint_id:
            return begin
        return Offset.of(view, at.operator, self._end_in_columns(view, at.checkpoint_id, end)).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        view = self._job.timeline.tail()
        last = view.last_completed_id
        return None if last is None else Offset.of(view, self._options.operator, last).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = self._job.timeline.tail().last_completed_id or 0

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, last = Offset.from_json(start), Offset.from_json(end)
        self._at = last
        if begin == last:
            return []
        view = self._job.timeline.tail()
        # A plan from before a crash is delivered again, also after a restore since.
        for each in (begin, last):
            require_followed(view, each, self._options, follow_restores=True)
        ids = path_between(view, begin.checkpoint_id, last.checkpoint_id)
        known = [begin.checkpoint_id, *ids] if begin.checkpoint_id else ids
        self._require_columns(known)
        states = [self._state(each) for each in known]
        empty = next((replace(each, handles=(), ttl=None) for each in states if each is not None), None)
        if empty is None:
            return []
        there = [] if begin.checkpoint_id else [empty]
        there += [
            replace(
                empty if state is None else state,
                checkpoint_id=each,
                completed_at=view.checkpoints[each].completed.recorded_at,
            )
            for each, state in zip(known, states, strict=True)
        ]
        assert self._columns is not None  # each state was bound to them
        found = changes_partitions(there, self._job.store, self._columns.read, self._options.key_groups)
        self._states = {known[-1]: self._known(known[-1])}  # where the next micro-batch begins
        return found

    def read(self, partition: InputPartition) -> Any:
        assert isinstance(partition, ChangesPartition)
        return read_changes(partition, self._spark_schema)

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

    def _end_in_columns(self, view: TimelineView, start: int, end: int) -> int:
        """The last checkpoint of this micro-batch before one that changed the columns."""
        last = start
        for each in path_between(view, start, end):
            if last != start and self._changes_at(each):
                return last
            self._require_columns([each])
            last = each
        return end

    def _require_columns(self, checkpoints: Sequence[int]) -> None:
        """Pass if the query has the columns of these. Raises: InvalidInputError (kind `schema_change`)."""
        for each in checkpoints:
            changes = self._changes_at(each)
            if changes:
                raise InvalidInputError(
                    f"checkpoint {each} of job {self._options.job!r} changed columns of operator "
                    f"{self._options.operator!r}: {', '.join(changes)}. Load the DataFrame again and start "
                    "the query again: it goes on where it ended, in the new columns",
                    kind=ErrorKind.SCHEMA_CHANGE,
                )

    def _changes_at(self, checkpoint_id: int) -> list[str]:
        state = self._known(checkpoint_id)
        return [] if state is None else self._bound(state).changes_in(state)

    def _state(self, checkpoint_id: int) -> StateAt | None:
        """In the query's columns."""
        state = self._known(checkpoint_id)
        return None if state is None else self._bound(state).expected_of(state)

    def _known(self, checkpoint_id: int) -> StateAt | None:
        if checkpoint_id not in self._states:
            manifest, options = self._job.get(checkpoint_id).manifest, self._options
            found = StateAt.of(self._job.store, manifest, options.operator, options.job_options)
            self._states[checkpoint_id] = found
        return self._states[checkpoint_id]

    def _bound(self, state: StateAt) -> FollowedColumns:
        if self._columns is None:
            self._columns = _asked_of(state, self._options, self._spark_schema)
        return self._columns


if hasattr(DataSourceStreamReader, "getDefaultReadLimit"):  # since PySpark 4.2
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    SupportsTriggerAvailableNow.register(ChangesStreamReader)


def stream_reader(
    options: SourceOptions, schema: st.StructType, states: Sequence[StateAt] = ()
) -> ChangesStreamReader:
    """The reader of a query with these columns.

    `states`: of which the schema was made, as `states_between` gives them; none: it was set, and has to fit
    the newest state, if there is one.

    Raises: InvalidInputError if they are not of changes, or do not fit.
    """
    missing = [name for name in CHANGE_COLUMNS[:2] if name not in schema.names]  # the time may be left out
    if missing:
        raise InvalidInputError(
            f"a stream of changes has a column {missing[0]!r}, which its schema does not have"
        )
    if states:
        columns = FollowedColumns.of(
            states[-1], without_change_columns(schema), all_columns=True, case_sensitive=True
        )
        return ChangesStreamReader(options, schema, columns)
    without_change_columns(schema)
    newest = newest_state(options)
    return ChangesStreamReader(
        options, schema, None if newest is None else _asked_of(newest, options, schema)
    )


def _asked_of(state: StateAt, options: SourceOptions, schema: st.StructType) -> FollowedColumns:
    asked = without_change_columns(schema)
    return FollowedColumns.of(state, asked, all_columns=False, case_sensitive=options.case_sensitive)
