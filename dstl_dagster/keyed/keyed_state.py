"""Keyed state at one checkpoint, read without Spark.

Owns which schema the state of a chain of reports has, which handles a range of key groups needs, and how
much of them is held at a time. Does not own which checkpoints exist (`coordinator`), the walk through
older manifests (`operator_log`), or what changes come to (`state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dstl_dagster.changelog import ChangelogReader, FsStateChangelogStorageView
from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.keyed.manifest import Manifest
from dstl_dagster.keyed.operator_log import operator_state
from dstl_dagster.keyed.reports import OperatorReport
from dstl_dagster.state import FoldedRun, StateFold, StateSchema, key_group_of, python_rows, ranges_of_tasks
from dstl_dagster.storage import ObjectStore

__all__ = [
    "KeyedState",
    "StateAt",
    "evolved_schema",
    "folded",
    "is_keyed",
    "key_table",
    "rows_of_key",
    "schema_of",
    "split_count",
]

_SPLIT_BYTES = 32 * 1024 * 1024
"""Payload bytes of changes that are held at a time, about."""


def is_keyed(report: OperatorReport) -> bool:
    """Whether the operator's log is keyed state. A log of somebody's own bytes has no schema."""
    return bool(report.schema)


def schema_of(report: OperatorReport) -> StateSchema:
    """The schema of what one checkpoint added. Raises: FormatError."""
    return StateSchema.from_parts(report.schema, report.key_columns, report.max_parallelism)


def evolved_schema(reports: Iterable[OperatorReport]) -> StateSchema:
    """What the rows of the state that these reports make look like: the newest report's columns first.

    `reports`: oldest first, at least one. Raises: FormatError.
    """
    *older, schema = [schema_of(report) for report in reports]
    for each in older:
        schema = schema.evolved_to(each)
    return schema


def split_count(handles: Iterable[ChangelogStateHandle], max_parallelism: int) -> int:
    """Into how many ranges of key groups the reading is cut, so that one of them is held at a time."""
    held_bytes = sum(handle.state_size for handle in handles)
    return int(min(max_parallelism, 1 + held_bytes // _SPLIT_BYTES))


def folded(
    reader: ChangelogReader,
    handles: Iterable[ChangelogStateHandle],
    schema: StateSchema,
    key_groups: KeyGroupRange,
) -> StateFold:
    """The changes of some key groups. Opens only files whose range meets `key_groups`.

    Args:
        handles: of all changes, in log order.
        schema: must hold the rows of every schema in the log.

    Raises: NotFoundError (a file was deleted meanwhile), FormatError, UnavailableError.
    """
    fold = StateFold(schema, key_groups)
    for handle in handles:
        shared = handle.key_group_range.intersection(key_groups)
        if shared.number_of_key_groups:
            # Views keep all of a file in memory: right where all of it is wanted.
            whole = shared == handle.key_group_range
            fold.add(reader.read_batches(handle, key_group_range=shared, views=whole))
    return fold


@dataclass(frozen=True)
class StateAt:
    """Where the state of one operator at one checkpoint lies. A plain value, which travels to tasks.

    Attributes:
        store_uri: the job's store.
        schema: evolved over all checkpoints that the state is made of.
        handles: of all changes, in log order; none where the state is empty.
    """

    store_uri: str
    job: str
    checkpoint_id: int
    operator: str
    schema: StateSchema
    handles: tuple[ChangelogStateHandle, ...] = field(repr=False)

    @classmethod
    def of(cls, store: ObjectStore, manifest: Manifest, operator: str) -> StateAt | None:
        """The state at this checkpoint; `None` where the operator never wrote any. Reads manifests only.

        Raises: NotFoundError (a manifest on the way is gone), FormatError; InvalidInputError (kind
        `not_keyed`) where the operator's log is no keyed state.
        """
        state = operator_state(store, manifest, operator)
        if state is None:
            return None
        if not all(is_keyed(report) for report in state.reports):
            raise InvalidInputError(
                f"operator {operator!r} of job {manifest.job!r} keeps a log of its own, without a schema: "
                "read it with FsStateChangelogStorage.create_reader()",
                kind=ErrorKind.NOT_KEYED,
            )
        schema = evolved_schema(state.reports)
        return cls(store.uri, manifest.job, manifest.checkpoint_id, operator, schema, state.handles)

    @property
    def all_key_groups(self) -> KeyGroupRange:
        return KeyGroupRange.of(0, self.schema.max_parallelism - 1)

    def ranges(self, count: int | None = None) -> tuple[KeyGroupRange, ...]:
        """All key groups in `count` ranges; by default so many that each is small enough to be held."""
        if count is None:
            count = split_count(self.handles, self.schema.max_parallelism)
        return ranges_of_tasks(count, self.schema.max_parallelism)

    def expecting(self, columns: pa.Schema) -> StateAt:
        """The same with the columns that a reader counts on first; those that the state lacks are null.

        `columns` may leave out key columns: these come next.

        Raises: InvalidInputError (kind `schema_change`) where a type does not fit.
        """
        schema = self.schema
        keys = [schema.columns.field(name) for name in schema.key_columns if name not in columns.names]
        expected = StateSchema.of(pa.schema([*columns, *keys]), schema.key_columns, schema.max_parallelism)
        return replace(self, schema=expected.evolved_to(schema))

    def within(self, key_groups: KeyGroupRange) -> StateAt:
        """The state of these key groups alone."""
        shared = [(each, each.key_group_range.intersection(key_groups)) for each in self.handles]
        handles = tuple(
            replace(each, key_group_range=both) for each, both in shared if both.number_of_key_groups
        )
        return replace(self, handles=handles)

    def opened(self, store: ObjectStore) -> KeyedState:
        """The rows, read through `store`, which must be that of `store_uri`."""
        return KeyedState(store, self)


@dataclass(frozen=True)
class KeyedState:
    """The rows of one operator at one checkpoint. Reads when it is asked; any thread.

    Every reading method raises NotFoundError (kind `checkpoint_gone`) where clean-up deleted the
    checkpoint meanwhile, FormatError where stored bytes are damaged, UnavailableError.
    """

    store: ObjectStore = field(repr=False)
    at: StateAt

    @classmethod
    def of(cls, store: ObjectStore, manifest: Manifest, operator: str) -> KeyedState | None:
        """The state at this checkpoint; `None` where the operator has none. Raises: as `StateAt.of`."""
        at = StateAt.of(store, manifest, operator)
        return None if at is None else cls(store, at)

    @property
    def job(self) -> str:
        return self.at.job

    @property
    def checkpoint_id(self) -> int:
        return self.at.checkpoint_id

    @property
    def operator(self) -> str:
        return self.at.operator

    @property
    def schema(self) -> StateSchema:
        return self.at.schema

    @property
    def handles(self) -> tuple[ChangelogStateHandle, ...]:
        """Of all changes, in log order."""
        return self.at.handles

    @property
    def all_key_groups(self) -> KeyGroupRange:
        return self.at.all_key_groups

    def ranges(self) -> tuple[KeyGroupRange, ...]:
        """All key groups, in ranges that are small enough to be held one at a time."""
        return self.at.ranges()

    def tables(self, key_groups: KeyGroupRange | None = None) -> Iterator[pa.Table]:
        """The rows, some whole key groups a table, ascending by key group; no table without rows.

        Holds the changes of one of `ranges()` at a time. The same checkpoint gives the same rows in the
        same order. `key_groups`: those wanted; `None`: all. Text is Spark's, which need not be UTF-8: cast
        it to binary where pandas or `to_pylist` cannot hold it.
        """
        for run in self.runs(key_groups):
            alive = run.alive()
            if alive.rows.num_rows:
                yield alive.rows.select(self.schema.columns.names)

    def runs(self, key_groups: KeyGroupRange | None = None) -> Iterator[FoldedRun]:
        """The last change of each key, tombstones too, with its key group; as `tables` otherwise."""
        wanted = [each.intersection(key_groups or self.all_key_groups) for each in self.ranges()]
        wanted = [each for each in wanted if each.number_of_key_groups]
        # A remote file that several ranges share is fetched once; for one, its sets are read where they are.
        with self.reading(cached=len(wanted) > 1) as reader:
            for each in wanted:
                yield from folded(reader, self.handles, self.schema, each).runs()

    def row(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row of one key; `None` where there is none. Reads the key's group alone.

        Args:
            key: a value for every key column; None is a value like any other. Text may be given as bytes,
                and comes as `state.RawText` where it is not UTF-8.

        Raises: InvalidInputError where `key` is not one of this state.
        """
        wanted = key_table(self.schema, key)
        key_group = int(key_group_of(wanted, self.schema)[0])
        found: list[dict[str, Any]] = []
        for table in self.tables(KeyGroupRange.of(key_group, key_group)):
            found += python_rows(rows_of_key(table, wanted))
        return found[0] if found else None

    @contextmanager
    def reading(self, *, cached: bool = False) -> Iterator[ChangelogReader]:
        """A reader of this state's files, and what errors while it is used mean.

        With `cached`, remote files are kept on this machine's disk until the block is left.
        """
        view = FsStateChangelogStorageView(self.store) if cached else None
        try:
            yield ChangelogReader(self.store) if view is None else view.create_reader()
        except NotFoundError as error:
            raise NotFoundError(
                f"the state of operator {self.operator!r} at checkpoint {self.checkpoint_id} of job "
                f"{self.job!r} was deleted while it was being read (clean-up keeps only the last "
                f"checkpoints): read a checkpoint that is still there. {error.message}",
                kind=ErrorKind.CHECKPOINT_GONE,
            ) from error
        finally:
            if view is not None:
                view.close()


