"""Keyed state at one checkpoint, read without Spark.

Owns which handles a range of key groups needs, how much is held in memory at a time, and that a file which
several reads need is read once. Does not own which checkpoints exist (`timeline`), which runs a state has
(`manifest`), or replaying changes into rows (`state`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa

from dstl_dagster.changelog import ChangelogReader, HandleRead, ReadCache
from dstl_dagster.concurrency import passes_ahead, read_ahead
from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import (
    ChangelogStateHandle,
    KeyGroupRange,
    StateTtl,
    common_ranges,
    have_common,
    ranges_of_tasks,
)
from dstl_dagster.format.changelog_file.change_set_parts import WantedKeys
from dstl_dagster.keyed.documents.manifest import Manifest
from dstl_dagster.keyed.documents.reports import OperatorReport
from dstl_dagster.keyed.documents.runs import within
from dstl_dagster.keyed.read.lookup import Keys, KeysToFind, keys_table
from dstl_dagster.settings import JobOptions
from dstl_dagster.state import (
    LastChanges,
    StateReplay,
    StateSchema,
    python_rows,
)
from dstl_dagster.storage import ObjectStore
from dstl_dagster.upload import local_changelog_directory

_SPLIT_BYTES = 32 * 1024 * 1024
"""Approximate payload bytes of changes held in memory at a time."""

_CACHE_BYTES = 8 * 1024 * 1024
"""Of footers, mostly: about a thousandth of the files that they describe."""


class Log(NamedTuple):
    """Changes to replay: their handles in log order, some key groups (ascending, disjoint), and the TTL by
    which rows expire; `None`: all changes as they were written.
    """

    handles: Iterable[ChangelogStateHandle]
    key_groups: Sequence[KeyGroupRange]
    ttl: StateTtl | None


def replayed_logs(
    reader: ChangelogReader, schema: StateSchema, logs: Sequence[Log], keys: KeysToFind | None = None
) -> list[StateReplay]:
    """`replayed` for several logs; all in memory on return.

    Opens a file once, and holds a handle that several logs have once. `keys`: only their rows; `None`: all.
    `schema`: must be able to hold rows of every schema in the logs.
    """
    wanted_keys = None if keys is None else keys.wanted_keys
    wanted = [
        [read for handle in log.handles if (read := _read_of(handle, log.key_groups, wanted_keys))]
        for log in logs
    ]
    reads = list(dict.fromkeys(itertools.chain(*wanted)))
    batches = dict(zip(reads, reader.read_all(reads), strict=True))
    replays = []
    for log, log_reads in zip(logs, wanted, strict=True):
        replay = StateReplay(schema, log.key_groups, None if keys is None else keys.of_groups, log.ttl)
        for read in log_reads:
            replay.add(batches[read])
        replays.append(replay)
    return replays


def _read_of(
    handle: ChangelogStateHandle, key_groups: Sequence[KeyGroupRange], wanted_keys: WantedKeys | None
) -> HandleRead | None:
    """The needed part of the handle for these; `None` if nothing is."""
    if handle.held and not have_common(handle.held, key_groups):
        return None
    shared = common_ranges((handle.key_group_range,), key_groups)
    return HandleRead(handle, shared, views=True, wanted_keys=wanted_keys) if shared else None


def is_keyed(report: OperatorReport) -> bool:
    """Whether the operator's log is keyed state. A log of a program's own bytes has no schema."""
    return bool(report.schema)


def schema_of(report: OperatorReport) -> StateSchema:
    """The schema of what a report adds; of a manifest's, of the whole state. Raises: FormatError."""
    return StateSchema.from_parts(
        report.schema,
        report.key_columns,
        report.max_parallelism,
        report.column_ids,
        report.partition_columns,
    )


