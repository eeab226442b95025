"""The last checkpoint to use each local copy.

Owns the lifetime of local copies. Does not own writing (`upload`) or reading them (`changelog`).

Source: Flink's `LocalChangelogRegistryImpl`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from dstl_dagster.errors import InternalError
from dstl_dagster.format.handles import StreamStateHandle

_logger = logging.getLogger(__name__)


class LocalChangelogRegistry:
    """The local copies in use. All methods may be called from any thread.

    Deletions run on the executor, or in the calling thread once that is shut down. Their errors are only
    logged: a leftover copy costs disk, never correctness.
    """

    def __init__(self, discard: Callable[[StreamStateHandle], None], executor: Executor) -> None:
        self._discard = discard
        self._executor = executor
        self._lock = threading.Lock()
        self._last_use: dict[str, tuple[StreamStateHandle, int]] = {}

    @classmethod
    def with_thread(cls, discard: Callable[[StreamStateHandle], None]) -> LocalChangelogRegistry:
        """A registry with one thread of its own, which `close()` ends."""
        return cls(discard, ThreadPoolExecutor(1, thread_name_prefix="dstl-local-changelog-discard"))

    @classmethod
    def no_op(cls) -> LocalChangelogRegistry:
        """A registry that deletes nothing."""
        return cls(_keep, ThreadPoolExecutor(1, thread_name_prefix="dstl-local-changelog-discard"))

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
            try:
                self._executor.submit(self._discard_quietly, handle)
            except RuntimeError:
                self._discard_quietly(handle)

    def _discard_quietly(self, handle: StreamStateHandle) -> None:
        try:
            self._discard(handle)
        except Exception:
            _logger.warning("could not delete local changelog copy %s", handle.name, exc_info=True)

    def close(self) -> None:
        """End the thread after the requested deletions; copies in use stay on disk. Idempotent."""
        self._executor.shutdown(wait=True)
        with self._lock:
            self._last_use.clear()


def _keep(_: StreamStateHandle) -> None:
    return None
