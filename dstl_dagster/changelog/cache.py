"""Changelog files kept on local disk while a recovery reads them.

Owns the cached files: the disk they take, who uses them, when they are deleted. Does not own what is in
them; readers verify every change set as if it came from the store.

A file is kept as stored, compressed or not, so that its size on disk is known before the download.

Source: Flink's `ChangelogStreamHandleReaderWithCache`. There disk use is unbounded, a failed download
leaves its file behind, and an old timer deletes a file used since.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dstl_dagster.changelog.sources import StoreSource
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import FormatError
from dstl_dagster.format.handles import StreamStateHandle
from dstl_dagster.storage import FileRanges, ObjectStore, RequestCost
from dstl_dagster.upload import ThreadTimer, Timer

__all__ = ["ChangelogFileCache"]

_logger = logging.getLogger(__name__)

_FOLDER: Final = "dstl-cache-file"
_COPY_STEP_BYTES: Final = 1 << 20


@dataclass
class _Cached:
    """One file on disk, held by `users` readers; idle since the last released it."""

    path: Path
    size_bytes: int
    users: int
    idle_since_seconds: float = 0.0


class ChangelogFileCache:
    """Downloads a file once for all its readers. All methods may be called from any thread.

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
        # A folder of its own: no two caches, in one process or two, ever share one.
        self._folders = [root / _FOLDER / uuid.uuid4().hex for root in roots]
        self._idle_timeout_seconds = idle_timeout_seconds
        self._max_bytes = max_bytes
        self._clock = clock or SystemClock()
        self._timer = timer or ThreadTimer("dstl-changelog-cache-cleanup")
        self._lock = threading.Lock()
        self._files: dict[tuple[str, int | None], _Cached] = {}
        self._downloads: dict[tuple[str, int | None], threading.Lock] = {}
        self._reserved_bytes = 0
        self._turn = 0
        self._closed = False

    @property
    def cached_bytes(self) -> int:
        """Disk taken, or reserved by a download."""
        with self._lock:
            return self._reserved_bytes

    def open(self, store: ObjectStore, handle: StreamStateHandle) -> _CachedSource | None:
        """The file, from disk; None where it is not cached (a store as near as the disk, no room, closed)."""
        if store.capabilities.request_cost is RequestCost.SYSTEM_CALL:
            return None
        key = (store.uri_of(handle.name), handle.generation)
        with self._lock:
            download = self._downloads.setdefault(key, threading.Lock())
        # One download of a file at a time; other files are not held up.
        with download:
            cached = self._hold(key)
            if cached is None:
                cached = self._download(key, store, handle)
        if cached is None:
            return None
        try:
            return _CachedSource(self, key, cached)
        except OSError:
            self._let_go(key, cached)
            return None

    def _hold(self, key: tuple[str, int | None]) -> _Cached | None:
        with self._lock:
            cached = self._files.get(key)
            if cached is not None:
                cached.users += 1
            return cached

    def _download(
        self, key: tuple[str, int | None], store: ObjectStore, handle: StreamStateHandle
    ) -> _Cached | None:
        source = StoreSource(store, handle)
        size_bytes = source.size_bytes()
        if not self._reserve(size_bytes):
            return None
        path = self._next_path()
        try:
            _copy(store, handle, path, size_bytes)
        except BaseException as error:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            with self._lock:
                self._reserved_bytes -= size_bytes
            if isinstance(error, OSError):
                _logger.warning("changelog file %s could not be cached: %s", source.place, error)
                return None
            raise
        cached = _Cached(path, size_bytes, users=1)
        with self._lock:
            if not self._closed:
                self._files[key] = cached
        return cached

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

    def _next_path(self) -> Path:
        with self._lock:
            folder = self._folders[self._turn % len(self._folders)]
            self._turn += 1
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"dstl{uuid.uuid4().hex}"

    def _let_go(self, key: tuple[str, int | None], cached: _Cached) -> None:
        with self._lock:
            cached.users -= 1
            if cached.users > 0:
                return
            cached.idle_since_seconds = idle_since = self._clock.monotonic_seconds()
            if self._closed:
                self._remove_file(cached)
                return
        self._timer.schedule(self._idle_timeout_seconds, lambda: self._clean_up(key, cached, idle_since))

    def _clean_up(self, key: tuple[str, int | None], cached: _Cached, idle_since_seconds: float) -> None:
        with self._lock:
            # Used since: a later timer is set, or will be.
            stale = cached.users > 0 or cached.idle_since_seconds != idle_since_seconds
            if not stale and self._files.get(key) is cached:
                self._drop(key)

    def _drop(self, key: tuple[str, int | None]) -> None:
        self._remove_file(self._files.pop(key))
        self._downloads.pop(key, None)

    def _remove_file(self, cached: _Cached) -> None:
        self._reserved_bytes -= cached.size_bytes
        with suppress(OSError):
            cached.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete every idle file; the others once released. May be called again."""
        with self._lock:
            self._closed = True
            for key in [key for key, cached in self._files.items() if cached.users == 0]:
                self._drop(key)
        self._timer.close()
        for folder in self._folders:
            with suppress(OSError):
                folder.rmdir()


def _copy(store: ObjectStore, handle: StreamStateHandle, path: Path, size_bytes: int) -> None:
    reader = store.open_read(handle.name, generation=handle.generation)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            copied = 0
            while piece := reader.read(_COPY_STEP_BYTES):
                copied += len(piece)
                # More than was reserved would exceed the limit.
                if copied > size_bytes:
                    raise FormatError(
                        f"{store.uri_of(handle.name)} is longer than the {size_bytes} bytes it should have"
                    )
                file.write(piece)
    finally:
        reader.close()


class _CachedSource(FileRanges):
    """A cached file in use; closing it releases it, once."""

    def __init__(self, cache: ChangelogFileCache, key: tuple[str, int | None], cached: _Cached) -> None:
        super().__init__(cached.path)
        self._hold: tuple[ChangelogFileCache, tuple[str, int | None], _Cached] | None = (cache, key, cached)

    def close(self) -> None:
        super().close()
        hold, self._hold = self._hold, None
        if hold is not None:
            cache, key, cached = hold
            cache._let_go(key, cached)
