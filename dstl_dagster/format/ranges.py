"""A file that is read in ranges, wherever it lies: an object kept open, an object of a store, a local file.

Owns the protocol, because the reader of a changelog file needs it. Does not own any implementation.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["RangeReader"]


class RangeReader(Protocol):
    """Ranges of bytes that do not change. One thread at a time."""

    @property
    def place(self) -> str:
        """The file's name for an error message."""
        ...

    def size_bytes(self) -> int:
        """The length of the file."""
        ...

    def read_range(self, start: int, length: int) -> bytes | memoryview:
        """Bytes `[start, start+length)`; fewer only where the file ends."""
        ...

    def read_summed(self, start: int, length: int) -> tuple[bytes | memoryview, int]:
        """The same bytes and their CRC-32C, computed while they are in the processor's cache."""
        ...

    def close(self) -> None:
        """Release the file. May be called again."""
        ...
