"""Changes of the log replayed into rows of state: the last change of each key, unless it is a tombstone.

Owns what a sequence of changes means; a row that has expired counts as a tombstone. Does not own reading the
log, nor which key groups a task has. Works on a few key groups at a time: for a state of any size,
memory beyond the changes themselves is that of some ten thousand rows, or of the largest key group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dstl_dagster.errors import FormatError
from dstl_dagster.format import META_KEY_GROUP, KeyGroupRange, StateTtl
from dstl_dagster.format.changelog_file.change_set_codec import MAX_INLINE_VIEW_BYTES
from dstl_dagster.format.changelog_file.change_set_parts import is_within
from dstl_dagster.format.changes import value_offsets
from dstl_dagster.state.changes import decode_changes, slice_count
from dstl_dagster.state.keys import KeysOfGroups, last_occurrences, occurring
from dstl_dagster.state.pieces import taken
from dstl_dagster.state.schema import StateSchema
from dstl_dagster.state.ttl import expired_rows

_RUN_BYTES = 4 * 1024 * 1024
"""Encoded bytes of whole key groups that are decoded and merged together."""


@dataclass(frozen=True)
class LastChanges:
    """The last change of each key in some whole key groups, in log order.

    Attributes:
        rows: in wire form, tombstones included.
        key_groups: of each row.
    """

    rows: pa.Table
    key_groups: npt.NDArray[np.int32]

    def alive(self) -> LastChanges:
        """Without tombstones."""
        if not pc.any(self.rows.column(-1)).as_py():
            return self
        return self.without(self.rows.column(-1))

    def without(self, left_out: pa.BooleanArray | pa.ChunkedArray) -> LastChanges:
        """Without these rows."""
        kept = pc.invert(left_out)
        *columns, deleted = self.rows.columns
        # Column by column: of a table, Arrow makes indices first.
        left = [column.filter(kept) for column in columns]
        groups = self.key_groups[kept.to_numpy(zero_copy_only=False)]
        if pc.any(deleted).as_py():
            flags = deleted.filter(kept)
        else:
            flags = pa.chunked_array([pa.array(np.zeros(len(groups), np.bool_))])
        return LastChanges(pa.table([*left, flags], schema=self.rows.schema), groups)


@lru_cache(maxsize=64)
def _schema_of(stored: bytes) -> StateSchema:
    return StateSchema.from_bytes(stored)  # which takes as long as decoding a small change


class _Change(NamedTuple):
    """One collected change: the number of its handle, and the index of its schema."""

    handle: int
    schema: int
    payload: pa.Buffer


class StateReplay:
    """Collects the changes of some key groups, in log order, and replays them into rows. One thread.

    Args:
        schema: of the resulting rows; it must hold the rows of every schema in the log.
        key_groups: the ranges to replay; changes of other key groups are skipped. A collected change is a
            view of its record batch, so a log that yields only these ranges saves memory.
        keys: only their rows; `None`: all.
        ttl: what it hides is replayed as if it had been deleted, so that no older change of its key returns.
    """

    def __init__(
        self,
        schema: StateSchema,
        key_groups: Sequence[KeyGroupRange],
        keys: KeysOfGroups | None = None,
        ttl: StateTtl | None = None,
    ) -> None:
        self._schema = schema
        self._key_groups = key_groups
        self._keys = keys
        self._ttl = ttl
        self._schemas: list[StateSchema] = []
        self._stored_schema = b""
        self._handles = 0
        self._changes: dict[int, list[_Change]] = {}

    def add(self, log: Iterable[pa.RecordBatch]) -> None:
        """Add one handle's changes: record batches of (key_group: int32, change: binary or binary_view).

        A metadata change (key group -1) is the schema of the changes after it. A key occurs once per handle,
        because a key may occur once per checkpoint.

        Raises: FormatError if the first change is not a schema, or the bytes are not ours.
        """
        described = False
        self._handles += 1
        for batch in log:
            groups = batch.column(0).to_numpy()
            chosen = np.flatnonzero(is_within(groups, self._key_groups) | (groups == META_KEY_GROUP))
            changes = payloads(batch.column(1), chosen)
            for key_group, change in zip(groups[chosen].tolist(), changes, strict=True):
                if key_group == META_KEY_GROUP:
                    self._begin_schema(change.to_pybytes())
                    described = True
                    continue
                if not described:
                    raise FormatError(
                        "the changes of keyed state begin without their schema: this is not a log of keyed "
                        "state"
                    )
                kept = _Change(self._handles, len(self._schemas) - 1, change)
                self._changes.setdefault(key_group, []).append(kept)

    @property
    def slices(self) -> int:
        """Of how many slices its key groups are best, if they are written again."""
        sizes = (change.payload.size for changes in self._changes.values() for change in changes)
        return slice_count(sum(sizes), len(self._changes))

    def tables(self) -> Iterator[pa.Table]:
        """The rows of `runs` without tombstones, in the user's columns."""
        for run in self.runs():
            yield run.alive().rows.select(self._schema.columns.names)

    def runs(self) -> Iterator[LastChanges]:
        """The last changes, in runs of whole key groups, ascending; the same log gives the same order.

        Frees the changes as it goes, so it can be consumed only once. Raises: FormatError.
        """
        return (run for (run,) in self.runs_of([self]))

    @staticmethod
    def runs_of(replays: Sequence[StateReplay]) -> Iterator[list[LastChanges]]:
        """`runs` of several replays, side by side: those of the same key groups."""
        run: list[int] = []
        run_bytes = 0
        for key_group in sorted({each for replay in replays for each in replay._changes}):
            run.append(key_group)
            changes = (change for replay in replays for change in replay._changes.get(key_group, ()))
            run_bytes += sum(change.payload.size for change in changes)
            if run_bytes >= _RUN_BYTES:
                yield [replay._merged(run) for replay in replays]
                run, run_bytes = [], 0
        if run:
            yield [replay._merged(run) for replay in replays]

    def _begin_schema(self, stored: bytes) -> None:
        if stored == self._stored_schema:  # as in nearly every handle
            return
        self._stored_schema = stored
        schema = _schema_of(stored)
        if not self._schemas or self._schemas[-1] != schema:
            if schema != self._schema and self._schema.covering(schema) != self._schema:
                raise FormatError(
                    f"the log holds columns {schema.columns.names} that its checkpoint does not list"
                )
            self._schemas.append(schema)

    def _merged(self, run: Sequence[int]) -> LastChanges:
        """The log after the oldest handle of each key group is replayed first: most often it is far less.

        So the rows of a base are looked at once, for whether their key occurs in the log behind it.
        """
        oldest: list[tuple[int, _Change]] = []
        later: list[tuple[int, _Change]] = []
        for key_group in run:
            changes = self._changes.pop(key_group, [])
            for change in changes:
                (oldest if change.handle == changes[0].handle else later).append((key_group, change))
        if not oldest:
            return LastChanges(self._schema.wire.empty_table(), np.zeros(0, np.int32))
        before = self._decoded(oldest)
        if not later:  # as right after a base: no key occurs twice
            return before
        after = self._decoded(later)
        last = last_occurrences(after.rows, self._schema.key_columns)
        newest = taken(after.rows, last)
        replaced = occurring(before.rows, newest, self._schema.key_columns)
        left = before if not pc.any(replaced).as_py() else before.without(replaced)
        groups = np.concatenate([left.key_groups, after.key_groups[last]])
        return LastChanges(pa.concat_tables([left.rows, newest]), groups)

    def _decoded(self, changes: Sequence[tuple[int, _Change]]) -> LastChanges:
        """All rows of these changes, which ascend by key group, those of one key in log order."""
        by_schema: dict[int, list[tuple[int, pa.Buffer]]] = {}
        for key_group, change in changes:
            by_schema.setdefault(change.schema, []).append((key_group, change.payload))
        tables, groups_of = [], []
        # A later schema is later in the log, so the order of one key's changes stays; no other matters.
        for index, of_schema in sorted(by_schema.items()):
            written = self._schemas[index]
            rows, counts = decode_changes(written, [payload for _, payload in of_schema])
            tables.append(self._conformed(written, self._expired(written, rows)))
            groups_of.append(np.repeat(np.array([group for group, _ in of_schema], np.int32), counts))
        everything, groups = pa.concat_tables(tables), np.concatenate(groups_of)
        if self._keys is None:
            return LastChanges(everything, groups)
        sought = self._keys.within(changes[0][0], changes[-1][0])
        wanted = occurring(everything, sought, self._schema.key_columns)
        return LastChanges(everything.filter(wanted), groups[wanted.to_numpy(zero_copy_only=False)])

    def _expired(self, written: StateSchema, rows: pa.Table) -> pa.Table:
        """The rows with tombstones for those that have expired, by the columns that they were written in."""
        expired = expired_rows(rows, written, self._ttl)
        if expired is None:
            return rows
        flags = pc.or_(rows.column(-1), pa.chunked_array([pa.array(expired)]))
        return rows.set_column(rows.num_columns - 1, rows.schema.field(rows.num_columns - 1), flags)

    def _conformed(self, written: StateSchema, rows: pa.Table) -> pa.Table:
        """The rows of one schema of the log, in the columns of the result: found by id, under any name."""
        wanted, ids = self._schema, written.ids
        if ids == wanted.ids and rows.schema == wanted.wire:
            return rows
        places = {column: place for place, column in enumerate(ids)}
        columns = [
            rows.column(places[column]).cast(field.type)
            if column in places
            else pa.nulls(rows.num_rows, field.type)
            for column, field in zip(wanted.ids, wanted.columns, strict=True)
        ]
        return pa.table([*columns, rows.column(-1)], schema=wanted.wire)


def payloads(changes: pa.Array, rows: npt.NDArray[np.int64]) -> Iterator[pa.Buffer]:
    """These values of a binary or binary_view array, not copied: a scalar of a view would be."""
    buffers = changes.buffers()
    if pt.is_binary_view(changes.type):
        views = np.frombuffer(buffers[1], np.int32).reshape(-1, 4)[rows + changes.offset]
        for row, (size, _, number, start) in zip(rows.tolist(), views.tolist(), strict=True):
            # Shorter values stand in the view itself.
            is_inline = size <= MAX_INLINE_VIEW_BYTES
            yield changes[row].as_buffer() if is_inline else buffers[2 + number].slice(start, size)
        return
    offsets = value_offsets(changes)
    for start, stop in zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True):
        yield buffers[2].slice(start, stop - start)
