"""One change set as bytes, in Flink's layout: its layout and its decoder. Pure.

Owns the body's layout and decoding. Does not own encoding (`encoding`), files, compression or
checksums (`reader`, `compression`).

All integers are big-endian signed 32-bit:

    change set := number of groups, group*
    group      := number of changes, key group (-1: metadata), change*
    change     := length, bytes

Metadata comes first, then the key groups ascending; within a group, changes are in append order. Nothing here
loops over changes in Python, except for a body that comes without a `ChangeSetLayout` (`walk_change_set`).

Source: Flink's `StateChangeFormat`. It writes groups in hash-map order; its readers, and ours, accept any
order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstl_dagster.errors import FormatError, InternalError
from dstl_dagster.format.changes import META_KEY_GROUP

_COUNT: Final = struct.Struct(">i")
_GROUP: Final = struct.Struct(">ii")
COUNT_BYTES: Final = 4
GROUP_BYTES: Final = 8
LENGTH_BYTES: Final = 4
INT32_ROOM_BYTES: Final = 2**31 - 2**17
_WALK_READ_BYTES: Final = 1 << 20
MAX_INLINE_VIEW_BYTES: Final = 12
"""Arrow stores a value of up to 12 bytes inline, in the 16 bytes of its view."""

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ChangeSetLayout:
    """Where everything is in a body: enough to decode it without walking it.

    Attributes:
        key_groups: int32, of each group in body order; -1 is the metadata.
        counts: int64, changes in each group.
        lengths: int64, bytes of each change in body order.
    """

    key_groups: Int32s
    counts: Int64s
    lengths: Int64s

    @property
    def encoded_bytes(self) -> int:
        headers = COUNT_BYTES + GROUP_BYTES * len(self.key_groups) + LENGTH_BYTES * len(self.lengths)
        return headers + int(self.lengths.sum())

    def check(self, size: int) -> None:
        """Pass if it can be the layout of a body of `size` bytes, which says nothing of their content.

        Raises: FormatError.
        """
        if (
            int(self.counts.min(initial=0)) < 0
            or int(self.lengths.min(initial=0)) < 0
            or int(self.counts.sum()) != len(self.lengths)
            or self.encoded_bytes != size
        ):
            raise FormatError(f"a change set of {size} bytes does not have the layout recorded for it")

    @cached_property
    def places(self) -> tuple[Int64s, Int64s]:
        """The positions in a body of each group's header, and of each change's first byte."""
        return _places(self.counts, self.lengths)

    def restricted_to(self, changes: npt.NDArray[np.bool_]) -> ChangeSetLayout:
        """The layout of a body that has only these changes; `changes`: a flag for each."""
        group_of_each = np.repeat(np.arange(len(self.counts)), self.counts)
        counts = np.bincount(group_of_each[changes], minlength=len(self.counts))
        return ChangeSetLayout(self.key_groups[counts > 0], counts[counts > 0], self.lengths[changes])

    def write_group_headers(self, body: npt.NDArray[np.uint8]) -> None:
        """Write the change set's header, and each group's, into a body that has the changes already."""
        words = np.ndarray((len(body) - 3,), ">i4", body.data, strides=(1,))
        group_at, _ = self.places
        words[0] = len(self.counts)
        words[group_at], words[group_at + 4] = self.counts, self.key_groups


@dataclass(frozen=True)
class DecodedChangeSet:
    """A body and the positions of its changes. Nothing is copied until asked for.

    Attributes:
        body: the change set's bytes.
        layout: of the body, verified against it.
        starts: int64, position in the body of each change's first byte.
        prefixes: int32, the 4 bytes from there on; for a shorter change they include what follows it.
    """

    body: pa.Buffer
    layout: ChangeSetLayout
    starts: Int64s
    prefixes: Int32s

    def row_key_groups(self) -> Int32s:
        """The key group of each change."""
        return np.repeat(self.layout.key_groups, self.layout.counts)

    def binary_column(self, start: int, stop: int) -> pa.Array:
        """A copy of changes `[start, stop)` as a `binary` array. Below 2 GiB in total."""
        return self.view_column(start, stop).cast(pa.binary())

    def view_column(self, start: int, stop: int) -> pa.Array:
        """Changes `[start, stop)` as a `binary_view` array into the body, without a copy. Below 2 GiB."""
        row_count = stop - start
        if row_count == 0:
            return pa.array([], pa.binary_view())
        first = int(self.starts[start])
        end = int(self.starts[stop - 1] + self.layout.lengths[stop - 1])
        if end - first > INT32_ROOM_BYTES:
            raise InternalError(f"{end - first} bytes do not fit into one view column: take fewer rows")
        window = self.body.slice(first, end - first)
        starts = self.starts[start:stop] - first
        lengths = self.layout.lengths[start:stop]
        views = np.zeros((row_count, 4), dtype=np.int32)
        views[:, 0] = lengths
        octets = np.frombuffer(window, dtype=np.uint8)
        _fill_views(views, octets, starts, lengths, self.prefixes[start:stop])
        return pa.Array.from_buffers(pa.binary_view(), row_count, [None, pa.py_buffer(views), window])

    def changes(self, start: int, stop: int) -> list[bytes]:
        """Changes `[start, stop)`, each copied."""
        body = memoryview(self.body)
        starts = self.starts[start:stop]
        ends = starts + self.layout.lengths[start:stop]
        return [bytes(body[at:end]) for at, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _fill_views(
    views: Int32s, window: npt.NDArray[np.uint8], starts: Int64s, lengths: Int64s, prefixes: Int32s
) -> None:
    """Arrow's string-view layout: length, then the bytes inline, or prefix, buffer index 0 and offset."""
    long_rows = lengths > MAX_INLINE_VIEW_BYTES
    if long_rows.all():
        views[:, 1] = prefixes
        views[:, 3] = starts
        return
    at = np.flatnonzero(long_rows)
    views[at, 1] = prefixes[at]
    views[at, 3] = starts[at]
    inline_bytes = views.view(np.uint8).reshape(len(views), 16)
    for length in range(1, MAX_INLINE_VIEW_BYTES + 1):
        rows = np.flatnonzero(lengths == length)
        for byte in range(length if len(rows) else 0):
            inline_bytes[rows, 4 + byte] = window[starts[rows] + byte]


