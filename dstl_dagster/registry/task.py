"""Reference counts of changelog files that no checkpoint owns yet.

Owns the counts, and the threads that delete. Does not own how a file is deleted (`discard`), nor a file
once a checkpoint owns it (`stop_tracking`).

Source: Flink's `TaskChangelogRegistryImpl`, whose threads never end; ours end with `close()`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format.handles import StreamStateHandle

_logger = logging.getLogger(__name__)

Discard = Callable[[StreamStateHandle], None]


class TaskChangelogRegistry:
    """How many change sets still need each file. All methods may be called from any thread.

    A file is identified by its name. It is deleted when its last change set is released, and only then;
    never after `stop_tracking`. A failed deletion is logged: the file is then garbage of its attempt.
    """

    def __init__(self, discard: Discard, executor: Executor) -> None:
        self._discard = discard
        self._executor = executor
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    @classmethod
    def with_threads(cls, discard: Discard, num_threads: int) -> TaskChangelogRegistry:
        """A registry with its own threads, which `close()` ends."""
        return cls(discard, ThreadPoolExecutor(num_threads, thread_name_prefix="dstl-changelog-discard"))

    @classmethod
    def no_op(cls) -> TaskChangelogRegistry:
        """A registry that counts, but deletes nothing."""
        return cls(_keep, ThreadPoolExecutor(1, thread_name_prefix="dstl-changelog-discard"))

    def start_tracking(self, handle: StreamStateHandle, reference_count: int) -> None:
        """From now on `reference_count` (1 or more) change sets need the file. Replaces an earlier count."""
        if reference_count <= 0:
            raise InvalidInputError(
                f"the initial reference count of {handle.name!r} must be larger than zero"
            )
        with self._lock:
            self._counts[handle.name] = reference_count

    def stop_tracking(self, handle: StreamStateHandle) -> None:
        """A checkpoint owns the file now: forget it at any count. An unknown file is fine."""
        with self._lock:
            self._counts.pop(handle.name, None)

    def release(self, handle: StreamStateHandle) -> None:
        """One change set no longer needs the file; the last deletes it. An unknown file is only logged."""
        with self._lock:
            count = self._counts.get(handle.name)
            if count is None:
                _logger.debug("released a changelog file that is not tracked: %s", handle.name)
                return
            if count > 1:
                self._counts[handle.name] = count - 1
                return
            del self._counts[handle.name]
        self._schedule(handle)

    def discard(self, handle: StreamStateHandle) -> None:
        """Nothing refers to the file (a losing attempt wrote it): forget and delete it."""
        self.stop_tracking(handle)
        self._schedule(handle)

    def tracked_count(self, handle: StreamStateHandle) -> int | None:
        """How many change sets need the file; None if it is not tracked."""
        with self._lock:
            return self._counts.get(handle.name)

    def _schedule(self, handle: StreamStateHandle) -> None:
        try:
            self._executor.submit(self._discard_quietly, handle)
        except RuntimeError:
            # Already shut down: nothing else would delete the file.
            self._discard_quietly(handle)

    def _discard_quietly(self, handle: StreamStateHandle) -> None:
        try:
            self._discard(handle)
        except Exception:
            # No caller waits for this; garbage collection finds the file by its attempt.
            _logger.warning(
                "could not delete changelog file %s; garbage collection will", handle.name, exc_info=True
            )

    def close(self) -> None:
        """Finish the requested deletions and end the threads. Idempotent."""
        self._executor.shutdown(wait=True)


def _keep(_: StreamStateHandle) -> None:
    return None
