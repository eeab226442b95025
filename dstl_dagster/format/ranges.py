"""A file that is read in ranges, wherever it is: an open object, an object in a store, a local file.

Owns the protocol, because the reader of a changelog file needs it. Does not own any implementation.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["RangeReader"]


class RangeReader(Protocol):
    """Ranges of an immutable file. One thread at a time."""

    @property
    def place(self) -> str:
        """The file's name for an error message."""
        ...

    def size_bytes(self) -> int:
        """The length of the file."""
        ...

    def read_range(self, start: int, length: int) -> bytes | memoryview:
        """Bytes `[start, start+length)`; fewer only at the end of the file."""
        ...

    def read_summed(self, start: int, length: int) -> tuple[bytes | memoryview, int]:
        """The same bytes and their CRC-32C, computed while they are in the CPU cache."""
        ...

    def close(self) -> None:
        """Release the file. May be called again."""
        ...