def decode_change_set(body: bytes | memoryview | pa.Buffer, layout: ChangeSetLayout) -> DecodedChangeSet:
    """The changes of a body. The layout is not trusted: every header of the body is compared with it.

    FormatError if they disagree anywhere.
    """
    buffer = body if isinstance(body, pa.Buffer) else pa.py_buffer(body)
    layout.check(buffer.size)
    counts, lengths = layout.counts, layout.lengths
    window = np.frombuffer(buffer, dtype=np.uint8)
    group_at, starts = _places(counts, lengths)
    heads = _heads(window, starts)
    agrees = (
        _COUNT.unpack_from(buffer)[0] == len(counts)
        and bool((_words_at(window, group_at) == counts).all())
        and bool((_words_at(window, group_at + 4) == layout.key_groups).all())
        and bool((heads.view(">i4")[::2] == lengths).all())
    )
    if not agrees:
        raise FormatError("the headers of a change set do not match the layout recorded for it")
    if int(layout.key_groups.min(initial=0)) < META_KEY_GROUP:
        raise FormatError(f"a change set names key group {int(layout.key_groups.min())}")
    return DecodedChangeSet(buffer, layout, starts, heads.view("<i4")[1::2])


def _places(counts: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s]:
    """The positions in a body of each group's header, and of each change's first byte."""
    row_count, groups = len(lengths), np.arange(len(counts), dtype=np.int64)
    payload_before = np.zeros(row_count + 1, dtype=np.int64)
    np.cumsum(lengths, out=payload_before[1:])
    rows_before = counts.cumsum() - counts
    group_at = payload_before[rows_before] + LENGTH_BYTES * rows_before + GROUP_BYTES * groups + COUNT_BYTES
    starts = payload_before[:row_count]
    first_start = COUNT_BYTES + LENGTH_BYTES
    starts += np.arange(first_start, first_start + LENGTH_BYTES * row_count, LENGTH_BYTES, dtype=np.int64)
    starts += np.repeat(GROUP_BYTES * (groups + 1), counts)
    return group_at, starts


