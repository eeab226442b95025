"""A whole changelog file: what to write, piece by piece, and how to find and verify a change set in one.

Owns the order of a file's parts. Does not own where the bytes go or come from: the writer hands pieces
out, the reader takes ranges from any `ByteRanges`.

    file := flag (1 byte: 0 plain, 1 Snappy frames, 2 Zstandard frames), body, footer

Without the footer this is Flink's file. An offset in a handle counts bytes of the uncompressed body, after
the flag; so does a file's size.

Source: Flink's `OutputStreamWithPos`, `StateChangeFormat` and `ChangelogStreamHandleReader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, Protocol

import google_crc32c
import pyarrow as pa

from dstl_dagster.errors import FormatError, InvalidInputError
from dstl_dagster.format import crc32c
from dstl_dagster.format.change_set_codec import (
    ChangeSetLayout,
    DecodedChangeSet,
    decode_change_set,
    walk_change_set,
)
from dstl_dagster.format.change_set_encoding import encoded_chunks, plan_change_set
from dstl_dagster.format.changes import META_KEY_GROUP, ChangeColumns, StateChangeSet
from dstl_dagster.format.compression import (
    Compression,
    compressed,
    decompressed,
    decompressed_at_once,
    hidden_frame_header,
    stream_header,
)
from dstl_dagster.format.footer import (
    MAX_CHANGE_SETS_PER_FILE,
    ChangeSetEntry,
    FileIndex,
    decode_block,
    decode_index,
    decode_trailer,
    encode_block,
    encode_index_and_trailer,
    index_and_trailer_bytes,
)
from dstl_dagster.format.key_groups import KeyGroupRange

__all__ = ["ByteRanges", "ChangelogFileEncoder", "ChangelogFileReader"]

_FLAG_BYTES: Final = 1
_TAIL_BYTES: Final = 1 << 16
_FORWARD_READ_BYTES: Final = 1 << 20


class ChangelogFileEncoder:
    """Turns change sets into the pieces of one file. One thread; `footer()` ends it.

    Every piece must be written, in the order given, before the next is asked for.
    """

    def __init__(self, compression: Compression, chunk_bytes: int) -> None:
        self._compression = compression
        self._chunk_bytes = chunk_bytes
        self._entries: list[ChangeSetEntry] = []
        self._layouts: list[ChangeSetLayout] = []
        self._stored_bytes = 0
        self.body_size = 0
        self.crc32c = crc32c.EMPTY_CRC32C
        """Of all pieces so far: who stores them need not look at every byte again."""

    def header(self) -> bytes:
        """What begins the file. Ask for it first."""
        header = bytes([self._compression.value]) + stream_header(self._compression)
        self._count(header)
        return header

    def change_set(self, change_set: StateChangeSet) -> Iterator[memoryview]:
        """The frames of one change set, of about the chunk size each. Walk it to its end."""
        if len(self._entries) == MAX_CHANGE_SETS_PER_FILE:
            raise InvalidInputError(
                f"a changelog file takes {MAX_CHANGE_SETS_PER_FILE} change sets: begin another"
            )
        columns = change_set.changes
        assert isinstance(columns, ChangeColumns)
        plan = plan_change_set(columns)
        offset, stored_offset, crc_before = self.body_size, self._stored_bytes, self.crc32c
        body_crc = crc32c.EMPTY_CRC32C
        for chunk in encoded_chunks(plan, self._chunk_bytes):
            piece = compressed(self._compression, chunk)
            if self._compression is not Compression.NONE:
                body_crc = google_crc32c.extend(body_crc, chunk)
            self.body_size += chunk.size
            self._count(piece)
            yield piece
        if self._compression is Compression.NONE:
            # What is stored is the body: its checksum follows from the file's.
            body_crc = crc32c.of_second(crc_before, self.crc32c, self.body_size - offset)
        self._layouts.append(plan.layout)
        self._entries.append(
            ChangeSetEntry(
                log_id=change_set.log_id,
                sequence_number=change_set.sequence_number,
                offset=offset,
                size=self.body_size - offset,
                payload_bytes=change_set.size,
                stored_offset=stored_offset,
                stored_size=self._stored_bytes - stored_offset,
                block_offset=None,
                group_count=len(plan.layout.key_groups),
                change_count=len(plan.layout.lengths),
                crc32c=body_crc,
                block_crc32c=0,
            )
        )

    def footer(self) -> Iterator[bytes]:
        """What ends the file."""
        finished = []
        for entry, layout in zip(self._entries, self._layouts, strict=True):
            block = encode_block(layout)
            header = hidden_frame_header(self._compression, len(block))
            if header is None:
                # Too long for one hidden frame: readers walk this set instead.
                finished.append(entry)
                continue
            block_offset = self._stored_bytes + len(header)
            finished.append(
                replace(entry, block_offset=block_offset, block_crc32c=google_crc32c.value(block))
            )
            self._count(header + block)
            yield header + block
        index = FileIndex(self._compression, self.body_size, tuple(finished))
        size_bytes = index_and_trailer_bytes(len(finished))
        header = hidden_frame_header(self._compression, size_bytes)
        assert header is not None, "MAX_CHANGE_SETS_PER_FILE keeps the index within one hidden frame"
        end = header + encode_index_and_trailer(index, self._stored_bytes + len(header))
        self._count(end)
        yield end

    def _count(self, piece: bytes | memoryview) -> None:
        self._stored_bytes += len(piece)
        self.crc32c = crc32c.extend(self.crc32c, piece)


class ByteRanges(Protocol):
    """A file that can be read in any place."""

    def size_bytes(self) -> int:
        """How long the file is."""
        ...

    def read_range(self, start: int, length: int) -> bytes | memoryview:
        """Bytes `[start, start+length)`; fewer only where the file ends."""
        ...


class ChangelogFileReader:
    """Reads change sets out of one file, ours or Flink's. One thread.

    The footer is read once, at the first need. FormatError, naming neither file nor place (the caller
    does), for bytes that are not what they claim to be.
    """

    def __init__(self, ranges: ByteRanges, *, footer_required: bool = False) -> None:
        self._ranges = ranges
        self._footer_required = footer_required
        self._opened = False
        self._index: FileIndex | None = None
        self._tail: bytes = b""
        self._tail_start = 0
        self._forward_at: tuple[int, _ForwardBody] | None = None

    def index(self) -> FileIndex | None:
        """What the footer says; None for a file without one (Flink's)."""
        if not self._opened:
            self._read_footer()
            self._opened = True
        return self._index

    def compression(self) -> Compression:
        """The kind of the body."""
        index = self.index()
        flag = bytes(self._range(0, _FLAG_BYTES))
        # Flink knows no other flag than 1, and takes an empty file for a plain one.
        kind = Compression.SNAPPY if flag == b"\x01" else Compression.NONE
        if index is None:
            return kind
        if flag != bytes([index.compression.value]):
            raise FormatError("the flag byte of a changelog file is not the one its footer names")
        return index.compression

    def change_set(self, offset: int) -> DecodedChangeSet:
        """The change set that begins at this offset of the body, verified as far as the file allows."""
        found = self.change_set_of(offset, None)
        assert found is not None
        return found

    def change_set_of(self, offset: int, key_groups: KeyGroupRange | None) -> DecodedChangeSet | None:
        """The same; `None`, and its bytes are not read, where the footer shows that it has nothing wanted.

        `key_groups`: those wanted; `None`: all. Metadata is always wanted.
        """
        index = self.index()
        if index is None:
            return decode_change_set(*self._walked(offset))
        entry = index.at_offset(offset)
        if entry is None:
            raise FormatError(f"no change set begins at offset {offset}")
        self.compression()
        return self._indexed(entry, key_groups)

    def offsets(self) -> Iterator[int]:
        """Where each change set begins, in the order of the file; walks the body where there is no footer."""
        index = self.index()
        if index is not None:
            yield from (entry.offset for entry in index.entries)
            return
        offset = 0
        while not self._forward(offset).at_end():
            yield offset
            _, layout = self._walked(offset)
            offset += layout.encoded_bytes

    def _read_footer(self) -> None:
        file_bytes = self._ranges.size_bytes()
        self._tail_start = max(0, file_bytes - _TAIL_BYTES)
        self._tail = bytes(self._ranges.read_range(self._tail_start, file_bytes - self._tail_start))
        trailer = decode_trailer(self._tail, file_bytes)
        if trailer is None:
            if self._footer_required:
                raise FormatError(
                    "a changelog file of this package ends without its footer: it was cut or altered"
                )
            return
        self._index = decode_index(trailer, bytes(self._range(trailer.index_offset, trailer.index_bytes)))

    def _range(self, start: int, length: int) -> bytes | memoryview:
        if start >= self._tail_start and start + length <= self._tail_start + len(self._tail):
            return memoryview(self._tail)[start - self._tail_start : start - self._tail_start + length]
        return self._ranges.read_range(start, length)

    def _indexed(self, entry: ChangeSetEntry, key_groups: KeyGroupRange | None) -> DecodedChangeSet | None:
        layout: ChangeSetLayout | None = None
        if entry.block_offset is not None:
            layout = decode_block(entry, bytes(self._range(entry.block_offset, entry.block_bytes)))
            if key_groups is not None and not _has_any(layout, key_groups):
                return None
        stored = self._range(entry.stored_offset, entry.stored_size)
        if len(stored) != entry.stored_size:
            raise FormatError(f"a change set ends early: {entry.stored_size - len(stored)} bytes are missing")
        assert self._index is not None
        body = _body_of(self._index.compression, stored, entry.size)
        if google_crc32c.value(body) != entry.crc32c:
            raise FormatError("a change set does not have its checksum", kind="checksum")
        if layout is None:
            _, layout, _ = walk_change_set(_once(bytes(body)))
        return decode_change_set(body, layout)

    def _walked(self, offset: int) -> tuple[bytes, ChangeSetLayout]:
        source = self._forward(offset)
        # Dropped first: after an error nobody knows where the source stands.
        self._forward_at = None
        body, layout, beyond = walk_change_set(source.read)
        source.give_back(beyond)
        self._forward_at = (offset + layout.encoded_bytes, source)
        return body, layout

    def _forward(self, offset: int) -> _ForwardBody:
        """The body from an offset on. Reading forward goes on where it stands, so that a walk is linear."""
        if self._forward_at is None or self._forward_at[0] != offset:
            self._forward_at = (offset, _ForwardBody(self.compression(), self._ranges, offset))
        return self._forward_at[1]


def _has_any(layout: ChangeSetLayout, key_groups: KeyGroupRange) -> bool:
    """Whether a change set has metadata or one of these key groups."""
    found = layout.key_groups
    inside = (found >= key_groups.start_key_group) & (found <= key_groups.end_key_group)
    return bool((inside | (found == META_KEY_GROUP)).any())


def _body_of(compression: Compression, stored: bytes | memoryview, size: int) -> pa.Buffer:
    if compression is Compression.NONE:
        return pa.py_buffer(stored)
    whole = decompressed_at_once(compression, stored, size)
    if whole is not None:
        return whole
    pieces: list[bytes] = []
    missing = size
    for piece in decompressed(compression, _once(bytes(stored))):
        pieces.append(piece)
        missing -= len(piece)
        if missing < 0:
            break
    if missing != 0:
        raise FormatError(f"the frames of a change set do not hold the {size} bytes recorded for it")
    return pa.py_buffer(b"".join(pieces))


def _once(content: bytes) -> Callable[[int], bytes]:
    view = memoryview(content)
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        piece = bytes(view[at : at + size])
        at += len(piece)
        return piece

    return read


class _ForwardBody:
    """The body from an offset on, for files without an index: read forward, decompressed on the way."""

    def __init__(self, compression: Compression, ranges: ByteRanges, offset: int) -> None:
        self._ranges = ranges
        self._position = _FLAG_BYTES
        self._pieces: Iterator[bytes] | None = None
        self._left = b""
        if compression is Compression.NONE:
            # A plain body needs no reading of what stands before.
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
        # A frame may be empty; only the end of the frames is the end.
        return next((piece for piece in self._pieces if piece), b"")

    def read(self, size: int) -> bytes:
        if not self._left:
            self._left = self._next_piece()
        piece, self._left = self._left[:size], self._left[size:]
        return piece

    def give_back(self, beyond: bytes) -> None:
        """What a reader took too much of comes first again."""
        self._left = beyond + self._left

    def at_end(self) -> bool:
        if not self._left:
            self._left = self._next_piece()
        return not self._left