def split_count(
    handles: Iterable[ChangelogStateHandle], max_parallelism: int, most_bytes: int | None = None
) -> int:
    """The number of ranges of key groups to read one at a time, so that each fits in memory, and has about
    `most_bytes` at most.
    """
    held_bytes = sum(handle.state_size for handle in handles)
    return int(min(max_parallelism, 1 + held_bytes // min(_SPLIT_BYTES, most_bytes or _SPLIT_BYTES)))


def replayed(
    reader: ChangelogReader,
    state: StateAt,
    key_groups: Sequence[KeyGroupRange],
    keys: KeysToFind | None = None,
) -> StateReplay:
    """The changes of some key groups, ascending and disjoint; with `keys` only of these. Opens only files
    whose range intersects one of them.

    Raises: NotFoundError (a file was deleted meanwhile), FormatError, UnavailableError.
    """
    (replay,) = replayed_logs(reader, state.schema, [Log(state.handles, key_groups, state.ttl)], keys)
    return replay


@dataclass(frozen=True)
class StateAt:
    """Where the state of one operator at one checkpoint is stored. A plain value that can be sent to tasks.

    Attributes:
        store_uri: the job's store.
        schema: evolved over all checkpoints that the state is made of.
        handles: of all changes, in log order; empty if the state is.
        options: of the job, by which tasks open the store and read: requests, cache, local copies.
        ttl: at that checkpoint. What it hides is no row, whether a merge has dropped it or not.
        completed_at: the checkpoint, for a reader that shows it.
        attempt: that completed the checkpoint; `None` for what no checkpoint has.
    """

    store_uri: str
    job: str
    checkpoint_id: int
    operator: str
    schema: StateSchema
    handles: tuple[ChangelogStateHandle, ...] = field(repr=False)
    options: JobOptions = field(default_factory=JobOptions)
    ttl: StateTtl | None = None
    completed_at: datetime | None = field(default=None, compare=False)
    attempt: UUID | None = None

    @classmethod
    def of(
        cls, store: ObjectStore, manifest: Manifest, operator: str, options: JobOptions | None = None
    ) -> StateAt | None:
        """The state at this checkpoint, empty before the first row; `None` if there is no such operator.

        No request.

        Raises: FormatError; InvalidInputError if the operator's log is not keyed state.
        """
        entry = manifest.operators.get(operator)
        if entry is None:
            return None
        if not is_keyed(entry.report):
            raise InvalidInputError(
                f"operator {operator!r} of job {manifest.job!r} keeps a log of its own, without a schema: "
                "read it with FsStateChangelogStorage.create_reader()"
            )
        return cls(
            store.uri,
            manifest.job,
            manifest.checkpoint_id,
            operator,
            schema_of(entry.report),
            entry.handles,
            options or JobOptions(),
            entry.report.ttl,
            attempt=manifest.attempt,
        )

    @classmethod
    def existing(
        cls, store: ObjectStore, manifest: Manifest, operator: str, options: JobOptions | None = None
    ) -> StateAt:
        """As `of`, of an operator that must be there. Raises: also NotFoundError (kind `no_state`)."""
        found = cls.of(store, manifest, operator, options)
        if found is None:
            raise NotFoundError(
                f"checkpoint {manifest.checkpoint_id} of job {manifest.job!r} has no state of operator "
                f"{operator!r}; it has {', '.join(sorted(manifest.operators)) or 'none'}",
                kind=ErrorKind.NO_STATE,
            )
        return found

    @property
    def all_key_groups(self) -> KeyGroupRange:
        return KeyGroupRange.of(0, self.schema.max_parallelism - 1)

    def ranges(self, count: int | None = None) -> tuple[KeyGroupRange, ...]:
        """All key groups in `count` ranges; by default as many as it takes for each to fit in memory."""
        if count is None:
            count = split_count(self.handles, self.schema.max_parallelism)
        return ranges_of_tasks(count, self.schema.max_parallelism)

    def expecting(self, columns: pa.Schema) -> StateAt:
        """The same state, with the columns that a reader expects first; those missing in the state are null.

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
        return replace(self, handles=tuple(within(self.handles, [key_groups])))

    def opened(self, store: ObjectStore, cache: ReadCache | None = None) -> KeyedState:
        """The rows, read through `store`: the store at `store_uri`. `cache`: of this and other states."""
        return KeyedState(store, self, cache=cache)


@dataclass(frozen=True)
class KeyedState:
    """The rows of one operator at one checkpoint. Reads lazily; thread-safe.

    Every reading method raises NotFoundError (kind `checkpoint_gone`) if clean-up deleted the checkpoint
    meanwhile, FormatError if stored bytes are damaged, UnavailableError.

    Attributes:
        ahead: of a state that does not fit in memory, so many of `ranges()` are read while one is used.
        cache: what was read of the files before; by default this state's own.
    """

    store: ObjectStore = field(repr=False)
    at: StateAt
    ahead: int = field(default=1, repr=False, compare=False)
    cache: ReadCache | None = field(default=None, repr=False, compare=False)

    @cached_property
    def _cache(self) -> ReadCache:
        return self.cache or ReadCache(_CACHE_BYTES)

    @classmethod
    def of(
        cls, store: ObjectStore, manifest: Manifest, operator: str, options: JobOptions | None = None
    ) -> KeyedState | None:
        """The state at this checkpoint; `None` if the operator has none. Raises: as `StateAt.of`."""
        at = StateAt.of(store, manifest, operator, options)
        return None if at is None else cls(store, at, passes_ahead())

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

    def ranges(self) -> tuple[KeyGroupRange, ...]:
        """All key groups, in ranges that each fit in memory."""
        return self.at.ranges()

    def tables(self, key_groups: Sequence[KeyGroupRange] | None = None) -> Iterator[pa.Table]:
        """The rows, as tables of one or more whole key groups, ascending; never an empty table.

        Holds the changes of one of `ranges()`, and of the next `ahead`, which other threads read meanwhile.
        The same checkpoint yields the same rows in the same order.
        `key_groups`: only these, ascending and disjoint; `None`: all. Text need not be UTF-8, as in Spark:
        cast it to binary before `to_pylist` or pandas, which raise for it.
        """
        for run in self.runs(key_groups):
            alive = run.alive()
            if alive.rows.num_rows:
                yield alive.rows.select(self.schema.columns.names)

    def runs(
        self, key_groups: Sequence[KeyGroupRange] | None = None, keys: KeysToFind | None = None
    ) -> Iterator[LastChanges]:
        """The last change of each key, tombstones included, with its key group; otherwise as `tables`.

        A row that has expired is a tombstone. `keys`: only of these.
        """
        wanted = _passes(self.ranges(), [self.at.all_key_groups] if key_groups is None else key_groups)
        # A remote file that several passes need is fetched once; for a single one, only what it needs is.
        with self.reading(cached=len(wanted) > 1) as reader:
            replays = [partial(replayed, reader, self.at, each, keys) for each in wanted]
            with closing(read_ahead(replays, self.ahead, "dstl-pass")) as replays_read:
                for replay in replays_read:
                    yield from replay.runs()

    def row(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row of one key; `None` if there is none. Reads as `rows`.

        Args:
            key: a value for every key column; None is a value like any other. Text may be passed as bytes,
                and is returned as `state.RawText` if it is not UTF-8.

        Raises: InvalidInputError if `key` does not have this state's key columns.
        """
        found = python_rows(self.rows([key]))
        return found[0] if found else None

    def rows(self, keys: Keys) -> pa.Table:
        """The rows of these keys, each once, in no order that means anything; a key without a row has none.

        Reads only their key groups, of large ones only the slices that can hold them, and the oldest run of
        a large state only for keys that no other has; in memory as for `tables` and that of the rows found.

        Args:
            keys: a mapping for each, as for `row`; or a table that has the key columns, which are cast to
                the state's types.

        Raises: InvalidInputError if they do not have this state's key columns, or a value does not fit.
        """
        wanted = KeysToFind.of(keys_table(self.schema, keys), self.schema)
        names = self.schema.columns.names
        found: list[LastChanges] = []
        for part in self._newest_first():
            left = wanted.without([run.rows for run in found])
            found += part.runs(left.touched_ranges(), left) if left.rows.num_rows else []
        tables = [run.alive().rows.select(names) for run in found]
        return pa.concat_tables([self.schema.columns.empty_table(), *tables])

    def _newest_first(self) -> list[KeyedState]:
        """All of it; or in two parts, if most is the oldest run of each key group and does not fit in memory.

        A key that the first part has, even as a tombstone, need not be looked for in the second.
        """
        begun = np.zeros(self.schema.max_parallelism, np.bool_)
        newer: list[ChangelogStateHandle] = []
        oldest: list[ChangelogStateHandle] = []
        for handle in self.handles:
            own = slice(handle.key_group_range.start_key_group, handle.key_group_range.end_key_group + 1)
            (newer if begun[own].any() else oldest).append(handle)
            begun[own] = True
        sizes = [sum(handle.state_size for handle in part) for part in (newer, oldest)]
        if not newer or sizes[1] < max(sizes[0], _SPLIT_BYTES):
            return [self]
        parts = [replace(self.at, handles=tuple(part)) for part in (newer, oldest)]
        return [replace(self, at=part, cache=self._cache) for part in parts]

    @contextmanager
    def reading(self, *, cached: bool = False) -> Iterator[ChangelogReader]:
        """A reader of this state's files. Says why a file is missing, in the block.

        With `cached`, remote files are cached on the local disk until the block is left.
        """
        options = self.at.options
        copies = local_changelog_directory(options.local_recovery, self.at.job)
        cache = self._cache.with_disk(options.changelog) if cached else self._cache
        try:
            yield ChangelogReader(self.store, local_directory=copies, cache=cache)
        except NotFoundError as error:
            at = f"checkpoint {self.checkpoint_id} of job {self.at.job!r}"
            what = f"the state of operator {self.operator!r} at {at}"
            from dstl_dagster.timeline import missing_object  # tasks do without the timeline

            raise missing_object(
                self.store, self.at.job, self.checkpoint_id, self.at.attempt, what, error
            ) from error
        finally:
            cache.close()


def _passes(splits: Iterable[KeyGroupRange], ranges: Sequence[KeyGroupRange]) -> list[list[KeyGroupRange]]:
    """Which parts of `ranges` are read together, ascending: no more key groups than the largest split.

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
