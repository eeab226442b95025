"""Encodes a whole changelog file, piece by piece. `changelog_file` documents its layout, and reads it.

Owns the order of a file's parts. Does not own where the bytes go: the caller writes the pieces.

Source: Flink's `OutputStreamWithPos` and `StateChangeFormat`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

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


_Frame = tuple[int, int, int]
"""Size, stored size and CRC-32C, as `Frames.of` takes them."""


class _Body(NamedTuple):
    """A change set in the file.

    Attributes:
        frames: at least one. Their checksums are missing where `running` has them.
        running: the file's checksum before the first frame and after each, where the frames' bytes are
            stored as they are.
    """

    frames: list[_Frame]
    running: list[int]


def _summed(bodies: Sequence[_Body]) -> Iterator[tuple[int, Frames | None]]:
    """The checksum of each change set, and its frames with theirs if it has several.

    Of bytes that are stored as they are, both follow from the file's own: of all at once, as that is quicker.
    """
    spans = []
    for frames, running in bodies:
        if len(running) > 1:
            sizes = [size for size, _, _ in frames]
            spans.append((running[0], running[-1], sum(sizes)))
            if len(sizes) > 1:
                spans += zip(running[:-1], running[1:], sizes, strict=True)
    found = iter(crc32c.of_seconds(spans))
    for frames, running in bodies:
        if len(running) > 1:
            body_crc = next(found)
            if len(frames) > 1:
                frames = [(size, stored, next(found)) for size, stored, _ in frames]
        elif len(frames) > 1:
            body_crc, _ = crc32c.combine_all((crc, size) for size, _, crc in frames)
        else:
            ((_, _, body_crc),) = frames
        yield body_crc, Frames.of(frames) if len(frames) > 1 else None


class ChangelogFileEncoder:
    """Turns change sets into the pieces of one file. One thread; `footer()` ends it.

    Every piece must be written, in the order given, before the next is asked for.
    """

    def __init__(self, compression: Compression, chunk_bytes: int) -> None:
        self._compression = compression
        self._chunk_bytes = chunk_bytes
        self._entries: list[ChangeSetEntry] = []
        self._blocks: list[bytes] = []
        self._bodies: list[_Body] = []
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
        body = _Body([], [self.crc32c])
        for chunk in encoded_chunks(plan, self._chunk_bytes):
            self.body_size += chunk.size
            if self._compression is Compression.NONE:
                piece = memoryview(chunk)
                self._count(piece)
                body.running.append(self.crc32c)
                body.frames.append((chunk.size, chunk.size, 0))
            else:
                piece = memoryview(b"".join(self._compressed(chunk, body.frames)))
                self._count(piece)
            yield piece
        self._bodies.append(body)
        self._blocks.append(encode_block(plan.layout))
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
                crc32c=0,  # and that of its block: at the end of the file
                block_crc32c=0,
            )
        )

    def _compressed(self, chunk: pa.Buffer, frames: list[_Frame]) -> Iterator[memoryview]:
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
        sums = list(_summed(self._bodies))
        for entry, block, (body_crc, _) in zip(self._entries, self._blocks, sums, strict=True):
            header = skippable_frame_header(self._compression, len(block))
            if header is None:
                # Too long for one skippable frame: readers walk this set instead.
                finished.append(replace(entry, crc32c=body_crc))
                continue
            yield header
            yield block
            at += len(header)
            block_crc = crc32c.crc32c(block)
            finished.append(replace(entry, crc32c=body_crc, block_offset=at, block_crc32c=block_crc))
            at += len(block)
        yield self._end(finished, [frames for _, frames in sums], at)

    def _end(self, entries: list[ChangeSetEntry], frames: list[Frames | None], at: int) -> bytes:
        """The last frame of the file, which begins at `at`: the table of frames, the index, the trailer."""
        index = FileIndex(self._compression, self.body_size, tuple(entries))
        index_bytes = index_and_trailer_bytes(len(entries))
        table_bytes = frame_table_bytes(frames) if any(frames) else 0
        header = skippable_frame_header(self._compression, table_bytes + index_bytes)
        if header is None or not table_bytes:
            header = skippable_frame_header(self._compression, index_bytes)
            assert header is not None, "MAX_CHANGE_SETS_PER_FILE keeps the index within one skippable frame"
            return header + encode_index_and_trailer(index, at + len(header))
        index_at = at + len(header) + table_bytes
        with_frames = replace(index, frames_end=index_at)
        table = encode_frame_table(frames)
        return header + table + encode_index_and_trailer(with_frames, index_at)

    def _count(self, piece: bytes | memoryview) -> None:
        self._stored_bytes += len(piece)
        self.crc32c = crc32c.extend(self.crc32c, piece)
