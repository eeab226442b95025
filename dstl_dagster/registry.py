"""Which changelog files are still needed: this process's references to remote files and to local copies.

Does not own how a file is deleted (`discard`), writing (`upload`) or reading them (`changelog`), nor the
references that manifests in the store hold.

Source: Flink's `TaskChangelogRegistryImpl` and `LocalChangelogRegistryImpl`. There
the threads never end; here `close()` ends them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Self

from dstl_dagster.errors import InternalError, InvalidInputError
from dstl_dagster.format.handles import StreamStateHandle

__all__ = ["LocalChangelogRegistry", "TaskChangelogRegistry"]

_logger = logging.getLogger(__name__)


class _Registry:
    """Deletions on an executor, or in the calling thread once that is shut down. Any thread.

    No caller waits for a deletion, so an error is only logged: garbage collection finds a file by its
    attempt, and a copy costs disk, never correctness.
    """

    _thread_name = "dstl-changelog-discard"
    _left = "changelog file"

    def __init__(self, discard: Callable[[StreamStateHandle], None], executor: Executor) -> None:
        self._discard = discard
        self._executor = executor
        self._lock = threading.Lock()

    @classmethod
    def with_threads(cls, discard: Callable[[StreamStateHandle], None], num_threads: int = 1) -> Self:
        """A registry with threads of its own, which `close()` ends."""
        return cls(discard, ThreadPoolExecutor(num_threads, thread_name_prefix=cls._thread_name))

    @classmethod
    def no_op(cls) -> Self:
        """A registry that counts, but deletes nothing."""
        return cls.with_threads(lambda _: None)

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
            _logger.warning("could not delete %s %s", self._left, handle.name, exc_info=True)

    def close(self) -> None:
        """Finish the requested deletions and end the threads. Idempotent."""
        self._executor.shutdown(wait=True)


class TaskChangelogRegistry(_Registry):
    """How many change sets still need each file. All methods may be called from any thread.

    A file is identified by its name. It is deleted when its last change set is released, and only then;
    never after `stop_tracking`. A failed deletion is logged: the file is then garbage of its attempt.
    """

    def __init__(self, discard: Callable[[StreamStateHandle], None], executor: Executor) -> None:
        super().__init__(discard, executor)
        self._counts: dict[str, int] = {}

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


class LocalChangelogRegistry(_Registry):
    """The last checkpoint to use each local copy. All methods may be called from any thread."""

    _thread_name = "dstl-local-changelog-discard"
    _left = "local changelog copy"

    def __init__(self, discard: Callable[[StreamStateHandle], None], executor: Executor) -> None:
        super().__init__(discard, executor)
        self._last_use: dict[str, tuple[StreamStateHandle, int]] = {}

    def register(self, handle: StreamStateHandle, checkpoint_id: int) -> None:
        """The checkpoint uses the copy. Raises: InternalError if another file already has its name."""
        with self._lock:
            known = self._last_use.get(handle.name)
            if known is not None and known[0] != handle:
                raise InternalError(f"two different local copies share the path {handle.name!r}")
            last_checkpoint_id = checkpoint_id if known is None else max(known[1], checkpoint_id)
            self._last_use[handle.name] = (handle, last_checkpoint_id)

    def discard_up_to_checkpoint(self, checkpoint_id: int) -> None:
        """Delete every copy last used by a checkpoint below `checkpoint_id` (exclusive)."""
        with self._lock:
            unused = [handle for handle, last in self._last_use.values() if last < checkpoint_id]
            for handle in unused:
                del self._last_use[handle.name]
        for handle in unused:
            self._schedule(handle)

    def close(self) -> None:
        """End the thread after the requested deletions; copies in use stay on disk. Idempotent."""
        super().close()
        with self._lock:
            self._last_use.clear()
