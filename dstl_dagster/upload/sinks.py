"""Where the pieces of one changelog file go: one object in the store, and optionally a local copy.

Owns the choice between one put and a stream, reading back after a lost answer, and dropping a local copy.
Does not own what the pieces are, nor retries.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from dstl_dagster.format.handles import LocalStateHandle
from dstl_dagster.storage import (
    ABSENT,
    WRITER_ID_KEY,
    Expected,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    put_own,
    summed_write,
    write_own,
)

_logger = logging.getLogger(__name__)

_CHUNK_STEP_BYTES: Final = 256 * 1024


class Piece(NamedTuple):
    """Some bytes of a file, in the order they come.

    Attributes:
        octets: held by reference; they must not change.
        crc32c: of the file up to and including them.
    """

    octets: bytes | memoryview
    crc32c: int


class ObjectSink:
    """One new object: one put up to `buffer_bytes`, a stream above."""

    def __init__(self, store: ObjectStore, name: str, writer_id: str, buffer_bytes: int) -> None:
        self._store = store
        self._name = name
        self._writer_id = writer_id
        self._buffer_bytes = buffer_bytes
        self._pieces: list[Piece] = []
        self._writer: ObjectWriter | None = None
        self._write_summed: Callable[[bytes | memoryview, int], int] | None = None
        self._size_bytes = 0
        self.has_sent = False
        """Whether any request was sent: before that, no object can exist."""

    def write(self, piece: Piece) -> None:
        """Append a piece."""
        self._size_bytes += len(piece.octets)
        if self._write_summed is not None:
            self._write_summed(piece.octets, piece.crc32c)
            return
        self._pieces.append(piece)
        if self._size_bytes > self._buffer_bytes:
            self._begin_stream()

    def _begin_stream(self) -> None:
        self.has_sent = True
        chunk_size = max(1, self._buffer_bytes // _CHUNK_STEP_BYTES) * _CHUNK_STEP_BYTES
        self._writer = self._store.open_write(
            self._name,
            precondition=ABSENT,
            metadata={WRITER_ID_KEY: self._writer_id},
            chunk_size=chunk_size,
        )
        self._write_summed = summed_write(self._store, self._writer)
        for kept in self._pieces:
            self._write_summed(kept.octets, kept.crc32c)
        self._pieces.clear()

    def close(self) -> ObjectStat:
        """Make the object durable. As `ObjectWriter.close`; a lost answer has been read back."""
        self.has_sent = True
        if self._writer is None:
            payload = b"".join(piece.octets for piece in self._pieces)
            return put_own(self._store, self._name, payload, writer_id=self._writer_id)
        expected = Expected({WRITER_ID_KEY: self._writer_id}, self._size_bytes)
        return write_own(self._store, self._name, expected, self._writer.close)

    def abort(self) -> None:
        """Give up. Never raises."""
        self._pieces.clear()
        if self._writer is not None:
            self._writer.abort()


class LocalCopySink:
    """The same bytes on this machine's disk. Its errors never fail the upload; there is no copy then.

    A copy appears under its name only when it is whole; it is not synced: a crash may lose it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".part")
        self._file: BinaryIO | None = None
        self.failed = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._partial.open("xb", buffering=0)
        except OSError:
            self._give_up()

    def write(self, piece: Piece) -> None:
        """Append a piece."""
        if self._file is None:
            return
        try:
            view = memoryview(piece.octets)
            while len(view) > 0:
                view = view[self._file.write(view) :]
        except OSError:
            self._give_up()

    def close(self, size: int | None, stored_bytes: int) -> LocalStateHandle | None:
        """Publish the copy under its name; None where it was given up."""
        if self._file is None:
            return None
        try:
            self._file.close()
            os.replace(self._partial, self._path)  # noqa: PTH105 - the same as Path.replace, with the error of the OS
        except OSError:
            self._give_up()
            return None
        return LocalStateHandle(str(self._path), size, stored_bytes=stored_bytes)

    def _give_up(self) -> None:
        _logger.warning("local copy %s of a changelog file was given up", self._path, exc_info=True)
        self.failed = True
        self.abort()

    def abort(self) -> None:
        """Drop the copy; this does not count as a failure."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
            with suppress(OSError):
                self._partial.unlink(missing_ok=True)
