"""Reading a job through `format("dstl")`: its state, its changes, its checkpoints.

Owns the plan of a read (which checkpoint, which key groups per task) and its tasks' work. Does not own the
meaning of what is read (`checkpoint`, `keyed`), nor which process calls what (`data_source`).

A plan names every changelog file, so a read returns exactly the checkpoint that it was planned on, also if
more is written meanwhile. If that checkpoint is deleted meanwhile, the read fails and names it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from dstl_dagster.changelog import process_cache
from dstl_dagster.checkpoint import Checkpoint, CheckpointReader
from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import KeyGroupRange, common_ranges
from dstl_dagster.keyed import (
    Condition,
    StateAt,
    StateDiff,
    compared_runs,
    diff_states,
)
from dstl_dagster.spark.source.columns import ReadColumns, newest_columns, refuse_returned
from dstl_dagster.spark.source.options import SourceOptions
from dstl_dagster.spark.stores import open_shared_store, task_store
from dstl_dagster.spark.types import spark_schema
from dstl_dagster.storage import ObjectStore, open_store
from dstl_dagster.timeline import AtLike

_CHANGE_SCHEMA: Final = (
    st.StructType()
    .add("_change_type", st.StringType())
    .add("_checkpoint_id", st.LongType())
    .add("_commit_timestamp", st.TimestampType())
)
CHANGE_COLUMNS: Final = tuple(_CHANGE_SCHEMA.names)
_OUTPUT_ROWS = 16 * 1024
# PySpark 4.1 has no such parameter: its zone is UTC.
_IN_UTC: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)
_CHANGE_FIELDS: Final = to_arrow_schema(_CHANGE_SCHEMA, **_IN_UTC)


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The rows of some key groups of a state."""

    key_groups: KeyGroupRange


@dataclass(frozen=True)
class ChangesPartition(InputPartition):
    """The changes of some key groups from one state to the next; all that a task needs."""

    older: StateAt
    newer: StateAt
    columns: ReadColumns


def state_at(options: SourceOptions, at: AtLike) -> StateAt:
    """The state at the checkpoint that `at` names; `None`: the last one.

    Raises: NotFoundError (kind `no_checkpoint`, `checkpoint_gone`, `no_state`), InvalidInputError.
    """
    with closing(open_shared_store(options.store, options.job_options)) as store:
        coordinator = CheckpointReader(options.job, store, options.job_options)
        manifest = coordinator.at(at).manifest
        return StateAt.existing(store, manifest, options.operator, options.job_options)


def newest_state(options: SourceOptions) -> StateAt | None:
    """The state at the last checkpoint; `None` if the job or the operator has none yet."""
    try:
        return state_at(options, None)
    except NotFoundError as error:
        if error.kind not in (ErrorKind.NO_STATE, ErrorKind.NO_CHECKPOINT):
            raise
        return None


def states_between(options: SourceOptions) -> list[StateAt]:
    """The states whose differences are read: at every retained checkpoint of the current chain, between the
    two options (inclusive), in the columns of the last. Without a first one they begin with an empty state,
    behind any whose rows have no place in these columns.

    Raises: NotFoundError if one of the two is not retained, or the operator has no state at the last;
    InvalidInputError if they are in the wrong order, or one has no place there (kind `schema_change`).
    """
    with closing(open_shared_store(options.store, options.job_options)) as store:
        coordinator = CheckpointReader(options.job, store, options.job_options)
        begin, end = (
            None if each is None else coordinator.at(each).checkpoint_id
            for each in (options.from_checkpoint, options.to_checkpoint)
        )
        kept = coordinator.list()
        ids = [each.checkpoint_id for each in kept]
        for asked in (begin, end):
            if asked is not None and asked not in ids:
                raise NotFoundError(
                    f"checkpoint {asked} of job {options.job!r} is not one of those that can be compared: "
                    f"{', '.join(map(str, ids))}",
                    kind=ErrorKind.CHECKPOINT_GONE,
                )
        first = begin or (ids[0] if ids else 1)
        last = end or (ids[-1] if ids else 1)
        wanted = [each for each in kept if first <= each.checkpoint_id <= last]
        if not kept:
            coordinator.at()  # says that there is no job, and where to look
        if not wanted:
            raise InvalidInputError(f"from_checkpoint {first} is later than to_checkpoint {last}: swap them")
        newest = StateAt.existing(store, wanted[-1].manifest, options.operator, options.job_options)
        found = [StateAt.of(store, each.manifest, options.operator, options.job_options) for each in wanted]
    names = dict(zip(newest.schema.ids, newest.schema.columns.names, strict=True))
    schema, start = newest.schema, len(found)
    for each in reversed(found):
        try:
            if each is not None:
                refuse_returned(names, each, "read the state, and changes from there on")
                schema = newest_columns(schema, each.schema)
        except InvalidInputError:
            if begin is not None:
                raise
            break  # they begin with the whole state after this one
        start -= 1
    wanted, found = wanted[start:], found[start:]
    empty = replace(newest, schema=schema, handles=(), ttl=None)
    before = [replace(empty, checkpoint_id=0)] if begin is None else []
    return before + [
        replace(
            empty if state is None else state,
            schema=schema,
            checkpoint_id=checkpoint.checkpoint_id,
            completed_at=checkpoint.entry.completed.recorded_at,
        )
        for state, checkpoint in zip(found, wanted, strict=True)
    ]


