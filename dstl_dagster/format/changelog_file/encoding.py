"""Encodes a changelog file, piece by piece. `reader` documents and reads it, `change_set_codec` one
change set of it.

Owns the order of a file's parts, and of the changes in a change set. Does not own where the bytes go: the
caller writes the pieces.

Headers and changes of a change set become one column of Arrow views, whose cast to plain binary copies each
byte once. Nothing here loops over changes in Python.

Source: Flink's `OutputStreamWithPos` and `StateChangeFormat`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dstl_dagster.errors import InternalError, InvalidInputError
from dstl_dagster.format import crc32c
from dstl_dagster.format.changelog_file.change_set_codec import (
    COUNT_BYTES,
    GROUP_BYTES,
    INT32_ROOM_BYTES,
    LENGTH_BYTES,
    MAX_INLINE_VIEW_BYTES,
    ChangeSetLayout,
    Int32s,
    Int64s,
)
from dstl_dagster.format.changelog_file.compression import (
    FRAME_BYTES,
    Compression,
    compressed,
    skippable_frame_header,
    stream_header,
)
from dstl_dagster.format.changelog_file.footer import (
    MAX_CHANGE_SETS_PER_FILE,
    ChangeSetEntry,
    FileIndex,
    Frames,
    encode_block,
    encode_frame_table,
    encode_index_and_trailer,
    frame_table_bytes,
    index_and_trailer_bytes,
)
from dstl_dagster.format.changes import ChangeColumns, StateChangeSet, value_offsets

_VIEW: Final = np.dtype(np.complex128)
"""A 16-byte item, never used as a number: numpy copies it ten times faster than a row of four words."""

_CAST: Final = pc.get_function("cast")
_TO_BINARY: Final = pc.CastOptions.safe(pa.large_binary())
"""Looked up once: `Array.cast` repeats the look-up, which takes a tenth of the time of a piece."""

_FEW_ROWS: Final = 1 << 14
_MAX_INT16: Final = (1 << 15) - 1
_KEPT_ARRAYS: Final = 8
_SMALLEST_KEPT_VIEWS: Final = 1 << 12
_LARGEST_KEPT_VIEWS: Final = 1 << 18
"""Of 16 bytes each: at most 32 MiB are cached in all, and 4 MiB in one array."""

Views = npt.NDArray[np.complex128]


class ChangelogFileEncoder:
    """Turns change sets into the pieces of one file. One thread; `footer()` ends it.

    Every piece must be written, in order, before the next is asked for.
    """

    def __init__(self, compression: Compression, chunk_bytes: int) -> None:
        self._compression = compression
        self._chunk_bytes = chunk_bytes
        self._entries: list[Callable[..., ChangeSetEntry]] = []
        """Each still without the place and checksum of its block."""
        self._blocks: list[bytes] = []
        self._frames: list[Frames | None] = []
        self._stored_bytes = 0
        self.body_size = 0
        self.crc32c = crc32c.EMPTY_CRC32C
        """Of all pieces so far, so that the uploader need not read every byte again."""

    def header(self) -> bytes:
        """The first piece of the file. Call it first."""
        header = bytes([self._compression.value]) + stream_header(self._compression)
        self._count(header)
        return header

    def change_set(self, change_set: StateChangeSet) -> Iterator[memoryview]:
        """The frames of one change set, each of about the chunk size. Exhaust the iterator."""
        if len(self._entries) == MAX_CHANGE_SETS_PER_FILE:
            raise InvalidInputError(
                f"a changelog file takes {MAX_CHANGE_SETS_PER_FILE} change sets: begin another"
            )
        columns = change_set.changes
        assert isinstance(columns, ChangeColumns)
        plan = plan_change_set(columns)
        offset, stored_offset = self.body_size, self._stored_bytes
        frames: list[tuple[int, int, int]] = []
        for chunk in encoded_chunks(plan, self._chunk_bytes):
            self.body_size += chunk.size
            if self._compression is Compression.NONE:
                before, piece = self.crc32c, memoryview(chunk)
                self._count(piece)
                # The stored bytes are the body, so its checksums follow from the file's.
                frames.append((chunk.size, chunk.size, crc32c.of_second(before, self.crc32c, chunk.size)))
            else:
                piece = memoryview(b"".join(self._compressed(chunk, frames)))
                self._count(piece)
            yield piece
        several = len(frames) > 1
        body_crc = crc32c.combine_all((crc, size) for size, _, crc in frames)[0] if several else frames[0][2]
        self._frames.append(Frames.of(frames) if several else None)
        self._blocks.append(encode_block(plan.layout))
        self._entries.append(
            partial(
                ChangeSetEntry,
                log_id=change_set.log_id,
                sequence_number=change_set.sequence_number,
                offset=offset,
                size=self.body_size - offset,
                payload_bytes=change_set.size,
                stored_offset=stored_offset,
                stored_size=self._stored_bytes - stored_offset,
                group_count=len(plan.layout.key_groups),
                change_count=len(plan.layout.lengths),
                crc32c=body_crc,
            )
        )

    def _compressed(self, chunk: pa.Buffer, frames: list[tuple[int, int, int]]) -> Iterator[memoryview]:
        """The chunk's frames, each noted in `frames`."""
        for start in range(0, chunk.size, FRAME_BYTES):
            part = chunk.slice(start, min(FRAME_BYTES, chunk.size - start))
            stored = compressed(self._compression, part)
            frames.append((part.size, len(stored), crc32c.crc32c(part)))
            yield stored

    def footer(self) -> Iterator[bytes]:
        """The end of the file, in pieces of about the chunk size."""
        ready: list[bytes] = []
        ready_bytes = 0
        for part in self._footer_parts():
            ready.append(part)
            ready_bytes += len(part)
            if ready_bytes >= self._chunk_bytes:
                yield self._footer_piece(ready)
                ready_bytes = 0
        if ready:
            yield self._footer_piece(ready)

    def _footer_piece(self, ready: list[bytes]) -> bytes:
        piece = b"".join(ready)
        ready.clear()
        self._count(piece)
        return piece

    def _footer_parts(self) -> Iterator[bytes]:
        at = self._stored_bytes
        finished: list[ChangeSetEntry] = []
        for entry, block in zip(self._entries, self._blocks, strict=True):
            header = skippable_frame_header(self._compression, len(block))
            if header is None:
                # Too long for one skippable frame: readers walk this set instead.
                finished.append(entry(block_offset=None, block_crc32c=0))
                continue
            yield header
            yield block
            at += len(header)
            finished.append(entry(block_offset=at, block_crc32c=crc32c.crc32c(block)))
            at += len(block)
        yield self._end(finished, at)

    def _end(self, entries: list[ChangeSetEntry], at: int) -> bytes:
        """The last frame of the file, which begins at `at`: the table of frames, the index, the trailer."""
        index = FileIndex(self._compression, self.body_size, tuple(entries))
        index_bytes = index_and_trailer_bytes(len(entries))
        table_bytes = frame_table_bytes(self._frames) if any(self._frames) else 0
        header = skippable_frame_header(self._compression, table_bytes + index_bytes)
        if header is None or not table_bytes:
            header = skippable_frame_header(self._compression, index_bytes)
            assert header is not None, "MAX_CHANGE_SETS_PER_FILE keeps the index within one skippable frame"
            return header + encode_index_and_trailer(index, at + len(header))
        index_at = at + len(header) + table_bytes
        with_frames = replace(index, frames_end=index_at)
        table = encode_frame_table(self._frames)
        return header + table + encode_index_and_trailer(with_frames, index_at)

    def _count(self, piece: bytes | memoryview) -> None:
        self._stored_bytes += len(piece)
        self.crc32c = crc32c.extend(self.crc32c, piece)


