"""One change set into bytes, in Flink's layout (`change_set_codec` shows it). Pure.

Owns the order of the changes and the body's headers. Does not own files, compression or checksums.

Headers and changes become one column of Arrow's views, whose cast to plain binary copies each byte once.
Nothing here loops over changes in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstl_dagster.format.change_set_codec import (
    COUNT_BYTES,
    GROUP_BYTES,
    INT32_ROOM_BYTES,
    LENGTH_BYTES,
    MAX_INLINE_VIEW_BYTES,
    ChangeSetLayout,
    Int32s,
    Int64s,
)
from dstl_dagster.format.changes import META_KEY_GROUP, ChangeColumns, value_offsets

__all__ = ["EncodePlan", "encoded_chunks", "plan_change_set"]

_VIEW: Final = np.dtype(np.complex128)
"""16 bytes that numpy moves as one, ten times faster than rows of four words; never reckoned with."""

Views = npt.NDArray[np.complex128]


@dataclass(frozen=True)
class EncodePlan:
    """What to write for one change set: the layout, and where each change's bytes are.

    `views` are Arrow's 16 bytes for each change (its length, then its bytes or where they stand in
    `buffers`), in the body's order.
    """

    layout: ChangeSetLayout
    views: Views
    buffers: tuple[pa.Buffer, ...]


def plan_change_set(columns: ChangeColumns) -> EncodePlan:
    """Group the changes by key group, ascending and stable. Copies no change of more than 12 bytes."""
    parts = [run.columns() for run in columns.runs if len(run) > 0]
    if not parts:
        empty = ChangeSetLayout(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
        return EncodePlan(empty, np.empty(0, _VIEW), ())
    key_groups = np.concatenate([part[0] for part in parts])
    views, buffers = _views_of([part[1] for part in parts])
    order = _group_order(key_groups)
    if order is not None:
        key_groups, views = key_groups[order], views.take(order)
    lengths = _words_of(views)[:, 0].astype(np.int64)
    first_rows = np.concatenate([[0], np.flatnonzero(key_groups[1:] != key_groups[:-1]) + 1])
    counts = np.diff(np.append(first_rows, len(key_groups))).astype(np.int64)
    return EncodePlan(ChangeSetLayout(key_groups[first_rows], counts, lengths), views, buffers)


def _views_of(arrays: list[pa.Array]) -> tuple[Views, tuple[pa.Buffer, ...]]:
    """One view for each value of all arrays, and the buffers that they point into."""
    pieces = [piece for array in arrays for piece in _of_narrow_offsets(array)]
    every, buffers = [], []
    for index, piece in enumerate(pieces):
        column = piece.cast(pa.binary_view())
        views = np.frombuffer(column.buffers()[1], _VIEW, len(column), offset=16 * column.offset)
        if index:
            views = views.copy()
            words = _words_of(views)
            # A short change stands inside its view, where a long one names its buffer.
            words[words[:, 0] > MAX_INLINE_VIEW_BYTES, 2] = index
        every.append(views)
        buffers.append(piece.buffers()[2] or pa.py_buffer(b""))
    return np.concatenate(every), tuple(buffers)


def _of_narrow_offsets(array: pa.Array) -> Iterator[pa.Array]:
    """The same values as arrays whose offsets fit 32 bits, as a view's must. Copies no value."""
    if pa.types.is_binary(array.type):
        yield array
        return
    offsets = value_offsets(array)
    start = 0
    while start < len(array):
        reached = int(np.searchsorted(offsets, offsets[start] + INT32_ROOM_BYTES, side="right")) - 1
        # One change alone fits always: `MAX_CHANGE_BYTES` sees to it.
        stop = min(max(reached, start + 1), len(array))
        first, end = int(offsets[start]), int(offsets[stop])
        narrow = (offsets[start : stop + 1] - first).astype(np.int32)
        data = array.buffers()[2] or pa.py_buffer(b"")
        window = data.slice(first, end - first)
        yield pa.Array.from_buffers(pa.binary(), stop - start, [None, pa.py_buffer(narrow), window])
        start = stop


def _group_order(key_groups: Int32s) -> Int64s | None:
    """A stable order by key group, metadata first; None where it is the order they are in."""
    if not np.any(key_groups[1:] < key_groups[:-1]):
        return None
    shifted = key_groups - META_KEY_GROUP
    highest = int(shifted.max())
    # numpy sorts 8- and 16-bit integers by radix, ten times faster than wider ones.
    narrow: npt.DTypeLike = np.uint8 if highest < 2**8 else np.uint16 if highest < 2**16 else np.int32
    return np.argsort(shifted.astype(narrow), kind="stable").astype(np.int64, copy=False)


def encoded_chunks(plan: EncodePlan, chunk_bytes: int) -> Iterator[pa.Buffer]:
    """The body, in pieces of about `chunk_bytes` (one larger change makes one larger piece).

    Only one piece exists at a time, so memory does not grow with the set.
    """
    layout = plan.layout
    row_count = len(layout.lengths)
    if row_count == 0:
        yield pa.py_buffer(bytes(COUNT_BYTES))
        return
    body = _body_views(plan)
    row_ends = np.cumsum(layout.lengths + LENGTH_BYTES)
    start = first = 0
    while start < row_count:
        done_bytes = int(row_ends[start - 1]) if start else 0
        stop = int(np.searchsorted(row_ends, done_bytes + chunk_bytes, side="right"))
        stop = max(stop, start + 1)
        # This cast is the one copy of all bytes: they come out end to end.
        copied = body[first : 2 * stop + 1].cast(pa.large_binary())
        offsets = value_offsets(copied)
        yield copied.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        start, first = stop, 2 * stop + 1


def _body_views(plan: EncodePlan) -> pa.Array:
    """The body as a column of views: the set's header, then a header and a change in turn.

    A header is at most 12 bytes (the group's two words where one begins, and the change's length), so it
    stands inside its view.
    """
    layout, row_count = plan.layout, len(plan.views)
    views = np.zeros(2 * row_count + 1, _VIEW)
    words = _words_of(views)
    words[0, :2] = COUNT_BYTES, _swapped(np.int32(len(layout.key_groups)))
    headers = words[1::2]
    headers[:, 0] = LENGTH_BYTES
    headers[:, 1] = _swapped(layout.lengths)
    first_rows = np.cumsum(layout.counts) - layout.counts
    headers[first_rows, 3] = headers[first_rows, 1]
    headers[first_rows, 0] = GROUP_BYTES + LENGTH_BYTES
    headers[first_rows, 1] = _swapped(layout.counts)
    headers[first_rows, 2] = _swapped(layout.key_groups)
    views[2::2] = plan.views
    return pa.Array.from_buffers(pa.binary_view(), len(views), [None, pa.py_buffer(views), *plan.buffers])


def _words_of(views: Views) -> Int32s:
    """The same memory as four 32-bit words a view."""
    return views.view(np.int32).reshape(-1, 4)


def _swapped(numbers: npt.ArrayLike) -> Int32s:
    """As the body has them: big-endian, where memory is little-endian as Arrow's buffers are."""
    return np.asarray(numbers).astype(np.int32).byteswap()
