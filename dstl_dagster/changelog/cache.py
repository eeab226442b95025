"""Changelog files kept on local disk while a recovery reads them.

Owns the cached files: the disk they take, who uses them, when they are deleted. Does not own their folder,
which no other user can enter (`storage.PrivateFolder`), nor what is in them; readers verify every change set
as if it came from the store. A file is compared with its handle's checksum before it is kept.

A file is kept as stored, compressed or not, so that its size on disk is known before the download.

Source: Flink's `ChangelogStreamHandleReaderWithCache`. There disk use is unbounded, a failed download
leaves its file behind, and an old timer deletes a file used since.
"""

from __future__ import annotations

import inspect
import logging
import os
import tempfile
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dstl_dagster.changelog.sources import StoreSource, bound_again
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import ClosedError, DstlError, FormatError, NotFoundError
from dstl_dagster.format.crc32c import EMPTY_CRC32C, extend
from dstl_dagster.format.handles import StreamStateHandle
from dstl_dagster.storage import (
    FileRanges,
    ObjectStore,
    PrivateFile,
    PrivateFolder,
    read_parts,
)
from dstl_dagster.upload import ThreadTimer, Timer

__all__ = ["ChangelogFileCache"]

_logger = logging.getLogger(__name__)

_PREFIX: Final = "dstl-cache"
_Key = tuple[str, int | None]


@dataclass
class _Cached:
    """One file on disk, held by `users` readers; idle since the last released it."""

    file: PrivateFile
    size_bytes: int
    users: int
    idle_since_seconds: float = 0.0
    process_id: int = field(default_factory=os.getpid)


@dataclass
class _Download:
    """Who waits for one file, so that one of them downloads it."""

    lock: threading.Lock
    users: int = 0