@dataclass(frozen=True)
class EncodePlan:
    """How to write one change set: the layout, and where each change's bytes are.

    `columns` are binary arrays with 32-bit offsets, in append order. `order` is the permutation to body
    order; None if they are the same.
    """

    layout: ChangeSetLayout
    order: Int64s | None
    columns: tuple[pa.Array, ...]


def plan_change_set(columns: ChangeColumns) -> EncodePlan:
    """Group the changes by key group, ascending and stable. Copies no change."""
    parts = [run.columns() for run in columns.runs if len(run) > 0]
    if not parts:
        empty = ChangeSetLayout(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
        return EncodePlan(empty, None, ())
    key_groups = parts[0][0] if len(parts) == 1 else np.concatenate([part[0] for part in parts])
    changes = tuple(piece for part in parts for piece in _of_narrow_offsets(part[1]))
    lengths = _lengths_of(changes, len(key_groups))
    order = _group_order(key_groups)
    if order is not None:
        key_groups = key_groups[order]
        lengths = lengths.take(order, out=_pooled_int64s(len(order)), mode="clip")
    last_rows = np.flatnonzero(key_groups[1:] != key_groups[:-1])
    bounds = np.zeros(len(last_rows) + 2, np.int64)
    np.add(last_rows, 1, out=bounds[1:-1])
    bounds[-1] = len(key_groups)
    layout = ChangeSetLayout(key_groups[bounds[:-1]], bounds[1:] - bounds[:-1], lengths)
    return EncodePlan(layout, order, changes)


def _lengths_of(columns: tuple[pa.Array, ...], row_count: int) -> Int64s:
    lengths = _pooled_int64s(row_count)
    start = 0
    for column in columns:
        offsets = value_offsets(column)
        stop = start + len(column)
        np.subtract(offsets[1:], offsets[:-1], out=lengths[start:stop])
        start = stop
    return lengths


def _pooled_int64s(count: int) -> Int64s:
    """An uninitialised array of `count` numbers in memory of Arrow's pool, which keeps freed pages.

    The C library's heap returns a large freed array to the system, and the next one pays for its pages one
    fault at a time.
    """
    return np.frombuffer(pa.allocate_buffer(8 * count), np.int64)


def _of_narrow_offsets(array: pa.Array) -> Iterator[pa.Array]:
    """The same values as arrays whose offsets fit into 32 bits, as a view needs. Copies no value."""
    if pa.types.is_binary(array.type):
        yield array
        return
    offsets = value_offsets(array)
    start = 0
    while start < len(array):
        reached = int(np.searchsorted(offsets, offsets[start] + INT32_ROOM_BYTES, side="right")) - 1
        # A single change always fits: see `MAX_CHANGE_BYTES`.
        stop = min(max(reached, start + 1), len(array))
        first, end = int(offsets[start]), int(offsets[stop])
        narrow = (offsets[start : stop + 1] - first).astype(np.int32)
        data = array.buffers()[2] or pa.py_buffer(b"")
        window = data.slice(first, end - first)
        yield pa.Array.from_buffers(pa.binary(), stop - start, [None, pa.py_buffer(narrow), window])
        start = stop


def _group_order(key_groups: Int32s) -> Int64s | None:
    """The stable order by key group, metadata first; None if they are already in it."""
    if not np.any(key_groups[1:] < key_groups[:-1]):
        return None
    if len(key_groups) <= _FEW_ROWS and key_groups.max() <= _MAX_INT16:
        # numpy uses radix sort for 16-bit numbers.
        return np.argsort(key_groups.astype(np.int16), kind="stable")
    # Arrow's counting sort takes longer to start. Its result is in its own pool (see `_pooled_int64s`).
    order: Int64s = pc.array_sort_indices(pa.array(key_groups)).to_numpy().view(np.int64)
    return order


def encoded_chunks(plan: EncodePlan, chunk_bytes: int) -> Iterator[pa.Buffer]:
    """The body, in pieces of about `chunk_bytes` (one larger change makes one larger piece).

    Only one piece exists at a time, so memory does not grow with the set.
    """
    layout = plan.layout
    row_count = len(layout.lengths)
    if row_count == 0:
        yield pa.py_buffer(bytes(COUNT_BYTES))
        return
    row_ends = _pooled_int64s(row_count)
    np.add(layout.lengths, LENGTH_BYTES, out=row_ends)
    np.cumsum(row_ends, out=row_ends)
    ends = row_ends.data
    with _scratch.borrowed(2 * row_count + 1) as views:
        body = _body_views(plan, views)
        missing_bytes = layout.encoded_bytes
        start = first = 0
        while start < row_count:
            done_bytes = ends[start - 1] if start else 0
            stop = max(start + 1, bisect_right(ends, done_bytes + chunk_bytes, lo=start))
            # This cast is the one copy of all bytes, which it lays end to end.
            piece = _CAST.call([body.slice(first, 2 * stop + 1 - first)], _TO_BINARY).buffers()[2]
            missing_bytes -= piece.size
            yield piece
            start, first = stop, 2 * stop + 1
        if missing_bytes:
            raise InternalError(f"Arrow's cast returned {missing_bytes} bytes fewer than the values have")


def _body_views(plan: EncodePlan, views: Views) -> pa.Array:
    """The body as a column of views: the set's header, then headers and changes alternating.

    A header is at most 12 bytes (the two words of a group that begins here, and the change's length), so it
    is inline in its view. Fills `views`, whose memory the column references.
    """
    layout = plan.layout
    words = _words_of(views)
    words[:2] = (COUNT_BYTES, _swapped(np.int32(len(layout.key_groups))), 0, 0), (LENGTH_BYTES, 0, 0, 0)
    # By whole views: numpy moves each in one go.
    views[3::2] = views[1]
    headers = words[1::2]
    headers[:, 1] = layout.lengths
    headers[:, 1].byteswap(inplace=True)
    first_rows = np.cumsum(layout.counts) - layout.counts
    headers[first_rows, 3] = headers[first_rows, 1]
    headers[first_rows, 0] = GROUP_BYTES + LENGTH_BYTES
    headers[first_rows, 1] = _swapped(layout.counts)
    headers[first_rows, 2] = _swapped(layout.key_groups)
    row_count = len(layout.lengths)
    with _scratch.borrowed(row_count) as appended, _scratch.borrowed(row_count) as sorted_:
        buffers = _fill_views(plan.columns, appended)
        if plan.order is None:
            views[2::2] = appended
        else:
            # An order is a permutation, so always in range; "raise" would check it, and buffer the output.
            views[2::2] = appended.take(plan.order, out=sorted_, mode="clip")
    return pa.Array.from_buffers(pa.binary_view(), len(views), [None, pa.py_buffer(views), *buffers])


def _fill_views(columns: tuple[pa.Array, ...], views: Views) -> list[pa.Buffer]:
    """Arrow's view of each value of all columns, end to end: its bytes, or its buffer and offset.

    Returns the buffers, one per column: the column's own, because no value is copied.
    """
    start = 0
    buffers = []
    for index, column in enumerate(columns):
        stop = start + len(column)
        words = _words_of(views[start:stop])
        offsets = value_offsets(column)
        np.subtract(offsets[1:], offsets[:-1], out=words[:, 0])
        if words[:, 0].min() > MAX_INLINE_VIEW_BYTES:
            # The second word, a prefix of the value, only speeds up comparisons. It is left uninitialised:
            # reading every value here would mean a cache miss for each.
            words[:, 2] = index
            words[:, 3] = offsets[:-1]
            buffers.append(column.buffers()[2])
        else:
            buffers.append(_fill_views_with_short(column, index, views[start:stop]))
        start = stop
    return buffers


def _fill_views_with_short(column: pa.Array, index: int, views: Views) -> pa.Buffer:
    """The same for a column that has changes short enough to be inline in their views."""
    cast = column.cast(pa.binary_view())
    _, of_views, *of_values = cast.buffers()
    views[:] = np.frombuffer(of_views, _VIEW, len(cast), offset=16 * cast.offset)
    words = _words_of(views)
    # Only a long change has a buffer index; a short one has its bytes there.
    words[words[:, 0] > MAX_INLINE_VIEW_BYTES, 2] = index
    if len(of_values) > 1:
        raise InternalError(f"Arrow spread the values of one column over {len(of_values)} buffers")
    return of_values[0] if of_values else pa.py_buffer(b"")


class _Scratch:
    """Reused memory for views: fresh pages cost more than the writes to them. Any thread."""

    def __init__(self) -> None:
        self._kept: deque[Views] = deque(maxlen=_KEPT_ARRAYS)

    @contextmanager
    def borrowed(self, count: int) -> Iterator[Views]:
        """`count` uninitialised views, exclusive to the caller within the block."""
        try:
            views = self._kept.pop()
        except IndexError:
            views = np.empty(0, _VIEW)
        if len(views) < count:
            views = np.empty(max(count, _SMALLEST_KEPT_VIEWS), _VIEW)
        try:
            yield views[:count]
        finally:
            if len(views) <= _LARGEST_KEPT_VIEWS:
                self._kept.append(views)


_scratch = _Scratch()


def _words_of(views: Views) -> Int32s:
    """The same memory as four 32-bit words per view."""
    return views.view(np.int32).reshape(-1, 4)


def _swapped(numbers: npt.ArrayLike) -> Int32s:
    """Byte-swapped to the body's big-endian; memory, like Arrow's buffers, is little-endian."""
    return np.asarray(numbers).astype(np.int32).byteswap()
