"""A changelog file in the store, read in ranges.

Owns how many requests that costs. Does not own a file on this machine (`storage.FileRanges`), nor what the
bytes mean (`format.changelog_file`).
"""

from __future__ import annotations

from typing import Final

from dstl_dagster.errors import FormatError, NotFoundError
from dstl_dagster.format.crc32c import crc32c
from dstl_dagster.format.handles import StreamStateHandle
from dstl_dagster.storage import ObjectStore, RangeReader, open_ranges

__all__ = ["StoreSource"]

_WHOLE_FILE_BYTES: Final = 8 << 20
"""Up to this size one request fetches the file: cheaper than its end and its sets, one by one."""


class StoreSource:
    """An object of the store, of the handle's generation where it names one."""

    def __init__(self, store: ObjectStore, handle: StreamStateHandle) -> None:
        self._store = store
        self._handle = handle
        self._size_bytes = handle.stored_bytes
        self._whole: memoryview | None = None
        self._opened: RangeReader | None = None

    @property
    def place(self) -> str:
        return self._store.uri_of(self._handle.name)

    def size_bytes(self) -> int:
        if self._size_bytes is None:
            stat = self._store.stat(self._handle.name, generation=self._handle.generation)
            if stat is None:
                raise NotFoundError(
                    f"changelog file {self.place} is not there: it was deleted, "
                    "or its checkpoint was subsumed"
                )
            self._size_bytes = stat.size
        return self._size_bytes

    def read_range(self, start: int, length: int) -> bytes | memoryview:
        whole = self._small_file()
        return self._fetch(start, length) if whole is None else whole[start : start + length]

    def read_summed(self, start: int, length: int) -> tuple[bytes | memoryview, int]:
        opened = None if self._small_file() is not None else self._ranges()
        if opened is not None:
            return opened.read_summed(start, length)
        octets = self.read_range(start, length)
        return octets, crc32c(octets)

    def _small_file(self) -> memoryview | None:
        """The whole file, where it is small enough for one request; `None` otherwise."""
        if self._whole is None and self.size_bytes() <= _WHOLE_FILE_BYTES:
            self._whole = memoryview(self._fetch_whole())
            if len(self._whole) != self._size_bytes:
                raise FormatError(
                    f"{self.place} has {len(self._whole)} bytes, its handle says {self._size_bytes}"
                )
        return self._whole

    def _ranges(self) -> RangeReader | None:
        """The object kept open, where the store declares that."""
        if self._opened is None:
            self._opened = open_ranges(self._store, self._handle.name, generation=self._handle.generation)
        return self._opened

    def _fetch(self, start: int, length: int) -> bytes | memoryview:
        opened = self._ranges()
        if opened is not None:
            return opened.read_range(start, length)
        return self._get_range(start, length)

    def _get_range(self, start: int, length: int) -> bytes | memoryview:
        return self._store.get_range(self._handle.name, start, length, generation=self._handle.generation)

    def _fetch_whole(self) -> bytes | memoryview:
        if self._handle.stored_bytes is None:
            return self._store.get(self._handle.name, generation=self._handle.generation)
        # This package's files prove each of their parts: the store need not checksum the whole as well.
        # And nothing is read after it: kept open, the object would cost one request more.
        return self._get_range(0, self.size_bytes())

    def close(self) -> None:
        self._whole = None
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()
