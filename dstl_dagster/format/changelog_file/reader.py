"""A whole changelog file: its layout, and finding and verifying a change set in it.

Owns the parts of a file. Does not own writing it (`encoding`), nor where the bytes come from:
the reader takes ranges from any `RangeReader`.

    file := flag (1 byte: 0 plain, 1 Snappy frames, 2 Zstandard frames), body, footer

Without the footer this is Flink's file. An offset in a handle counts bytes of the uncompressed body, after
the flag; so does a file's size.

Source: Flink's `StateChangeFormat` and `ChangelogStreamHandleReader`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from dstl_dagster.errors import FormatError
from dstl_dagster.format.changelog_file.change_set_codec import (
    ChangeSetLayout,
    DecodedChangeSet,
    decode_change_set,
    walk_change_set,
)
from dstl_dagster.format.changelog_file.change_set_parts import (
    ChangeSetPart,
    WantedKeys,
    has_any,
    part_of,
)
from dstl_dagster.format.changelog_file.compression import (
    Compression,
    decompressed,
    decompressed_whole,
    in_steps,
)
from dstl_dagster.format.changelog_file.footer import (
    TABLE_END_BYTES,
    ChangeSetEntry,
    FileIndex,
    Frames,
    decode_block,
    decode_frame_table,
    decode_index,
    decode_trailer,
)
from dstl_dagster.format.crc32c import crc32c
from dstl_dagster.format.key_group_ranges import KeyGroupRange

if TYPE_CHECKING:
    from dstl_dagster.storage import RangeReader

_FLAG_BYTES: Final = 1
_TAIL_BYTES: Final = 1 << 16
_FORWARD_READ_BYTES: Final = 1 << 20
_ENTRY_BYTES: Final = 1024
"""Of a change set's entry and its arrays as Python's objects, roughly."""


@dataclass
class ReadFooter:
    """The parts read of one file's footer, for the next reader of the same file: files never change.

    Filled by `ChangelogFileReader`. Two that fill it at once write the same.

    Attributes:
        opened: whether the index was looked for.
        index: `None` for a file without a footer, which is Flink's.
        compression: once the flag byte has confirmed it.
        layouts: by the offset of their change sets.
        frames: likewise; `None`: the table was not read.
    """

    opened: bool = False
    index: FileIndex | None = None
    compression: Compression | None = None
    layouts: dict[int, ChangeSetLayout] = field(default_factory=dict)
    frames: dict[int, Frames | None] | None = None

    @property
    def held_bytes(self) -> int:
        """Roughly, in memory."""
        entries = 1 if self.index is None else len(self.index.entries)
        layouts = sum(
            each.key_groups.nbytes + each.counts.nbytes + each.lengths.nbytes
            for each in list(self.layouts.values())
        )
        frames = sum(3 * each.sizes.nbytes for each in (self.frames or {}).values() if each is not None)
        return _ENTRY_BYTES * entries + layouts + frames


class ChangelogFileReader:
    """Reads change sets out of one file, ours or Flink's. One thread.

    The footer is read once, on first use. Bytes that are not what they claim to be raise FormatError, which
    names neither the file nor the position: the caller adds them.
    """

    def __init__(
        self,
        ranges: RangeReader,
        *,
        footer_required: bool = False,
        known: ReadFooter | None = None,
        wanted_keys: WantedKeys | None = None,
        slices: int = 1,
    ) -> None:
        """Begin to read a file.

        Args:
            known: of the same file; what is missing in it is read, and put there.
            wanted_keys: of change sets with this number of `slices`, changes of other keys may be left out;
                `None`: none are.
        """
        self._ranges = ranges
        self._wanted_keys = wanted_keys
        self._slices = slices
        self._footer_required = footer_required
        self._known = known or ReadFooter()
        self._keeps_layouts = known is not None
        self._tail: bytes = b""
        self._tail_start = 0
        self._forward_at: tuple[int, _ForwardBody] | None = None

    @property
    def knows_footer(self) -> bool:
        """Whether the index need not be read."""
        return self._known.opened

    def index(self) -> FileIndex | None:
        """The index from the footer; None for a file without one (Flink's)."""
        if not self._known.opened:
            self._known.index = self._read_footer()
            self._known.opened = True
        return self._known.index

    @property
    def _required_index(self) -> FileIndex:
        assert self._known.index is not None
        return self._known.index

    def compression(self) -> Compression:
        if self._known.compression is None:
            self._known.compression = self._read_compression()
        return self._known.compression

    def _read_compression(self) -> Compression:
        index = self.index()
        flag = bytes(self._range(0, _FLAG_BYTES))
        # Flink knows only flag 1, and reads an empty file as a plain one.
        kind = Compression.SNAPPY if flag == b"\x01" else Compression.NONE
        if index is None:
            return kind
        if flag != bytes([index.compression.value]):
            raise FormatError("the flag byte of a changelog file does not match its footer")
        return index.compression

    def change_set(self, offset: int) -> DecodedChangeSet:
        """The change set at this offset of the body, verified as far as the file allows."""
        found = self.change_set_of(offset, None)
        assert found is not None
        return found

    def change_set_of(
        self, offset: int, key_groups: Sequence[KeyGroupRange] | None
    ) -> DecodedChangeSet | None:
        """The same, without some key groups where the footer says how to leave them out.

        `None`, without reading its bytes, if by the footer it has nothing that is wanted. `key_groups`: those
        wanted; `None`: all. Metadata is always wanted.
        """
        if self.index() is None:
            return decode_change_set(*self._walked(offset))
        entry = self._entry(offset)
        return self._indexed(entry, key_groups)

    def layout_ranges(self, offsets: Iterable[int]) -> list[tuple[int, int]]:
        """The reads of `stored_ranges` of these change sets, as (start, length); the file's end is read.

        Empty for a file without a footer.
        """
        if self.index() is None:
            return []
        blocks = [
            (entry.block_offset, entry.block_bytes)
            for entry in map(self._entry, offsets)
            if entry.block_offset is not None and entry.offset not in self._known.layouts
        ]
        blocks += self._table_place() if self._known.frames is None else []
        return [each for each in blocks if self._in_tail(*each) is None]

    def body_ranges(self, offsets: Iterable[int]) -> list[tuple[int, int]]:
        """Where these change sets are, as (start, length), for a file with a footer."""
        entries = map(self._entry, offsets)
        return [(entry.stored_offset, entry.stored_size) for entry in entries]

    def stored_ranges(
        self, wanted: Iterable[tuple[int, Sequence[KeyGroupRange] | None]]
    ) -> list[tuple[int, int]] | None:
        """The reads of `change_set_of`, called with each of `wanted` afterwards, as (start, length).

        Reads their layouts. `None` for a file without a footer, which is read forward.
        """
        if self.index() is None:
            return None
        needed: list[tuple[int, int]] = []
        for offset, key_groups in wanted:
            entry = self._entry(offset)
            layout = self._layout(entry)
            if layout is not None:
                self._known.layouts[offset] = layout
            if layout is not None and key_groups is not None and not has_any(layout, key_groups):
                continue
            part = self._part(entry, layout, key_groups)
            whole = [(0, entry.stored_size)]
            ranges = whole if part is None else part.stored_ranges()
            needed += [(entry.stored_offset + start, length) for start, length in ranges]
        flag = [(0, _FLAG_BYTES)] if needed and self._known.compression is None else []
        return [each for each in flag + needed if self._in_tail(*each) is None]

    def _entry(self, offset: int) -> ChangeSetEntry:
        entry = self._required_index.at_offset(offset)
        if entry is None:
            raise FormatError(f"no change set begins at offset {offset}")
        return entry

    def offsets(self) -> Iterator[int]:
        """The offset of each change set, in file order; walks the body if there is no footer."""
        index = self.index()
        if index is not None:
            yield from (entry.offset for entry in index.entries)
            return
        offset = 0
        while not self._forward(offset).at_end():
            yield offset
            _, layout = self._walked(offset)
            offset += layout.encoded_bytes

    def _read_footer(self) -> FileIndex | None:
        file_bytes = self._ranges.size_bytes()
        self._tail_start = max(0, file_bytes - _TAIL_BYTES)
        self._tail = bytes(self._ranges.read_range(self._tail_start, file_bytes - self._tail_start))
        trailer = decode_trailer(self._tail, file_bytes)
        if trailer is None:
            if self._footer_required:
                raise FormatError(
                    "a changelog file of this package ends without its footer: it was truncated or altered"
                )
            return None
        return decode_index(trailer, bytes(self._range(trailer.index_offset, trailer.index_bytes)))

    def _range(self, start: int, length: int) -> bytes | memoryview:
        found = self._in_tail(start, length)
        return self._ranges.read_range(start, length) if found is None else found

    def _in_tail(self, start: int, length: int) -> memoryview | None:
        first = start - self._tail_start
        if first < 0 or first + length > len(self._tail):
            return None
        return memoryview(self._tail)[first : first + length]

    def _layout(self, entry: ChangeSetEntry) -> ChangeSetLayout | None:
        """By its block; `None` if it has none."""
        known = self._known.layouts.get(entry.offset)
        if known is not None or entry.block_offset is None:
            return known
        layout = decode_block(entry, bytes(self._range(entry.block_offset, entry.block_bytes)))
        if self._keeps_layouts:
            self._known.layouts[entry.offset] = layout
        return layout

    def _indexed(
        self, entry: ChangeSetEntry, key_groups: Sequence[KeyGroupRange] | None
    ) -> DecodedChangeSet | None:
        layout = self._layout(entry)
        if not self._keeps_layouts:
            self._known.layouts.pop(entry.offset, None)  # each is asked for once
        if layout is not None and key_groups is not None and not has_any(layout, key_groups):
            return None
        self.compression()
        part = self._part(entry, layout, key_groups)
        if part is not None:
            return decode_change_set(self._body_of_part(entry, part), part.layout)
        body = self._body(entry)
        if crc32c(body) != entry.crc32c:
            raise FormatError("a change set does not match its checksum")
        if layout is None:
            _, layout, _ = walk_change_set(in_steps(bytes(body)))
        return decode_change_set(body, layout)

    def _part(
        self,
        entry: ChangeSetEntry,
        layout: ChangeSetLayout | None,
        key_groups: Sequence[KeyGroupRange] | None,
    ) -> ChangeSetPart | None:
        """How to read these key groups of a change set alone; `None`: it is read whole."""
        frames = None if layout is None or key_groups is None else self._frames_of(entry)
        if layout is None or key_groups is None or frames is None:
            return None
        layout.check(entry.size)
        return part_of(layout, frames, key_groups, self._wanted_keys, self._slices)

    def _frames_of(self, entry: ChangeSetEntry) -> Frames | None:
        if self._known.frames is None:
            entries = self._required_index.entries
            tables: Sequence[Frames | None] = [None] * len(entries)
            for start, length in self._table_place():
                sets = [(each.size, each.stored_size) for each in entries]
                tables = decode_frame_table(bytes(self._range(start, length)), sets)
            self._known.frames = {each.offset: found for each, found in zip(entries, tables, strict=True)}
        return self._known.frames[entry.offset]

    def _table_place(self) -> list[tuple[int, int]]:
        """Where the table of frames is, as (start, length); nowhere in a file without one."""
        end = self._required_index.frames_end
        if end is None:
            return []
        at = end - TABLE_END_BYTES
        length = TABLE_END_BYTES + (int.from_bytes(self._range(at, 4), "little") if at >= 0 else 0)
        if length > end:
            raise FormatError("the footer's frames are not where its trailer says")
        return [(end - length, length)]

    def _body_of_part(self, entry: ChangeSetEntry, part: ChangeSetPart) -> pa.Buffer:
        """A change set that has the part's changes alone, each frame of it verified."""
        compression, frames = self._required_index.compression, part.frames
        ends = frames.sizes.cumsum()
        kept = np.empty(part.layout.encoded_bytes, np.uint8)
        pieces = deque(part.pieces)
        for (first, stop), (start, length) in zip(part.runs, part.stored_ranges(), strict=True):
            stored = _whole(self._range(entry.stored_offset + start, length), length)
            run_start, run_end = int(ends[first] - frames.sizes[first]), int(ends[stop - 1])
            run = _verified_frames(compression, frames, first, stop, stored)
            octets = np.frombuffer(run, np.uint8)
            while pieces and pieces[0][1] <= run_end:
                piece_start, piece_end, at = pieces.popleft()
                piece = octets[piece_start - run_start : piece_end - run_start]
                kept[at : at + len(piece)] = piece
        part.layout.write_group_headers(kept)
        return pa.py_buffer(kept)

    def _body(self, entry: ChangeSetEntry) -> pa.Buffer:
        stored = _whole(self._range(entry.stored_offset, entry.stored_size), entry.stored_size)
        return decompressed_whole(self._required_index.compression, stored, entry.size)

    def _walked(self, offset: int) -> tuple[bytes, ChangeSetLayout]:
        source = self._forward(offset)
        # Dropped first: after an error the position of the source is unknown.
        self._forward_at = None
        body, layout, beyond = walk_change_set(source.read)
        source.give_back(beyond)
        self._forward_at = (offset + layout.encoded_bytes, source)
        return body, layout

    def _forward(self, offset: int) -> _ForwardBody:
        """The body from an offset on. Forward reads continue where the last one ended: a walk is linear."""
        if self._forward_at is None or self._forward_at[0] != offset:
            self._forward_at = (offset, _ForwardBody(self.compression(), self._ranges, offset))
        return self._forward_at[1]


def _whole(stored: bytes | memoryview, length: int) -> bytes | memoryview:
    if len(stored) != length:
        raise FormatError(f"a change set ends early: {length - len(stored)} bytes are missing")
    return stored


def _verified_frames(
    compression: Compression, frames: Frames, first: int, stop: int, stored: bytes | memoryview
) -> pa.Buffer:
    """The bytes of the frames `[first, stop)`, which are end to end in `stored`.

    Raises: FormatError if one does not match its checksum.
    """
    sizes = frames.sizes[first:stop]
    body = decompressed_whole(compression, stored, int(sizes.sum()))
    octets = memoryview(body).cast("B")
    bounds = pairwise([0, *sizes.cumsum().tolist()])
    for (start, end), crc in zip(bounds, frames.crc32cs[first:stop].tolist(), strict=True):
        if crc32c(octets[start:end]) != crc:
            raise FormatError("a frame of a change set does not match its checksum")
    return body


class _ForwardBody:
    """The body from an offset on, for files without an index: read forward, decompressed on the way."""

    def __init__(self, compression: Compression, ranges: RangeReader, offset: int) -> None:
        self._ranges = ranges
        self._position = _FLAG_BYTES
        self._pieces: Iterator[bytes] | None = None
        self._left = b""
        if compression is Compression.NONE:
            # In a plain body nothing before the offset has to be read.
            self._position += offset
        else:
            self._pieces = decompressed(compression, self._read_stored)
            self._skip(offset)

    def _read_stored(self, size: int) -> bytes:
        piece = bytes(self._ranges.read_range(self._position, size))
        self._position += len(piece)
        return piece

    def _skip(self, byte_count: int) -> None:
        while byte_count > 0:
            piece = self._next_piece()
            if not piece:
                raise FormatError(f"the body ends {byte_count} bytes before the offset")
            self._left = piece[byte_count:]
            byte_count -= len(piece)

    def _next_piece(self) -> bytes:
        if self._pieces is None:
            return self._read_stored(_FORWARD_READ_BYTES)
        # A frame may be empty; the body ends only where the frames end.
        return next((piece for piece in self._pieces if piece), b"")

    def read(self, size: int) -> bytes:
        if not self._left:
            self._left = self._next_piece()
        piece, self._left = self._left[:size], self._left[size:]
        return piece

    def give_back(self, beyond: bytes) -> None:
        """Unread bytes: they are returned first by the next `read`."""
        self._left = beyond + self._left

    def at_end(self) -> bool:
        if not self._left:
            self._left = self._next_piece()
        return not self._left
