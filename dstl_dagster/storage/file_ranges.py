"""Ranges of an open local file, large ones into memory of Arrow's pool, and their checksum on the way.

Owns these reads. Does not own whose file it is, nor what a checksum is compared with.

The pool gives pages again that were used before; fresh ones, as a large `bytes` always has them, cost several
times the read itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from dstl_dagster.format.crc32c import EMPTY_CRC32C, crc32c, extend

__all__ = ["read_range", "read_summed"]

_POOLED_BYTES = 1 << 20
"""From so many bytes on the pool pays."""

_STEP_BYTES = 1 << 20
"""What is read at a time where each byte is looked at again: it is near then."""


def read_range(descriptor: int, start: int, length: int) -> bytes | memoryview:
    """Up to `length` bytes from `start`, shorter where the file ends. Raises: OSError."""
    if length < _POOLED_BYTES:
        return os.pread(descriptor, length, start)
    pooled = _room(descriptor, start, length)
    done = 0
    for count in _steps(descriptor, start, pooled, len(pooled)):
        done += count
    return pooled[:done].toreadonly()


def read_summed(descriptor: int, start: int, length: int) -> tuple[bytes | memoryview, int]:
    """The same, and the CRC-32C of what was read."""
    if length < _POOLED_BYTES:
        octets = os.pread(descriptor, length, start)
        return octets, crc32c(octets)
    pooled = _room(descriptor, start, length)
    done, crc = 0, EMPTY_CRC32C
    for count in _steps(descriptor, start, pooled, _STEP_BYTES):
        crc = extend(crc, pooled[done : done + count])
        done += count
    return pooled[:done].toreadonly(), crc


def _room(descriptor: int, start: int, length: int) -> memoryview:
    import pyarrow as pa  # a store of small objects needs none of it

    left = max(0, os.fstat(descriptor).st_size - start)
    return memoryview(pa.allocate_buffer(min(length, left))).cast("B")  # its own are signed


def _steps(descriptor: int, start: int, room: memoryview, step_bytes: int) -> Iterator[int]:
    """Fill the room; how many bytes each step read. Ends early where the file does."""
    done = 0
    while done < len(room):
        count = os.preadv(descriptor, [room[done : done + step_bytes]], start + done)
        if not count:
            return
        yield count
        done += count
