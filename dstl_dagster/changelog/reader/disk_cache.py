"""Changelog files on local disk, for reads that pass over more than fits in memory.

Owns the cached files: the disk they take, their users, their deletion. Does not own their content:
`read_cache` has compared it with the handle's checksum, and readers verify every change set as if it came
from the store.

A cached file has no name, only a descriptor: no other user or process can open it, and the kernel deletes it
with the process, however that ends. A file is held as stored, compressed or not, so that its size on disk is
known before the download.

Source: Flink's `ChangelogStreamHandleReaderWithCache`. There disk use is unbounded, a failed download
leaves its file behind, and an old timer deletes a file used since.
"""

from __future__ import annotations

import logging
import os
import resource
import tempfile
import threading
from collections.abc import Generator, Hashable
from contextlib import closing
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Final

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.concurrency import after_fork
from dstl_dagster.errors import DstlError
from dstl_dagster.storage import Buffer, FileRanges
from dstl_dagster.upload import ThreadTimer, Timer

_logger = logging.getLogger(__name__)

_MOST_FILES: Final = 4096


@dataclass
class _Cached:
    """One file on disk, held by `users` readers; idle since the last released it."""

    place: str
    file: FileIO
    size_bytes: int
    users: int
    idle_since_seconds: float = 0.0
    process_id: int = field(default_factory=os.getpid)