def _words_at(window: npt.NDArray[np.uint8], positions: Int64s) -> npt.NDArray[np.int32]:
    """The big-endian 4-byte integers at arbitrary positions, which must be within the window."""
    shape = (max(len(window) - 3, 0),)
    overlapping = np.ndarray(shape=shape, dtype=">i4", buffer=window, strides=(1,))
    found: npt.NDArray[np.int32] = overlapping[positions]
    return found


def _heads(window: npt.NDArray[np.uint8], starts: Int64s) -> Int64s:
    """The 8 bytes from each change's header on: its length, and the 4 bytes after it.

    Read together: the memory is cold, and a second look at each change would cost as much again.
    """
    count = len(starts)
    if not count:
        return np.zeros(0, dtype=np.int64)
    # Every change but the last is followed by a header, so only the last can end within its 4 bytes.
    whole = count if int(starts[-1]) + 4 <= len(window) else count - 1
    shape = (max(len(window) - 7, 0),)
    overlapping = np.ndarray(shape=shape, dtype=np.int64, buffer=window, strides=(1,))
    heads: Int64s = overlapping[starts[:whole] - LENGTH_BYTES]
    if whole == count:
        return heads
    last = bytes(window[int(starts[-1]) - LENGTH_BYTES :]).ljust(8, b"\0")
    return np.append(heads, np.frombuffer(last, dtype=np.int64))


def walk_change_set(read: Callable[[int], bytes]) -> tuple[bytes, ChangeSetLayout, bytes]:
    """One change set from a source of unknown length: its body, its layout, and what was read beyond it.

    `read(n)` returns about n further bytes, fewer only at the end. Memory stays within what was read.
    FormatError if the bytes end early or are not a change set.
    """
    walker = _Walker(read)
    key_groups: list[int] = []
    counts: list[int] = []
    lengths: list[int] = []
    (group_count,) = walker.take(_COUNT)
    if group_count < 0:
        raise FormatError(f"a change set claims {group_count} groups")
    for _ in range(group_count):
        change_count, key_group = walker.take(_GROUP)
        if change_count < 0 or key_group < META_KEY_GROUP:
            raise FormatError(f"a change set claims {change_count} changes of key group {key_group}")
        walker.skip_changes(change_count, lengths)
        key_groups.append(key_group)
        counts.append(change_count)
    layout = ChangeSetLayout(
        np.array(key_groups, np.int32), np.array(counts, np.int64), np.array(lengths, np.int64)
    )
    whole = memoryview(walker.buffer)
    return bytes(whole[: walker.at]), layout, bytes(whole[walker.at :])


class _Walker:
    """Reads ahead just enough to step over headers and changes."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self.buffer = bytearray()
        self.at = 0

    def _ensure(self, byte_count: int) -> None:
        missing = self.at + byte_count - len(self.buffer)
        while missing > 0:
            # A length is only a claim: reads grow step by step, so that a wrong one allocates nothing.
            received = self._read(max(_WALK_READ_BYTES, min(missing, len(self.buffer))))
            if not received:
                raise FormatError(f"a change set ends early: {missing} bytes are missing")
            self.buffer += received
            missing -= len(received)

    def take(self, shape: struct.Struct) -> tuple[int, ...]:
        self._ensure(shape.size)
        values: tuple[int, ...] = shape.unpack_from(self.buffer, self.at)
        self.at += shape.size
        return values

    def skip_changes(self, count: int, lengths: list[int]) -> None:
        unpack, buffer, at = _COUNT.unpack_from, self.buffer, self.at
        known = len(buffer)
        for _ in range(count):
            if at + LENGTH_BYTES > known:
                self.at = at
                self._ensure(LENGTH_BYTES)
                known = len(buffer)
            (length,) = unpack(buffer, at)
            if length < 0:
                raise FormatError(f"a change claims a length of {length} bytes")
            at += LENGTH_BYTES + length
            lengths.append(length)
            if at > known:
                self.at = at
                self._ensure(0)
                known = len(buffer)
        self.at = at