class StateReader(DataSourceReader):
    """Reads the rows of a state, a range of key groups per task."""

    def __init__(self, options: SourceOptions, state: StateAt, schema: st.StructType) -> None:
        """`schema`: of the rows for Spark. Raises: InvalidInputError if it does not fit the state's."""
        self._options = options
        self._columns = ReadColumns.of(
            state.schema, schema, options.operator, case_sensitive=options.case_sensitive
        )
        self._where = Condition.of(options.where, state.schema) if options.where else None
        self._state = state
        self._spark_schema = schema

    def partitions(self) -> list[RangePartition]:
        ranges = self._state.ranges(self._options.partitions)
        of_keys = None if self._where is None else self._where.key_groups(self._state.schema)
        wanted = common_ranges(common_ranges(ranges, of_keys), self._options.key_groups or None)
        return [RangePartition(each) for each in wanted]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):  # Spark creates one if there are none
            return
        with task_store(self._state.store_uri, None, self._state.options.files) as store:
            state = self._state.within(partition.key_groups).opened(store, process_cache())
            for table in state.tables([partition.key_groups]):
                wanted = table if self._where is None else table.filter(self._where.holds(table))
                yield from _spark_batches(self._columns.taken_from(wanted, state.schema), self._spark_schema)


def changes_schema(states: Sequence[StateAt]) -> st.StructType:
    """The state's columns, then the type of the change, its checkpoint, and when that was completed.

    Raises: InvalidInputError for a state that has a column of such a name.
    """
    columns = states[-1].schema.columns
    # In any case of letters, which a session may not distinguish.
    taken = [name for name in columns.names if name.lower() in CHANGE_COLUMNS]
    if taken:
        raise InvalidInputError(
            f"the state has a column {taken[0]!r}, a name that the changes table reserves: rename it "
            "(write_state(rename_columns=)), or read the state"
        )
    return st.StructType([*spark_schema(columns), *_CHANGE_SCHEMA])


def without_change_columns(schema: st.StructType) -> st.StructType:
    """The state's part of the schema of a table of changes.

    Raises: InvalidInputError (kind `schema_change`) if one of the others has not its own type.
    """
    for name, kind in ((each.name, each.dataType) for each in _CHANGE_SCHEMA):
        if name in schema.names and schema[name].dataType != kind:
            raise InvalidInputError(
                f"column {name!r} of changes is {kind.simpleString().upper()}, and the schema asks for "
                f"{schema[name].dataType.simpleString().upper()}: read it as it is, and cast it afterwards",
                kind=ErrorKind.SCHEMA_CHANGE,
            )
    return st.StructType([field for field in schema if field.name not in CHANGE_COLUMNS])


class ChangesReader(DataSourceReader):
    """Reads the changes from each state to the next, a range of key groups per task."""

    def __init__(self, options: SourceOptions, states: Sequence[StateAt], schema: st.StructType) -> None:
        """`schema`: of the rows for Spark. Raises: InvalidInputError if it does not fit the states'."""
        asked = without_change_columns(schema)
        self._columns = ReadColumns.of(
            states[-1].schema, asked, options.operator, case_sensitive=options.case_sensitive
        )
        self._wanted = options.key_groups
        self._states = states
        self._spark_schema = schema

    def partitions(self) -> list[ChangesPartition]:
        first, states = self._states[0], self._states
        with closing(open_store(first.store_uri, first.options.files)) as store:
            return changes_partitions(states, store, self._columns, self._wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ChangesPartition):  # Spark creates another one if there are none
            yield from read_changes(partition, self._spark_schema)