class ChangelogFileCache:
    """Downloads a file once for all its readers. All methods may be called from any thread.

    A forked child begins with an empty cache; what its parent cached stays the parent's.

    Args:
        directories: where files go, in turn; None: the machine's directory for temporary files.
        idle_timeout_seconds: a file is deleted after being idle for so long.
        max_bytes: disk for all cached files. Idle files are evicted; what does not fit is not cached.
    """

    def __init__(
        self,
        directories: Iterable[Path] | None,
        idle_timeout_seconds: float,
        max_bytes: int,
        *,
        clock: Clock | None = None,
        timer: Timer | None = None,
    ) -> None:
        roots = list(directories) if directories is not None else [Path(tempfile.gettempdir())]
        self._folders = [PrivateFolder(root, _PREFIX) for root in roots]
        self._idle_timeout_seconds = idle_timeout_seconds
        self._max_bytes = max_bytes
        self._clock = clock or SystemClock()
        self._given_timer = timer
        self._turn = 0
        self._closed = False
        self._begin()
        _caches.add(self)

    def _begin(self) -> None:
        self._timer = self._given_timer or ThreadTimer("dstl-changelog-cache-cleanup")
        self._lock = threading.Lock()
        self._files: dict[_Key, _Cached] = {}
        self._downloads: dict[_Key, _Download] = {}
        self._reserved_bytes = 0
        self._warned: set[tuple[int, int | None]] = set()

    @property
    def cached_bytes(self) -> int:
        """Disk taken, or reserved by a download."""
        with self._lock:
            return self._reserved_bytes

    def open(self, store: ObjectStore, handle: StreamStateHandle) -> _CachedSource | None:
        """The file, from disk; None where it is not cached (a store as near as the disk, no room, closed)."""
        if store.capabilities.is_local:
            return None
        key = (store.uri_of(handle.name), handle.generation)
        # One download of a file at a time; other files are not held up.
        with self._downloading(key):
            cached = self._hold(key) or self._download(key, store, handle)
        if cached is None:
            return None
        try:
            return _CachedSource(self, key, cached)
        except BaseException as error:
            # Somebody removed it: not offered again.
            self._forget(key, cached)
            self._let_go(key, cached)
            if isinstance(error, OSError) and not isinstance(error, DstlError):
                return None
            raise

    @contextmanager
    def _downloading(self, key: _Key) -> Iterator[None]:
        with self._lock:
            download = self._downloads.setdefault(key, _Download(threading.Lock()))
            download.users += 1
        try:
            with download.lock:
                yield
        finally:
            with self._lock:
                download.users -= 1
                if download.users == 0 and self._downloads.get(key) is download:
                    del self._downloads[key]

    def _hold(self, key: _Key) -> _Cached | None:
        with self._lock:
            cached = self._files.get(key)
            if cached is not None:
                cached.users += 1
            return cached

    def _download(self, key: _Key, store: ObjectStore, handle: StreamStateHandle) -> _Cached | None:
        source = StoreSource(store, handle)
        size_bytes = source.size_bytes()
        if not self._reserve(size_bytes):
            return None
        file = None
        try:
            try:
                file = self._copy(store, handle, size_bytes)
            except FormatError:
                # Damaged on its way here, it is right the next time.
                file = self._copy(store, handle, size_bytes)
        finally:
            if file is None:
                with self._lock:
                    self._reserved_bytes -= size_bytes
        if file is None:
            return None
        cached = _Cached(file, size_bytes, users=1)
        with self._lock:
            if not self._closed:
                self._files[key] = cached
        return cached

    def _copy(self, store: ObjectStore, handle: StreamStateHandle, size_bytes: int) -> PrivateFile | None:
        """The file in the next folder that takes it; None where there is none."""
        pieces = _pieces(store, handle, size_bytes)
        try:
            for number in self._next_folders():
                try:
                    return self._folders[number].keep(pieces)
                except ClosedError:
                    return None
                except DstlError:
                    raise  # of the store
                except OSError as error:
                    self._warn(number, error)
                    # Another folder is tried for one that cannot be used, not for another download.
                    if inspect.getgeneratorstate(pieces) != inspect.GEN_CREATED:
                        return None
        finally:
            pieces.close()
        return None

    def _warn(self, number: int, error: OSError) -> None:
        """Once for each folder and error: it would be repeated for every file."""
        with self._lock:
            known = (number, error.errno) in self._warned
            self._warned.add((number, error.errno))
        if not known:
            _logger.warning("changelog files are read from the store without a cache: %s", error)

    def _reserve(self, size_bytes: int) -> bool:
        with self._lock:
            if self._closed:
                return False
            missing = self._reserved_bytes + size_bytes - self._max_bytes
            idle = sorted(
                (key for key, cached in self._files.items() if cached.users == 0),
                key=lambda key: self._files[key].idle_since_seconds,
            )
            if missing > sum(self._files[key].size_bytes for key in idle):
                return False
            for key in idle:
                if missing <= 0:
                    break
                missing -= self._files[key].size_bytes
                self._drop(key)
            self._reserved_bytes += size_bytes
            return True

    def _next_folders(self) -> list[int]:
        """The folders' numbers, beginning with the one whose turn it is."""
        count = len(self._folders)
        with self._lock:
            self._turn += 1
            return [(self._turn + step) % count for step in range(count)]

    def _let_go(self, key: _Key, cached: _Cached) -> None:
        if cached.process_id != os.getpid():
            return
        with self._lock:
            cached.users -= 1
            if cached.users > 0:
                return
            cached.idle_since_seconds = idle_since = self._clock.monotonic_seconds()
            if self._closed and self._files.get(key) is cached:
                del self._files[key]
            if self._files.get(key) is not cached:
                self._remove_file(cached)
                return
        try:
            self._timer.schedule(self._idle_timeout_seconds, lambda: self._clean_up(key, cached, idle_since))
        except DstlError:  # closed meanwhile, or no thread can be started
            self._clean_up(key, cached, idle_since)

    def _forget(self, key: _Key, cached: _Cached) -> None:
        with self._lock:
            if self._files.get(key) is cached:
                del self._files[key]

    def _clean_up(self, key: _Key, cached: _Cached, idle_since_seconds: float) -> None:
        with self._lock:
            # Used since: a later timer is set, or will be.
            stale = cached.users > 0 or cached.idle_since_seconds != idle_since_seconds
            if not stale and self._files.get(key) is cached:
                self._drop(key)

    def _drop(self, key: _Key) -> None:
        self._remove_file(self._files.pop(key))

    def _remove_file(self, cached: _Cached) -> None:
        self._reserved_bytes -= cached.size_bytes
        cached.file.remove()

    def close(self) -> None:
        """Delete every idle file; the others once released. May be called again."""
        with self._lock:
            self._closed = True
            for key in [key for key, cached in self._files.items() if cached.users == 0]:
                self._drop(key)
        self._timer.close()
        for folder in self._folders:
            folder.close()


def _pieces(
    store: ObjectStore, handle: StreamStateHandle, size_bytes: int
) -> Generator[bytes | memoryview, None, None]:
    copied, crc = 0, EMPTY_CRC32C
    try:
        with closing(read_parts(store, handle.name, size_bytes, handle.generation)) as parts:
            for piece in parts:
                copied += len(piece)
                # More than was reserved would exceed the limit.
                if copied > size_bytes:
                    raise FormatError(
                        f"{store.uri_of(handle.name)} is longer than the {size_bytes} bytes it should have"
                    )
                crc = extend(crc, piece)
                yield piece
        if handle.crc32c not in (None, crc):
            raise FormatError(
                f"{store.uri_of(handle.name)} has CRC-32C {crc:08x}, and not {handle.crc32c:08x}"
            )
    except NotFoundError:
        bound = bound_again(store, handle)
        if copied or bound is handle:
            raise
        yield from _pieces(store, bound, size_bytes)


class _CachedSource(FileRanges):
    """A cached file in use; closing it releases it, once."""

    def __init__(self, cache: ChangelogFileCache, key: _Key, cached: _Cached) -> None:
        super().__init__(*cached.file.open())
        self._hold: tuple[ChangelogFileCache, _Key, _Cached] | None = (cache, key, cached)

    def close(self) -> None:
        super().close()
        hold, self._hold = self._hold, None
        if hold is not None:
            cache, key, cached = hold
            cache._let_go(key, cached)


_caches: weakref.WeakSet[ChangelogFileCache] = weakref.WeakSet()


def _forget_inherited() -> None:
    for cache in list(_caches):
        cache._begin()


os.register_at_fork(after_in_child=_forget_inherited)
