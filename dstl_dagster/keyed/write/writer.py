"""Keyed state written from one process, without Spark.

Owns how the rows of one range of key groups become one handle.
Does not own which rows these are, or the checkpoint that they end up in (`checkpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from dstl_dagster.changelog import (
    FsStateChangelogStorage,
    FsStateChangelogWriter,
    limit_local_copies,
)
from dstl_dagster.errors import InternalError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StateTtl, ranges_of_tasks
from dstl_dagster.keyed.documents.reports import OperatorReport
from dstl_dagster.settings import JobOptions
from dstl_dagster.state import (
    PROCESSING_TIME_TYPE,
    EncodedChanges,
    GroupedRows,
    NewestTime,
    StateSchema,
    encoded_pieces,
    refuse_alike,
    slice_count,
    time_column,
)
from dstl_dagster.state.changes import delete_flags, null_keys
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Attempt
from dstl_dagster.upload import local_changelog_directory

if TYPE_CHECKING:
    from dstl_dagster.keyed.write.shared_files import SharedFiles


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
        return _begin(writer, attempt, schema, changes)()


def _begin(
    writer: FsStateChangelogWriter,
    attempt: Attempt,
    schema: StateSchema,
    changes: Iterable[EncodedChanges | None],
) -> Callable[[], ChangelogStateHandle]:
    """Append everything and start the upload. What is returned waits until the changes are durable."""
    held: set[int] = set()
    writer.append_meta(schema.to_bytes())
    last = -1
    for each in changes:
        if each is not None and len(each.key_groups):
            if each.key_groups[0].as_py() <= last:
                writer.next_sequence_number()  # a change set never has slices of a key group twice
            writer.append_batch(each.key_groups, each.changes)
            last = each.key_groups[-1].as_py()
            held.update(each.key_groups.unique().to_pylist())
    persisted = writer.persist(writer.initial_sequence_number(), attempt.checkpoint_id)

    def handle() -> ChangelogStateHandle:
        found = persisted.result().job_manager_owned_snapshot
        if found is None:
            raise InternalError("changes were appended, but persist returned no handle")
        return found.holding(held)

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
    grouped, newest = GroupedRows(rows, schema), NewestTime(time_column(schema, ttl))
    slices = slice_count(rows.nbytes, grouped.group_count)

    def changes(key_groups: KeyGroupRange) -> Iterator[EncodedChanges]:
        for piece in grouped.pieces(key_groups):
            deletes = None if flags is None else flags.take(pa.array(piece.places))
            newest.add(piece.rows, deletes)
            timed = _with_time(piece.rows, schema, ttl)
            yield from encoded_pieces(schema, timed, piece.groups, deletes, piece.hashes, slices)

    options = options or JobOptions()
    handles = []
    with open_attempt_changelog(store, attempt, options) as storage, ExitStack() as writers:
        begun = []
        for key_groups in ranges_of_tasks(partitions, schema.max_parallelism):
            if not grouped.count(key_groups):
                continue
            if shared is not None:
                handles.append(
                    shared.write_range(storage, operator, schema, key_groups, changes(key_groups), options)
                )
                continue
            writer = writers.enter_context(storage.create_writer(operator, key_groups))
            # Awaited only after all have started: each is encoded while the previous one is uploaded.
            begun.append(_begin(writer, attempt, schema, changes(key_groups)))
        handles += [durable() for durable in begun]
    deletes = 0 if flags is None else flags.true_count
    return OperatorReport(
        operator=operator,
        handles=tuple(replace(handle, slices=slices) for handle in handles),
        **schema.reported,
        upserts=rows.num_rows - deletes,
        deletes=deletes,
        null_keys=null_keys(rows.select(list(schema.key_columns)), flags),
        ttl=None if ttl is None else ttl.at(newest.us),
    )


def _with_time(rows: pa.Table, schema: StateSchema, ttl: StateTtl | None) -> pa.Table:
    """The rows with the checkpoint's time, where the TTL counts from it."""
    if ttl is None or not ttl.processing_time or ttl.ttl_us is None:
        return rows
    name = schema.columns.names[schema.ids.index(ttl.column)]
    others = rows.drop_columns([name]) if name in rows.column_names else rows
    return others.append_column(name, pa.repeat(pa.scalar(ttl.now_us, PROCESSING_TIME_TYPE), rows.num_rows))
