"""Keyed state written from one process, without Spark.

Owns how the rows of one range of key groups become one handle.
Does not own which rows these are, or the checkpoint that they end up in (`checkpoint`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dstl_dagster.changelog import (
    FsStateChangelogStorage,
    FsStateChangelogWriter,
    MailboxFuture,
    limit_local_copies,
)
from dstl_dagster.errors import InternalError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, SnapshotResult, StateTtl, ranges_of_tasks
from dstl_dagster.keyed.documents.reports import OperatorReport
from dstl_dagster.settings import JobOptions
from dstl_dagster.state import (
    PROCESSING_TIME_TYPE,
    EncodedChanges,
    NewestTime,
    StateSchema,
    cut,
    encoded_pieces,
    group_of_hashes,
    key_hashes,
    refuse_alike,
    slice_count,
    time_column,
)
from dstl_dagster.state.changes import delete_flags
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Attempt
from dstl_dagster.upload import local_changelog_directory

if TYPE_CHECKING:
    from dstl_dagster.keyed.write.shared_files import SharedFiles


_HELD_ROW_BYTES = 64
"""For each row of a piece while it is written, beside the row: its hash, its place, and copies."""

_LOOKED_AT_ROWS = 1 << 18


def open_attempt_changelog(
    store: ObjectStore,
    attempt: Attempt,
    options: JobOptions | None = None,
) -> FsStateChangelogStorage:
    """The changelog whose file names carry the attempt. The caller closes it. `options`: the job's."""
    options = options or JobOptions()
    limit_local_copies(
        local_changelog_directory(options.local_recovery, attempt.job), options.changelog.max_cache_bytes
    )
    return FsStateChangelogStorage(
        attempt.job,
        store,
        options.changelog,
        base_path=attempt.names.changelog_base_path(attempt.attempt),
        local_recovery=options.local_recovery,
    )


def write_range(
    storage: FsStateChangelogStorage,
    attempt: Attempt,
    operator: str,
    schema: StateSchema,
    key_groups: KeyGroupRange,
    changes: Iterable[EncodedChanges | None],
) -> ChangelogStateHandle:
    """Write the schema, then these changes, durably into one handle. `None` among them is skipped."""
    with storage.create_writer(operator, key_groups) as writer:
        return _handle_of(_begin(writer, attempt, schema, changes))


def _begin(
    writer: FsStateChangelogWriter,
    attempt: Attempt,
    schema: StateSchema,
    changes: Iterable[EncodedChanges | None],
) -> MailboxFuture[SnapshotResult]:
    """Append everything and start the upload."""
    writer.append_meta(schema.to_bytes())
    last = -1
    for each in changes:
        if each is not None and len(each.key_groups):
            if each.key_groups[0].as_py() <= last:
                writer.next_sequence_number()  # a change set never has slices of a key group twice
            writer.append_batch(each.key_groups, each.changes)
            last = each.key_groups[-1].as_py()
    return writer.persist(writer.initial_sequence_number(), attempt.checkpoint_id)


def _handle_of(persisted: MailboxFuture[SnapshotResult]) -> ChangelogStateHandle:
    """Wait until the changes are durable."""
    handle = persisted.result().job_manager_owned_snapshot
    if handle is None:
        raise InternalError("changes were appended, but persist returned no handle")
    return handle


def write_rows(
    rows: pa.Table,
    attempt: Attempt,
    store: ObjectStore,
    *,
    operator: str,
    schema: StateSchema,
    deleted: pa.Array | pa.ChunkedArray | None = None,
    partitions: int = 1,
    case_sensitive: bool = False,
    options: JobOptions | None = None,
    ttl: StateTtl | None = None,
    shared: SharedFiles | None = None,
) -> OperatorReport:
    """Append changed rows of `operator` from this process, durably: steps 2 and 3 for its state.

    The counterpart of `dstl_dagster.spark.write_state` for rows that fit in memory.

    Args:
        rows: the changed rows only, each key once.
        store: the attempt's.
        schema: the state's; if the operator already has state, evolved from its schema (`evolved_to`).
        deleted: which rows delete their key; null means no.
        partitions: number of handles, each for its own range of key groups; a range without rows gets none.
        case_sensitive: whether column names may differ only in case (`spark.sql.caseSensitive`).
        options: the job's.
        ttl: as `Batch.ttl_to_write` gives it for this state, which also says what time goes into a column
            that is filled; `None`: the state has none.
        shared: where a range with few changes waits for others of the attempt; `None`: each gets a file now.

    Raises: InvalidInputError: kind `duplicate_key`, `schema_change`, or one that says what does not fit. Then
    no report names anything that was appended.
    """
    if not case_sensitive:
        refuse_alike([*schema.columns.names, *rows.column_names], f"state of operator {operator!r}")
    flags = None if deleted is None else delete_flags(deleted, rows.num_rows)
    given = _Rows(rows, flags, schema, ttl)
    options = options or JobOptions()
    handles = []
    with open_attempt_changelog(store, attempt, options) as storage, ExitStack() as writers:
        persisted = []
        for key_groups in ranges_of_tasks(partitions, schema.max_parallelism):
            if not given.count(key_groups):
                continue
            changes = given.changes(key_groups)
            if shared is not None:
                handles.append(shared.write_range(storage, operator, schema, key_groups, changes, options))
                continue
            writer = writers.enter_context(storage.create_writer(operator, key_groups))
            # Awaited only after all have started: each is encoded while the previous one is uploaded.
            persisted.append(_begin(writer, attempt, schema, changes))
        handles += map(_handle_of, persisted)
    deletes = 0 if flags is None else flags.true_count
    return OperatorReport(
        operator=operator,
        handles=tuple(replace(handle, slices=given.slices) for handle in handles),
        key_columns=schema.key_columns,
        max_parallelism=schema.max_parallelism,
        schema=schema.arrow_message,
        column_ids=schema.column_ids,
        upserts=rows.num_rows - deletes,
        deletes=deletes,
        ttl=None if ttl is None else ttl.at(given.newest.us),
    )


