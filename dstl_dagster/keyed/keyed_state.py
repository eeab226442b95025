"""Keyed state at one checkpoint, read without Spark.

Owns the schema of the state that a chain of reports makes up, which handles a range of key groups needs, and
how much is held in memory at a time. Does not own which checkpoints exist (`timeline`), the walk through
older manifests (`operator_log`), or folding changes into rows (`state`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dstl_dagster.changelog import ChangelogReader, FsStateChangelogStorageView, HandleRead
from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.keyed.coverage import Uncovered
from dstl_dagster.keyed.manifest import Manifest
from dstl_dagster.keyed.operator_log import operator_state
from dstl_dagster.keyed.reports import OperatorReport
from dstl_dagster.settings import JobOptions
from dstl_dagster.state import FoldedRun, StateFold, StateSchema, key_group_of, python_rows, ranges_of_tasks
from dstl_dagster.storage import ObjectStore
from dstl_dagster.upload import local_changelog_directory

__all__ = [
    "KeyedState",
    "StateAt",
    "evolved_schema",
    "folded",
    "folded_logs",
    "is_keyed",
    "key_table",
    "passes",
    "rows_of_key",
    "schema_of",
    "split_count",
]

_SPLIT_BYTES = 32 * 1024 * 1024
"""Approximate payload bytes of changes held in memory at a time."""


def is_keyed(report: OperatorReport) -> bool:
    """Whether the operator's log is keyed state. A log of a program's own bytes has no schema."""
    return bool(report.schema)


def schema_of(report: OperatorReport) -> StateSchema:
    """The schema of what one checkpoint added. Raises: FormatError."""
    return StateSchema.from_parts(
        report.schema, report.key_columns, report.max_parallelism, report.column_ids
    )


def evolved_schema(reports: Iterable[OperatorReport]) -> StateSchema:
    """The schema of the state that these reports make up: the newest report's columns come first.

    Columns have the newest report's names, and those that it has dropped are left out.

    `reports`: oldest first, at least one. Raises: FormatError.
    """
    # Neighbours nearly always have the same columns: a long log has a few schemas.
    distinct: list[OperatorReport] = []
    for report in reports:
        if not distinct or _columns(report) != _columns(distinct[-1]):
            distinct.append(report)
    *older, schema = [schema_of(report) for report in distinct]
    for each in older:
        schema = schema.covering(each)
    return schema


def _columns(report: OperatorReport) -> tuple[object, ...]:
    return report.schema, report.key_columns, report.max_parallelism, report.column_ids


def split_count(handles: Iterable[ChangelogStateHandle], max_parallelism: int) -> int:
    """The number of ranges of key groups to read one at a time, so that each fits in memory."""
    held_bytes = sum(handle.state_size for handle in handles)
    return int(min(max_parallelism, 1 + held_bytes // _SPLIT_BYTES))


def folded(
    reader: ChangelogReader,
    handles: Iterable[ChangelogStateHandle],
    schema: StateSchema,
    key_groups: KeyGroupRange,
) -> StateFold:
    """The changes of some key groups. Opens only files whose range intersects `key_groups`.

    Args:
        handles: of all changes, in log order.
        schema: must be able to hold rows of every schema in the log.

    Raises: NotFoundError (a file was deleted meanwhile), FormatError, UnavailableError.
    """
    (fold,) = folded_logs(reader, schema, [(handles, key_groups)])
    return fold


def folded_logs(
    reader: ChangelogReader,
    schema: StateSchema,
    logs: Sequence[tuple[Iterable[ChangelogStateHandle], KeyGroupRange]],
) -> list[StateFold]:
    """`folded` for several logs, or several ranges of one, which are all in memory on return.

    Opens a file once, and holds a handle that several logs have once.
    """
    wanted = [_reads(*log) for log in logs]
    reads = list(dict.fromkeys(itertools.chain(*wanted)))
    batches = dict(zip(reads, reader.read_all(reads), strict=True))
    folds = []
    for (_, key_groups), log_reads in zip(logs, wanted, strict=True):
        fold = StateFold(schema, key_groups)
        for read in log_reads:
            fold.add(batches[read])
        folds.append(fold)
    return folds


def _reads(handles: Iterable[ChangelogStateHandle], key_groups: KeyGroupRange) -> list[HandleRead]:
    shared = [(each, each.key_group_range.intersection(key_groups)) for each in handles]
    # Views keep all bytes of a change set in memory, which is fine when all of them are wanted.
    return [
        HandleRead(handle, both, views=both == handle.key_group_range)
        for handle, both in shared
        if both.number_of_key_groups
    ]


def passes(splits: Iterable[KeyGroupRange], ranges: Sequence[KeyGroupRange]) -> list[list[KeyGroupRange]]:
    """Which parts of `ranges` are read together, ascending: no more key groups than the largest split. Pure.

    Args:
        splits: ascending; each fits in memory.
        ranges: ascending and disjoint.
    """
    splits = list(splits)
    most = max(each.number_of_key_groups for each in splits)
    found: list[list[KeyGroupRange]] = []
    room = 0
    for each in (split.intersection(one) for split in splits for one in ranges):
        size = each.number_of_key_groups
        if not size:
            continue
        if size > room:
            found.append([])
            room = most
        found[-1].append(each)
        room -= size
    return found


@dataclass(frozen=True)
class StateAt:
    """Where the state of one operator at one checkpoint is stored. A plain value that can be sent to tasks.

    Attributes:
        store_uri: the job's store.
        schema: evolved over all checkpoints that the state is made of.
        handles: of all changes, in log order; empty if the state is.
        options: of the job, by which tasks open the store and read: requests, cache, local copies.
    """

    store_uri: str
    job: str
    checkpoint_id: int
    operator: str
    schema: StateSchema
    handles: tuple[ChangelogStateHandle, ...] = field(repr=False)
    options: JobOptions = field(default_factory=JobOptions)

    @classmethod
    def of(
        cls, store: ObjectStore, manifest: Manifest, operator: str, options: JobOptions | None = None
    ) -> StateAt | None:
        """The state at this checkpoint; `None` if the operator never wrote any. Reads manifests only.

        Raises: NotFoundError (a manifest in the chain is gone), FormatError; InvalidInputError (kind
        `not_keyed`) if the operator's log is not keyed state.
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
        at = cls(store.uri, manifest.job, manifest.checkpoint_id, operator, schema, state.handles)
        return at if options is None else replace(at, options=options)

    @property
    def all_key_groups(self) -> KeyGroupRange:
        return KeyGroupRange.of(0, self.schema.max_parallelism - 1)

    def ranges(self, count: int | None = None) -> tuple[KeyGroupRange, ...]:
        """All key groups in `count` ranges; by default as many as it takes for each to fit in memory."""
        if count is None:
            count = split_count(self.handles, self.schema.max_parallelism)
        return ranges_of_tasks(count, self.schema.max_parallelism)

    def expecting(self, columns: pa.Schema) -> StateAt:
        """The same state, with the columns that a reader expects first; those that the state lacks are null.

        `columns` may omit key columns; they come next.

        Raises: InvalidInputError (kind `schema_change`) if a type is incompatible.
        """
        schema = self.schema
        keys = [schema.columns.field(name) for name in schema.key_columns if name not in columns.names]
        expected = StateSchema.of(pa.schema([*columns, *keys]), schema.key_columns, schema.max_parallelism)
        evolved = schema.evolved_to(expected, instead="read it as it is, and cast it afterwards")
        names = dict.fromkeys([*expected.columns.names, *schema.columns.names])
        in_order = pa.schema([evolved.columns.field(name) for name in names])
        return replace(self, schema=replace(evolved, columns=in_order))

    def within(self, key_groups: KeyGroupRange) -> StateAt:
        """The state of these key groups only."""
        return replace(self, handles=tuple(Uncovered.of(key_groups).of_handles(self.handles)))

    def opened(self, store: ObjectStore) -> KeyedState:
        """The rows, read through `store`, which must be the store at `store_uri`."""
        return KeyedState(store, self)