def key_table(schema: StateSchema, key: Mapping[str, Any]) -> pa.Table:
    """One row with the key columns, in their types.

    Raises: InvalidInputError: another set of columns, or a value that does not fit.
    """
    if set(key) != set(schema.key_columns):
        raise InvalidInputError(
            f"a key has the columns {', '.join(schema.key_columns)}, not {', '.join(sorted(key)) or 'none'}"
        )
    columns = {}
    for name in schema.key_columns:
        kind = schema.columns.field(name).type
        try:
            columns[name] = _key_array(key[name], kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise InvalidInputError(f"key {name!r}: {key[name]!r} is no {kind}: {error}") from error
    return pa.table(columns)


def _key_array(value: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(value, bytes) and kind == pa.string():
        return pa.array([bytes(value)], pa.binary()).view(kind)  # unlike a cast, no look at the bytes
    return pa.array([value], kind)


def rows_of_key(rows: pa.Table, key: pa.Table) -> pa.Table:
    """Those of the rows that have this key (of `key_table`); null equals null."""
    same = np.ones(rows.num_rows, np.bool_)
    for name in key.column_names:
        value = key.column(name)[0]
        column = rows.column(name)
        equal = column.is_null() if not value.is_valid else pc.fill_null(pc.equal(column, value), False)
        same &= equal.to_numpy()
    return rows.filter(pa.array(same))