def changes_partitions(
    states: Sequence[StateAt], store: ObjectStore, columns: ReadColumns, wanted: Sequence[KeyGroupRange]
) -> list[ChangesPartition]:
    """Of the changes from each state to the next, all with the same columns, cut where their runs are.

    `wanted`: only these key groups; empty: all.
    """
    return [
        ChangesPartition(older.at.within(each), newer.at.within(each), columns)
        for older, newer in pairwise(state.opened(store) for state in states)
        for each in common_ranges(compared_runs(older, newer), wanted or None)
    ]


def read_changes(partition: ChangesPartition, schema: st.StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a table of changes."""
    older, newer = partition.older, partition.newer
    said = (newer.checkpoint_id, newer.completed_at)
    with task_store(newer.store_uri, None, newer.options.files) as store:
        before, after = (each.opened(store, process_cache()) for each in (older, newer))
        for diff in diff_states(before, after):
            for change_type, rows in _by_type(diff):
                marked = partition.columns.taken_from(rows, newer.schema)
                for field, value in zip(_CHANGE_FIELDS, (change_type, *said), strict=True):
                    marked = marked.append_column(field, pa.repeat(pa.scalar(value, field.type), len(rows)))
                yield from _spark_batches(marked, schema)


def _by_type(diff: StateDiff) -> Iterable[tuple[str, pa.Table]]:
    return (
        ("insert", diff.added),
        ("update_before", diff.before),
        ("update_after", diff.after),
        ("delete", diff.removed),
    )


_TEXT, _NUMBER, _FLAG = st.StringType(), st.LongType(), st.BooleanType()
_CHECKPOINT_COLUMNS: Final[dict[str, tuple[st.DataType, Callable[[Checkpoint], Any]]]] = {
    "checkpoint_id": (_NUMBER, lambda found: found.checkpoint_id),
    "parent": (_NUMBER, lambda found: found.parent),
    "attempt": (_TEXT, lambda found: str(found.attempt)),
    "idempotency_key": (_TEXT, lambda found: found.idempotency_key),
    "completed_at": (st.TimestampType(), lambda found: found.entry.completed.recorded_at),
    "committed": (_FLAG, lambda found: found.committed),
    "blocked_files": (_NUMBER, lambda found: len(found.blocked)),
    "abandoned": (_FLAG, lambda found: found.abandoned),
    "savepoints": (st.ArrayType(_TEXT), lambda found: list(found.savepoints)),
    "operators": (st.ArrayType(_TEXT), lambda found: sorted(found.manifest.operators)),
    "changed_rows": (_NUMBER, lambda found: found.manifest.changes),
    "state_bytes": (_NUMBER, lambda found: found.manifest.state_bytes),
    "files": (st.ArrayType(_TEXT), lambda found: [file.object_name for file in found.manifest.files]),
    "file_bytes": (_NUMBER, lambda found: found.manifest.file_bytes),
    "positions": (_TEXT, lambda found: json.dumps(dict(found.manifest.positions), sort_keys=True)),
    "user_metadata": (_TEXT, lambda found: found.manifest.user_metadata or None),
}


def checkpoints_schema() -> st.StructType:
    """The columns of the table of checkpoints."""
    return st.StructType([st.StructField(name, kind) for name, (kind, _) in _CHECKPOINT_COLUMNS.items()])


class CheckpointsReader(DataSourceReader):
    """Reads the checkpoints that can be restored, oldest first, as of when the query runs."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002 - there is one
        options = self._options
        with closing(open_store(options.store, options.job_options.files)) as store:
            for each in CheckpointReader(options.job, store, options.job_options).list():
                yield tuple(value(each) for _, value in _CHECKPOINT_COLUMNS.values())


def _spark_batches(table: pa.Table, schema: st.StructType) -> Iterator[pa.RecordBatch]:
    """The columns of the schema passed to Spark, in exactly the Arrow types that it accepts for them."""
    target = to_arrow_schema(schema, **_IN_UTC)
    cast = table.select(schema.names).cast(target)
    yield from (batch for batch in cast.to_batches(max_chunksize=_OUTPUT_ROWS) if batch.num_rows)
