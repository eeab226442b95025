"""The footer of a changelog file: where each change set is, how long its changes are, its checksum. Pure.

Owns the footer's bytes. Does not own the body (`change_set_codec`) nor how a file is read (`reader`).

The footer is after the body, where Flink's reader never looks; in a compressed file it is in frames that
every decoder skips. In file order:

    block*    one per change set: (key group: i32, number of changes: u32)*, length of change: u32 *
    frames    optional: the table of frames
    index     one entry per change set, in file order
    trailer   fixed size, at the very end

A frame is a piece of a change set that is stored, compressed and checksummed by itself; end to end, the
frames are the change set. Only change sets of several frames are in the table: without it a change set is
read whole. In order, unsigned and of 32 bits:

    frames of each change set; 0: not in the table
    for each of these frames: its size, its stored size, CRC-32C of its `size` bytes
    size of the table up to here, CRC-32C of the table up to here

Integers are little-endian, so numpy reads them in place; only Flink's body is big-endian.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import google_crc32c
import numpy as np
import numpy.typing as npt

from dstl_dagster.errors import ErrorKind, FormatError
from dstl_dagster.format.changelog_file.change_set_codec import COUNT_BYTES, ChangeSetLayout
from dstl_dagster.format.changelog_file.compression import Compression
from dstl_dagster.format.sequence import MAX_SEQUENCE_NUMBER, SequenceNumber

MAX_CHANGE_SETS_PER_FILE: Final = 1 << 16
"""So that an index fits into one skippable frame of every kind."""

_MAGIC: Final = b"DSTLLOG1"
_VERSION: Final = 1
# log id, sequence number, offset, size, payload, stored offset, stored size, block offset, groups,
# changes, CRC-32C of the body, CRC-32C of the block
_ENTRY: Final = struct.Struct("<16sQQQQQQQIIII")
# index offset, logical size of the body, entries, CRC-32C of the index, version, flag, extensions, CRC-32C of
# the trailer before it, magic
_TRAILER: Final = struct.Struct("<QQIIBBHI8s")
_TRAILER_CRC_AT: Final = 28
_WITH_FRAMES: Final = 1
"""A bit of the extensions. What an extension adds may be ignored: releases that do not know it do."""
TRAILER_BYTES: Final = _TRAILER.size

_TABLE_END: Final = struct.Struct("<II")
TABLE_END_BYTES: Final = _TABLE_END.size
_NUMBERS: Final = 3

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ChangeSetEntry:
    """One change set of a file.

    Attributes:
        log_id, sequence_number: the writer's log, and the position in it.
        offset: in the logical (uncompressed) body, as in a handle's entry.
        size: bytes in the logical body.
        payload_bytes: bytes of its changes alone.
        stored_offset, stored_size: of its frames in the file.
        block_offset: of its block in the file; None if it has none (readers then walk the body).
        group_count, change_count: numbers of groups and changes.
        crc32c: CRC-32C of its `size` bytes in the logical body.
        block_crc32c: CRC-32C of its block.
    """

    log_id: uuid.UUID
    sequence_number: SequenceNumber
    offset: int
    size: int
    payload_bytes: int
    stored_offset: int
    stored_size: int
    block_offset: int | None
    group_count: int
    change_count: int
    crc32c: int
    block_crc32c: int

    @property
    def block_bytes(self) -> int:
        return 8 * self.group_count + 4 * self.change_count


@dataclass(frozen=True)
class Trailer:
    """The end of a file: the absolute offset of its index, and the size and compression of its body.

    Attributes:
        has_frames: whether the table of frames ends where the index begins.
    """

    index_offset: int
    body_size: int
    entry_count: int
    index_crc32c: int
    compression: Compression
    has_frames: bool = False

    @property
    def index_bytes(self) -> int:
        return self.entry_count * _ENTRY.size


@dataclass(frozen=True)
class FileIndex:
    """The footer of a file, without the blocks.

    Attributes:
        frames_end: where the table of frames ends in the file; `None` if there is none.
    """

    compression: Compression
    body_size: int
    entries: tuple[ChangeSetEntry, ...]
    frames_end: int | None = None

    def at_offset(self, offset: int) -> ChangeSetEntry | None:
        """The change set at this offset of the logical body; None if none begins there."""
        return self._by_offset.get(offset)

    @cached_property
    def _by_offset(self) -> dict[int, ChangeSetEntry]:
        return {entry.offset: entry for entry in self.entries}


def encode_block(layout: ChangeSetLayout) -> bytes:
    """The block of one change set: its layout."""
    groups = np.empty((len(layout.key_groups), 2), dtype="<i4")
    groups[:, 0] = layout.key_groups
    groups[:, 1] = layout.counts
    return groups.tobytes() + layout.lengths.astype("<u4").tobytes()


def decode_block(entry: ChangeSetEntry, block: bytes) -> ChangeSetLayout:
    """The layout in a block. FormatError if it does not match its entry."""
    if len(block) != entry.block_bytes or google_crc32c.value(block) != entry.block_crc32c:
        raise FormatError("the lengths recorded in the footer do not match their checksum")
    groups = np.frombuffer(block, dtype="<i4", count=2 * entry.group_count).reshape(-1, 2)
    lengths = np.frombuffer(block, dtype="<u4", offset=8 * entry.group_count)
    return ChangeSetLayout(
        np.ascontiguousarray(groups[:, 0]).astype(np.int32, copy=False),
        groups[:, 1].astype(np.int64),
        lengths.astype(np.int64),
    )


def index_and_trailer_bytes(entry_count: int) -> int:
    """The length of what `encode_index_and_trailer` returns."""
    return entry_count * _ENTRY.size + TRAILER_BYTES


def encode_index_and_trailer(index: FileIndex, index_offset: int) -> bytes:
    """The end of the file, from `index_offset` on."""
    packed = b"".join(
        _ENTRY.pack(
            entry.log_id.bytes,
            entry.sequence_number.number,
            entry.offset,
            entry.size,
            entry.payload_bytes,
            entry.stored_offset,
            entry.stored_size,
            entry.block_offset or 0,
            entry.group_count,
            entry.change_count,
            entry.crc32c,
            entry.block_crc32c,
        )
        for entry in index.entries
    )
    head = _TRAILER.pack(
        index_offset,
        index.body_size,
        len(index.entries),
        google_crc32c.value(packed),
        _VERSION,
        index.compression.value,
        0 if index.frames_end is None else _WITH_FRAMES,
        0,
        _MAGIC,
    )[:_TRAILER_CRC_AT]
    return packed + head + struct.pack("<I", google_crc32c.value(head)) + _MAGIC


def decode_trailer(tail: bytes, file_bytes: int) -> Trailer | None:
    """The trailer in a file's last bytes; None if there is none (a file of Flink's).

    FormatError if it is ours but damaged, or of a newer version.
    """
    if len(tail) < TRAILER_BYTES or tail[-len(_MAGIC) :] != _MAGIC:
        return None
    head = tail[-TRAILER_BYTES:]
    index_offset, body_size, entry_count, index_crc, version, flag, extensions, crc, _ = _TRAILER.unpack(head)
    if google_crc32c.value(head[:_TRAILER_CRC_AT]) != crc:
        raise FormatError("the footer's trailer does not match its checksum")
    if version != _VERSION:
        raise FormatError(
            f"the footer has version {version}, but this release reads {_VERSION}: upgrade dstl-dagster",
            ErrorKind.NEWER_VERSION,
        )
    if flag not in (0, 1, 2):
        raise FormatError(
            f"the footer has compression {flag}, which this release does not know: upgrade dstl-dagster"
        )
    has_frames = bool(extensions & _WITH_FRAMES)
    trailer = Trailer(index_offset, body_size, entry_count, index_crc, Compression(flag), has_frames)
    if (
        entry_count > MAX_CHANGE_SETS_PER_FILE
        or index_offset + trailer.index_bytes + TRAILER_BYTES != file_bytes
    ):
        raise FormatError("the footer's index is not where its trailer says")
    return trailer


def decode_index(trailer: Trailer, packed: bytes) -> FileIndex:
    """The index. FormatError if it does not match its checksum, or points outside the file."""
    if len(packed) != trailer.index_bytes or google_crc32c.value(packed) != trailer.index_crc32c:
        raise FormatError("the footer's index does not match its checksum")
    entries = []
    for log_id, sqn, *numbers in _ENTRY.iter_unpack(packed):
        if sqn > MAX_SEQUENCE_NUMBER:
            raise FormatError("the footer's index names a position that no log has")
        entry = ChangeSetEntry(uuid.UUID(bytes=log_id), SequenceNumber(sqn), *numbers)
        if (
            entry.offset + entry.size > trailer.body_size
            or entry.stored_offset + entry.stored_size > trailer.index_offset
            or entry.size < COUNT_BYTES + entry.block_bytes
            or (entry.block_offset and entry.block_offset + entry.block_bytes > trailer.index_offset)
        ):
            raise FormatError("the footer's index points outside the file")
        entries.append(entry if entry.block_offset else replace(entry, block_offset=None))
    frames_end = trailer.index_offset if trailer.has_frames else None
    return FileIndex(trailer.compression, trailer.body_size, tuple(entries), frames_end)


@dataclass(frozen=True)
class Frames:
    """The frames of one change set, in order. All int64, of one length.

    Attributes:
        sizes: bytes of the change set in each frame.
        stored_sizes: bytes of each frame in the file.
        crc32cs: CRC-32C of each frame's `sizes` bytes.
    """

    sizes: Int64s
    stored_sizes: Int64s
    crc32cs: Int64s

    @classmethod
    def of(cls, frames: Sequence[tuple[int, int, int]]) -> Frames:
        """From (size, stored size, CRC-32C) of each."""
        return cls(*np.array(frames, np.int64).reshape(-1, _NUMBERS).T)

    def __len__(self) -> int:
        return len(self.sizes)


def frame_table_bytes(tables: Sequence[Frames | None]) -> int:
    """The length of what `encode_frame_table` returns."""
    frames = sum(len(each) for each in tables if each is not None)
    return 4 * (len(tables) + _NUMBERS * frames) + TABLE_END_BYTES


def encode_frame_table(tables: Sequence[Frames | None]) -> bytes:
    """The table of a file; one entry for each of its change sets, in file order."""
    counts = np.array([0 if each is None else len(each) for each in tables], "<u4")
    rows = [
        np.stack([each.sizes, each.stored_sizes, each.crc32cs], axis=1).astype("<u4").tobytes()
        for each in tables
        if each is not None
    ]
    table = counts.tobytes() + b"".join(rows)
    return table + _TABLE_END.pack(len(table), google_crc32c.value(table))


def decode_frame_table(table: bytes, sets: Sequence[tuple[int, int]]) -> list[Frames | None]:
    """The frames of each change set; `None` for one that is not in the table.

    `sets`: size and stored size of each change set of the file.

    Raises: FormatError if the table does not match its checksum, or the change sets.
    """
    size, crc = _TABLE_END.unpack_from(table, len(table) - TABLE_END_BYTES)
    if size != len(table) - TABLE_END_BYTES or size % 4 or google_crc32c.value(table[:size]) != crc:
        raise FormatError("the footer's frames do not match their checksum")
    numbers = np.frombuffer(table[:size], "<u4").astype(np.int64)
    counts, rest = numbers[: len(sets)], numbers[len(sets) :]
    if len(counts) != len(sets) or len(rest) != _NUMBERS * counts.sum():
        raise FormatError("the footer's frames are not of its change sets")
    rows = rest.reshape(-1, _NUMBERS)
    found: list[Frames | None] = []
    for (set_size, stored_size), start, count in zip(
        sets, (counts.cumsum() - counts).tolist(), counts.tolist(), strict=True
    ):
        frames = Frames(*rows[start : start + count].T)
        if count and (frames.sizes.sum(), frames.stored_sizes.sum()) != (set_size, stored_size):
            raise FormatError("the footer's frames are not those of its change sets")
        found.append(frames if count else None)
    return found