@dataclass(frozen=True)
class KeyedState:
    """The rows of one operator at one checkpoint. Reads lazily; thread-safe.

    Every reading method raises NotFoundError (kind `checkpoint_gone`) if clean-up deleted the checkpoint
    meanwhile, FormatError if stored bytes are damaged, UnavailableError.
    """

    store: ObjectStore = field(repr=False)
    at: StateAt

    @classmethod
    def of(
        cls, store: ObjectStore, manifest: Manifest, operator: str, options: JobOptions | None = None
    ) -> KeyedState | None:
        """The state at this checkpoint; `None` if the operator has none. Raises: as `StateAt.of`."""
        at = StateAt.of(store, manifest, operator, options)
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
        """All key groups, in ranges that each fit in memory."""
        return self.at.ranges()

    def tables(self, key_groups: KeyGroupRange | None = None) -> Iterator[pa.Table]:
        """The rows, as tables of one or more whole key groups, ascending; never an empty table.

        Holds the changes of one of `ranges()` at a time. The same checkpoint yields the same rows in the
        same order. `key_groups`: only these; `None`: all. Text need not be UTF-8, as in Spark: cast it
        to binary before `to_pylist` or pandas, which raise for it.
        """
        return self.tables_of([key_groups or self.all_key_groups])

    def tables_of(self, ranges: Sequence[KeyGroupRange]) -> Iterator[pa.Table]:
        """`tables` of several ranges, ascending and disjoint, that take no more passes than they need."""
        for run in self._runs(ranges):
            alive = run.alive()
            if alive.rows.num_rows:
                yield alive.rows.select(self.schema.columns.names)

    def runs(self, key_groups: KeyGroupRange | None = None) -> Iterator[FoldedRun]:
        """The last change of each key, tombstones included, with its key group; otherwise as `tables`."""
        return self._runs([key_groups or self.all_key_groups])

    def _runs(self, ranges: Sequence[KeyGroupRange]) -> Iterator[FoldedRun]:
        wanted = passes(self.ranges(), ranges)
        # A remote file that several passes need is fetched once; for a single one, only what it needs is.
        with self.reading(cached=len(wanted) > 1) as reader:
            for each in wanted:
                logs = [(self.handles, key_groups) for key_groups in each]
                for fold in folded_logs(reader, self.schema, logs):
                    yield from fold.runs()

    def row(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row of one key; `None` if there is none. Reads only the key's key group.

        Args:
            key: a value for every key column; None is a value like any other. Text may be given as bytes,
                and is returned as `state.RawText` if it is not UTF-8.

        Raises: InvalidInputError if `key` does not have this state's key columns.
        """
        wanted = key_table(self.schema, key)
        key_group = int(key_group_of(wanted, self.schema)[0])
        found: list[dict[str, Any]] = []
        for table in self.tables(KeyGroupRange.of(key_group, key_group)):
            found += python_rows(rows_of_key(table, wanted))
        return found[0] if found else None

    @contextmanager
    def reading(self, *, cached: bool = False) -> Iterator[ChangelogReader]:
        """A reader of this state's files. Translates a missing file into `checkpoint_gone` in the block.

        With `cached`, remote files are kept on the local disk until the block is left.
        """
        options = self.at.options
        copies = local_changelog_directory(options.local_recovery, self.job)
        view = FsStateChangelogStorageView(self.store, options.changelog, copies) if cached else None
        try:
            yield (
                ChangelogReader(self.store, local_directory=copies) if view is None else view.create_reader()
            )
        except NotFoundError as error:
            raise NotFoundError(
                f"the state of operator {self.operator!r} at checkpoint {self.checkpoint_id} of job "
                f"{self.job!r} was deleted while it was being read (clean-up keeps only the last "
                f"checkpoints): read a checkpoint that still exists. {error.message}",
                kind=ErrorKind.CHECKPOINT_GONE,
            ) from error
        finally:
            if view is not None:
                view.close()


def key_table(schema: StateSchema, key: Mapping[str, Any]) -> pa.Table:
    """One row with the key columns, in their types.

    Raises: InvalidInputError: a different set of columns, or a value that does not fit its type.
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
            raise InvalidInputError(f"key {name!r}: {key[name]!r} is not a {kind}: {error}") from error
    return pa.table(columns)


def _key_array(value: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(value, bytes) and kind == pa.string():
        return pa.array([bytes(value)], pa.binary()).view(kind)  # unlike a cast, does not check the bytes
    return pa.array([value], kind)


def rows_of_key(rows: pa.Table, key: pa.Table) -> pa.Table:
    """The rows that have this key (a `key_table`); null equals null."""
    same = np.ones(rows.num_rows, np.bool_)
    for name in key.column_names:
        value = key.column(name)[0]
        column = rows.column(name)
        equal = column.is_null() if not value.is_valid else pc.fill_null(pc.equal(column, value), False)
        same &= equal.to_numpy()
    return rows.filter(pa.array(same))
