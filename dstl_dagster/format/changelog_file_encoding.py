"""Encodes a whole changelog file, piece by piece. `changelog_file` documents its layout, and reads it.

Owns the order of a file's parts. Does not own where the bytes go: the caller writes the pieces.

Source: Flink's `OutputStreamWithPos` and `StateChangeFormat`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import crc32c
from dstl_dagster.format.change_set_encoding import encoded_chunks, plan_change_set
from dstl_dagster.format.changes import ChangeColumns, StateChangeSet
from dstl_dagster.format.compression import (
    FRAME_BYTES,
    Compression,
    compressed,
    skippable_frame_header,
    stream_header,
)
from dstl_dagster.format.footer import (
    MAX_CHANGE_SETS_PER_FILE,
    ChangeSetEntry,
    FileIndex,
    encode_block,
    encode_index_and_trailer,
    index_and_trailer_bytes,
)
from dstl_dagster.format.frames import Frames, encode_frame_table, frame_table_bytes

__all__ = ["ChangelogFileEncoder"]


class ChangelogFileEncoder:
    """Turns change sets into the pieces of one file. One thread; `footer()` ends it.

    Every piece must be written, in the order given, before the next is asked for.
    """

    def __init__(self, compression: Compression, chunk_bytes: int) -> None:
        self._compression = compression
        self._chunk_bytes = chunk_bytes
        self._entries: list[Callable[..., ChangeSetEntry]] = []
        """Each lacks the place and checksum of its block."""
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