class _Rows:
    """The rows of a call, and the changes that they are, a piece at a time. Beside the rows it holds the key
    group of each.

    Attributes:
        newest: of the times that move the TTL's watermark.
        slices: of each key group.
    """

    def __init__(
        self, rows: pa.Table, flags: pa.BooleanArray | None, schema: StateSchema, ttl: StateTtl | None
    ) -> None:
        self.newest = NewestTime(time_column(schema, ttl))
        self._rows, self._flags, self._schema, self._ttl = rows, flags, schema, ttl
        self._groups = np.zeros(rows.num_rows, np.min_scalar_type(schema.max_parallelism - 1))
        self._counts = np.zeros(schema.max_parallelism, np.int64)
        self._hashes = None
        bounds = cut(rows, _HELD_ROW_BYTES)
        self._pieces = len(bounds)
        for start, stop in bounds:
            part = rows.slice(start, stop - start)
            hashes = key_hashes(part, schema)
            groups = group_of_hashes(hashes, schema.max_parallelism)
            self._groups[start:stop] = groups
            self._counts += np.bincount(groups, minlength=schema.max_parallelism)
            self.newest.add(part, None if flags is None else flags.slice(start, stop - start))
            self._hashes = hashes if self._pieces == 1 else None
        self.slices = slice_count(rows.nbytes, int(np.count_nonzero(self._counts)))

    def count(self, key_groups: KeyGroupRange) -> int:
        """Rows in these key groups."""
        return int(self._counts[key_groups.start_key_group : key_groups.end_key_group + 1].sum())

    def changes(self, key_groups: KeyGroupRange) -> Iterator[EncodedChanges]:
        """The changes in these key groups, which are whole in each piece: a key that occurs twice is in one.

        Raises: InvalidInputError, as `encode_changes`.
        """
        first, number = key_groups.start_key_group, key_groups.number_of_key_groups
        count = math.ceil(self._pieces * number / self._schema.max_parallelism)
        for each in ranges_of_tasks(min(count, number), number):
            yield from self._changes(first + each.start_key_group, first + each.end_key_group)

    def _changes(self, first: int, last: int) -> Iterator[EncodedChanges]:
        tables, places, start = [], [], 0
        for batch in self._rows.to_batches(max_chunksize=_LOOKED_AT_ROWS):
            groups = self._groups[start : start + batch.num_rows]
            found = np.flatnonzero((first <= groups) & (groups <= last))
            tables.append(batch if len(found) == len(groups) else batch.take(pa.array(found)))
            places.append(found + start)
            start += batch.num_rows
        chosen = np.concatenate(places)
        rows = pa.Table.from_batches(tables)
        yield from encoded_pieces(
            self._schema,
            _with_time(rows, self._schema, self._ttl),
            self._groups[chosen],
            None if self._flags is None else self._flags.take(pa.array(chosen)),
            hashes=None if self._hashes is None else self._hashes[chosen],
            slices=self.slices,
        )


def _with_time(rows: pa.Table, schema: StateSchema, ttl: StateTtl | None) -> pa.Table:
    """The rows with the checkpoint's time, where the TTL counts from it."""
    if ttl is None or not ttl.processing_time or ttl.ttl_us is None:
        return rows
    name = schema.columns.names[schema.ids.index(ttl.column)]
    others = rows.drop_columns([name]) if name in rows.column_names else rows
    return others.append_column(name, pa.repeat(pa.scalar(ttl.now_us, PROCESSING_TIME_TYPE), rows.num_rows))
