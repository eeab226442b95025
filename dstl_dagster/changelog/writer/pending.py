"""The changes appended since the last roll-over. Owns their order and size; knows no positions or uploads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format.changes import (
    MAX_CHANGE_BYTES,
    ChangeColumns,
    ChangeRun,
    payload_bytes,
    value_offsets,
)
from dstl_dagster.format.key_group_ranges import KeyGroupRange

SMALLEST_PIECE_BYTES: Final = 16 << 20
"""Of a batch: each piece becomes a change set, often a file. Cut at 5 MB, a million changes of 1,000 B took
1.3 times as long."""


class PendingChanges:
    """Rows and columns in the order they came. `size_bytes` counts payload."""

    __slots__ = ("_changes", "_key_groups", "_runs", "size_bytes")

    def __init__(self) -> None:
        self._runs: list[ChangeRun] = []
        self._key_groups: list[int] = []
        self._changes: list[bytes] = []
        self.size_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was appended, not even an empty change."""
        return not self._key_groups and not self._runs

    def add_row(self, key_group: int, change: bytes) -> int:
        """One change. Returns the payload bytes of all that is pending."""
        self._key_groups.append(key_group)
        self._changes.append(change)
        self.size_bytes = size_bytes = self.size_bytes + len(change)
        return size_bytes

    def add_columns(self, key_groups: npt.NDArray[np.int32], changes: pa.Array) -> None:
        self._seal_rows()
        run = ChangeRun.of_columns(key_groups, changes)
        self._runs.append(run)
        self.size_bytes += run.size_bytes

    def _seal_rows(self) -> None:
        if self._key_groups:
            row_bytes = sum(map(len, self._changes))
            self._runs.append(ChangeRun.of_rows(self._key_groups, self._changes, row_bytes))
            self._key_groups, self._changes = [], []

    def take(self) -> ChangeColumns:
        self._seal_rows()
        taken = ChangeColumns(self._runs)
        self.clear()
        return taken

    def clear(self) -> None:
        self._runs, self._key_groups, self._changes = [], [], []
        self.size_bytes = 0


def checked_columns(
    key_groups: Any, changes: Any, key_group_range: KeyGroupRange
) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """Both columns, validated, as an int32 view and a binary (or large_binary) array.

    InvalidInputError for another type, nulls, different lengths, a change that is too large, or a key group
    outside the range.
    """
    key_groups, changes = _single_array(key_groups, "key_groups"), _single_array(changes, "values")
    if not pa.types.is_int32(key_groups.type):
        raise InvalidInputError(f"key_groups is a column of {key_groups.type}, not int32: cast it")
    if not (pa.types.is_binary(changes.type) or pa.types.is_large_binary(changes.type)):
        if not (pa.types.is_binary_view(changes.type) or pa.types.is_fixed_size_binary(changes.type)):
            raise InvalidInputError(f"values is a column of {changes.type}, not binary: serialise it first")
        changes = pc.cast(changes, pa.large_binary())
    if len(key_groups) != len(changes):
        raise InvalidInputError(f"{len(key_groups)} key groups do not match {len(changes)} values")
    for column, what in ((key_groups, "key_groups"), (changes, "values")):
        if column.null_count:
            raise InvalidInputError(
                f"{what} holds {column.null_count} nulls: a change is bytes, possibly none"
            )
    if len(changes) == 0:
        return np.empty(0, dtype=np.int32), changes
    groups = np.frombuffer(
        key_groups.buffers()[1], dtype=np.int32, count=len(key_groups), offset=4 * key_groups.offset
    )
    lowest, highest = int(groups.min()), int(groups.max())
    if not (key_group_range.contains(lowest) and key_group_range.contains(highest)):
        outside = lowest if not key_group_range.contains(lowest) else highest
        raise InvalidInputError(f"key group {outside} is outside the writer's range {key_group_range}")
    # Nearly always all together are within the limit of one: then none needs checking.
    if payload_bytes(changes) > MAX_CHANGE_BYTES:
        longest_bytes = int(np.diff(value_offsets(changes)).max())
        if longest_bytes > MAX_CHANGE_BYTES:
            raise InvalidInputError(
                f"a change of {longest_bytes} bytes is larger than {MAX_CHANGE_BYTES}: split it"
            )
    return groups, changes


def _single_array(column: object, what: str) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(column, pa.Array):
        return column
    raise InvalidInputError(f"{what} is a {type(column).__name__}, not a pyarrow array")


def cut_by_size(
    key_groups: npt.NDArray[np.int32], changes: pa.Array, piece_bytes: int
) -> Iterator[tuple[int, int]]:
    """Cut a column into pieces [start, stop): each ends with the change that brings it to `piece_bytes`, or
    before the first change of that one's key group, if the piece has others.

    The threshold is checked after each piece, so that no batch, however large, is held back whole.
    """
    offsets = value_offsets(changes)
    start = 0
    while start < len(changes):
        stop = len(changes)
        bound_bytes = int(offsets[start]) + piece_bytes
        if bound_bytes <= int(offsets[-1]):
            # A bound of the offsets' own type: numpy would widen all of them for another.
            stop = max(start + 1, int(np.searchsorted(offsets, offsets.dtype.type(bound_bytes), side="left")))
            if stop < len(changes):
                others = np.flatnonzero(key_groups[start:stop] != key_groups[stop])
                stop = start + int(others[-1]) + 1 if len(others) else stop
        yield start, stop
        start = stop
