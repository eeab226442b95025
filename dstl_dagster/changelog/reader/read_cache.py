"""A cache of the parts read of changelog files, for later readers. A part is verified before it is cached.

Owns what of a file is in memory. Does not own the files on disk (`disk_cache`), nor verifying a part of a
file, which its reader does (`nearest_copy`).

Files never change, so a cached part stays right. It has to match: a whole file, the checksum in its handle; a
range, the checksums of the change sets in it; a footer, its own. Nothing is cached of a file whose handle has
no checksum, except on disk for the length of one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from contextlib import closing
from dataclasses import dataclass
from typing import Final, TypeVar

from dstl_dagster.changelog.reader.disk_cache import DiskCache
from dstl_dagster.changelog.reader.read_plan import WHOLE_FILE_BYTES
from dstl_dagster.changelog.reader.stored_file import Ranges, StoredFile, bound_again
from dstl_dagster.concurrency import Closing, Memory
from dstl_dagster.errors import FormatError, NotFoundError
from dstl_dagster.format.changelog_file.reader import ReadFooter
from dstl_dagster.format.crc32c import EMPTY_CRC32C, extend
from dstl_dagster.format.handles import StreamStateHandle
from dstl_dagster.settings.changelog import FsStateChangelogOptions
from dstl_dagster.storage import ObjectStore, RangeReader, read_parts

_MEMORY_BYTES: Final = 64 << 20

T = TypeVar("T")


class ReadCache(Closing):
    """Small files, ranges and footers in memory; with a disk, whole files of any length there. Any thread.

    A forked child begins with an empty one. A store on this machine is not cached.

    Args:
        memory_bytes: of all that is cached in memory; 0: nothing is.
        disk: closed with the cache.
    """

    def __init__(self, memory_bytes: int = _MEMORY_BYTES, disk: DiskCache | None = None) -> None:
        self._memory = Memory(memory_bytes)
        self._disk = disk

    def with_disk(self, options: FsStateChangelogOptions) -> ReadCache:
        """The same memory beside a disk of its own: for several passes over the same files."""
        idle = options.cache_idle_timeout.total_seconds()
        other = ReadCache(0, DiskCache(None, idle, options.max_cache_bytes))
        other._memory = self._memory
        return other

    def open(self, store: ObjectStore, stream: StreamStateHandle) -> RangeReader | None:
        """The whole file, from memory or disk, fetched if need be; `None` if it goes to neither.

        Raises: NotFoundError; FormatError if it does not match its handle, also asked for once more;
        UnavailableError.
        """
        if store.capabilities.is_local:
            return None
        key = _key(store, stream)
        with self._memory.one_at_a_time(key):
            octets = self._memory.find(key)
            if octets is None and self._disk is not None:
                source = self._disk.find(key)
                if source is not None:
                    return source
            if octets is None and self._is_small(stream):
                octets = _twice(lambda: _all_of(store, stream))
                self._memory.keep(key, octets, len(octets))
            if octets is not None:
                return _HeldFile(store.uri_of(stream.name), octets)
            if self._disk is None:
                return None
            size_bytes = StoredFile(store, stream).size_bytes()
            disk, place = self._disk, store.uri_of(stream.name)
            return _twice(lambda: disk.keep(key, place, size_bytes, pieces_of(store, stream, size_bytes)))

    def _is_small(self, stream: StreamStateHandle) -> bool:
        largest = min(WHOLE_FILE_BYTES, self._memory.largest)
        return _is_provable(stream) and (stream.stored_bytes or 0) <= largest

    def footer(self, store: ObjectStore, stream: StreamStateHandle) -> ReadFooter:
        """The known parts of the file's footer; a new one, to be filled and cached, if nothing is."""
        found = self._memory.find(("footer", _key(store, stream)))
        return ReadFooter() if found is None else found

    def keep_footer(self, store: ObjectStore, stream: StreamStateHandle, footer: ReadFooter) -> None:
        """Keep what was read of the footer."""
        if footer.opened and _is_provable(stream):
            self._memory.keep(("footer", _key(store, stream)), footer, footer.held_bytes)

    def ranges(self, store: ObjectStore, stream: StreamStateHandle) -> Ranges | None:
        """The ranges of one file, each found as it was cached; `None` if none is."""
        return _HeldRanges(self._memory, _key(store, stream)) if _is_provable(stream) else None

    def close(self) -> None:
        """Close the disk; what is open may be read on. May be called again."""
        if self._disk is not None:
            self._disk.close()


_process_cache = ReadCache()


def process_cache() -> ReadCache:
    """The one of all tasks in this process: they follow each other, and know nothing of each other."""
    return _process_cache


def _key(store: ObjectStore, stream: StreamStateHandle) -> Hashable:
    # By the checksum too: two services may have a bucket of one name.
    return store.uri, stream.name, stream.generation, stream.crc32c


def _is_provable(stream: StreamStateHandle) -> bool:
    return None not in (stream.generation, stream.crc32c, stream.stored_bytes)


def _twice(fetch: Callable[[], T]) -> T:
    try:
        return fetch()
    except FormatError:
        return fetch()  # damaged on its way here, it is right the next time; stored wrong, it stays wrong


def _all_of(store: ObjectStore, stream: StreamStateHandle) -> bytes | memoryview:
    assert stream.stored_bytes is not None
    pieces = list(pieces_of(store, stream, stream.stored_bytes))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def pieces_of(
    store: ObjectStore, stream: StreamStateHandle, size_bytes: int
) -> Generator[bytes | memoryview, None, None]:
    """All bytes of a file. Raises, at its end, FormatError if they do not match the handle."""
    copied, crc = 0, EMPTY_CRC32C
    try:
        with closing(read_parts(store, stream.name, size_bytes, stream.generation)) as parts:
            for piece in parts:
                copied += len(piece)
                # More than was reserved would exceed the limit.
                if copied > size_bytes:
                    raise FormatError(
                        f"{store.uri_of(stream.name)} is longer than the {size_bytes} bytes it should have"
                    )
                crc = extend(crc, piece)
                yield piece
        if stream.crc32c not in (None, crc):
            raise FormatError(
                f"{store.uri_of(stream.name)} has CRC-32C {crc:08x}, and not {stream.crc32c:08x}"
            )
    except NotFoundError:
        bound = bound_again(store, stream)
        if copied or bound is stream:
            raise
        yield from pieces_of(store, bound, size_bytes)


@dataclass(frozen=True)
class _HeldRanges:
    memory: Memory
    file: Hashable

    def find(self, start: int, length: int) -> bytes | memoryview | None:
        found: bytes | memoryview | None = self.memory.find((self.file, start, length))
        return found

    def keep(self, start: int, octets: bytes | memoryview) -> None:
        if len(octets) <= self.memory.largest:
            kept = octets if _is_most(octets) else bytes(octets)
            self.memory.keep((self.file, start, len(octets)), kept, len(octets))


def _is_most(octets: bytes | memoryview) -> bool:
    """Whether these are half or more of what they are a view of, all of which the view keeps alive."""
    return isinstance(octets, bytes) or 2 * octets.nbytes >= memoryview(octets.obj).nbytes


class _HeldFile:
    """A file in memory, as a `RangeReader`."""

    def __init__(self, place: str, octets: bytes | memoryview) -> None:
        self.place = place
        self._octets = memoryview(octets)

    def size_bytes(self) -> int:
        return len(self._octets)

    def read_range(self, start: int, length: int) -> bytes | memoryview:
        found = self._octets[start : start + length]
        return found if _is_most(found) else bytes(found)

    def close(self) -> None:
        pass
