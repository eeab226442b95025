"""Ranges of an open local file, large ones into Arrow's memory pool.

Owns these reads. Does not own the file, nor what its bytes are compared with.

The pool reuses pages. Fresh ones, which a large `bytes` always takes, cost several times the read itself.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dstl_dagster.concurrency import Closing
from dstl_dagster.errors import ClosedError

_POOLED_BYTES = 1 << 20
"""From this size on the pool pays off."""


class FileRanges(Closing):
    """A `RangeReader` on a local file, open from the start. OSError where it cannot be read.

    Args:
        path: of a file that is open already, its name in errors.
        descriptor: the file, if it is open already; closed with this.
    """

    def __init__(self, path: Path | str, descriptor: int | None = None) -> None:
        self._path = path
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._descriptor: int | None = descriptor

    @property
    def place(self) -> str:
        """The file's path, or name."""
        return str(self._path)

    def status(self) -> os.stat_result:
        return os.fstat(self._opened())

    def size_bytes(self) -> int:
        return self.status().st_size

    def read_range(self, start: int, length: int) -> bytes | memoryview:
        """Up to `length` bytes from `start`, shorter where the file ends."""
        if length < _POOLED_BYTES:
            return os.pread(self._opened(), length, start)
        import pyarrow as pa  # not needed for small objects

        descriptor = self._opened()
        left = max(0, self.size_bytes() - start)
        # Arrow's own view is of signed bytes.
        room = memoryview(pa.allocate_buffer(min(length, left))).cast("B")
        done = 0
        while done < len(room):
            count = os.preadv(descriptor, [room[done:]], start + done)
            if not count:
                break  # the file has become shorter
            done += count
        return room[:done].toreadonly()

    def _opened(self) -> int:
        if self._descriptor is None:
            raise ClosedError(f"{self._path} was closed; open it again to read it")
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):  # it is closed all the same, and the bytes that were read are right
                os.close(descriptor)