class DiskCache:
    """Files by key. Any thread; one at a time for each key.

    A forked child begins with an empty cache; what its parent cached stays the parent's.

    Args:
        directory: whose disk is used; None: that of the machine's directory for temporary files.
        idle_timeout_seconds: a file is deleted after being idle for so long.
        max_bytes: disk for all cached files. Idle files are evicted; what does not fit is not cached.
        max_files: as many, each with a descriptor; by default a quarter of those that the process may have.
    """

    def __init__(
        self,
        directory: Path | None,
        idle_timeout_seconds: float,
        max_bytes: int,
        *,
        max_files: int | None = None,
        clock: Clock | None = None,
        timer: Timer | None = None,
    ) -> None:
        self._directory = directory
        self._idle_timeout_seconds = idle_timeout_seconds
        self._max_bytes = max_bytes
        self._max_files = max_files or _most_files()
        self._clock = clock or SystemClock()
        self._own_timer = timer
        self._closed = False
        self._begin()
        after_fork(self._begin_in_child)

    def _begin_in_child(self) -> None:
        for cached in self._files.values():
            cached.file.close()  # a copy of the parent's descriptor
        self._begin()

    def _begin(self) -> None:
        self._timer = self._own_timer or ThreadTimer("dstl-changelog-cache-cleanup")
        self._lock = threading.Lock()
        self._files: dict[Hashable, _Cached] = {}
        self._reserved_bytes = self._reserved_files = 0
        self._warned: set[int | None] = set()

    @property
    def cached_bytes(self) -> int:
        """Disk taken, or reserved by a download."""
        with self._lock:
            return self._reserved_bytes

    def find(self, key: Hashable) -> FileRanges | None:
        with self._lock:
            cached = self._files.get(key)
            if cached is None:
                return None
            cached.users += 1
        return self._opened(key, cached)

    def keep(
        self, key: Hashable, place: str, size_bytes: int, pieces: Generator[Buffer, None, None]
    ) -> FileRanges | None:
        """A new file of these bytes, at most `size_bytes`; `None` where the disk has no room for it.

        `place`: the file's name in errors. Raises: what `pieces` raises; nothing is cached then.
        """
        with closing(pieces):
            if not self._reserve(size_bytes):
                return None
            file = None
            try:
                file = self._copied(pieces)
            finally:
                if file is None:
                    with self._lock:
                        self._free(size_bytes)
        if file is None:
            return None
        cached = _Cached(place, file, size_bytes, users=1)
        with self._lock:
            if not self._closed:
                self._files[key] = cached
        return self._opened(key, cached)

    def _opened(self, key: Hashable, cached: _Cached) -> FileRanges | None:
        try:
            return _CachedFile(self, key, cached)
        except BaseException as error:
            self._let_go(key, cached)
            if isinstance(error, OSError):
                return None  # no descriptor is left
            raise

    def _copied(self, pieces: Generator[Buffer, None, None]) -> FileIO | None:
        """The file; None where the disk does not take it."""
        file = None
        try:
            file = tempfile.TemporaryFile(buffering=0, dir=self._directory)  # noqa: SIM115 - it stays open
            for piece in pieces:
                rest = memoryview(piece).cast("B")
                while rest:
                    rest = rest[file.write(rest) :]
        except BaseException as error:
            if file is not None:
                file.close()
            if isinstance(error, OSError) and not isinstance(error, DstlError):  # one of ours is of the store
                self._warn(error)
                return None
            raise
        return file

    def _warn(self, error: OSError) -> None:
        """Once for each error: it would be repeated for every file."""
        with self._lock:
            known = error.errno in self._warned
            self._warned.add(error.errno)
        if not known:
            _logger.warning("changelog files are read from the store without a cache: %s", error)

    def _reserve(self, size_bytes: int) -> bool:
        with self._lock:
            if self._closed:
                return False
            bytes_missing = self._reserved_bytes + size_bytes - self._max_bytes
            files_missing = self._reserved_files + 1 - self._max_files
            idle = sorted(
                (key for key, cached in self._files.items() if cached.users == 0),
                key=lambda key: self._files[key].idle_since_seconds,
            )
            if bytes_missing > sum(self._files[key].size_bytes for key in idle) or files_missing > len(idle):
                return False
            for key in idle:
                if bytes_missing <= 0 and files_missing <= 0:
                    break
                bytes_missing -= self._files[key].size_bytes
                files_missing -= 1
                self._drop(key)
            self._reserved_bytes += size_bytes
            self._reserved_files += 1
            return True

    def _free(self, size_bytes: int) -> None:
        self._reserved_bytes -= size_bytes
        self._reserved_files -= 1

    def _let_go(self, key: Hashable, cached: _Cached) -> None:
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
                self._delete(cached)
                return
        try:
            self._timer.schedule(self._idle_timeout_seconds, lambda: self._clean_up(key, cached, idle_since))
        except DstlError:  # closed meanwhile, or no thread can be started
            self._clean_up(key, cached, idle_since)

    def _clean_up(self, key: Hashable, cached: _Cached, idle_since_seconds: float) -> None:
        with self._lock:
            # Used since: a later timer is set, or will be.
            stale = cached.users > 0 or cached.idle_since_seconds != idle_since_seconds
            if not stale and self._files.get(key) is cached:
                self._drop(key)

    def _drop(self, key: Hashable) -> None:
        self._delete(self._files.pop(key))

    def _delete(self, cached: _Cached) -> None:
        self._free(cached.size_bytes)
        cached.file.close()

    def close(self) -> None:
        """Delete every idle file; the others once released. May be called again."""
        with self._lock:
            self._closed = True
            for key in [key for key, cached in self._files.items() if cached.users == 0]:
                self._drop(key)
        self._timer.close()


class _CachedFile(FileRanges):
    """A cached file in use; closing it releases it, once."""

    def __init__(self, cache: DiskCache, key: Hashable, cached: _Cached) -> None:
        super().__init__(cached.place, os.dup(cached.file.fileno()))
        self._hold: tuple[DiskCache, Hashable, _Cached] | None = (cache, key, cached)

    def close(self) -> None:
        super().close()
        hold, self._hold = self._hold, None
        if hold is not None:
            cache, key, cached = hold
            cache._let_go(key, cached)


def _most_files() -> int:
    """A quarter of the descriptors that the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else min(soft // 4, _MOST_FILES)
