"""Upload results: their way to the writer's thread, and the persists that wait for them.

Owns the one lock between the writer's thread and all others, and the completion of a persist's future. Does
not own the uploads, nor which results' files are released (`writer`).

Source: the `UploadCompletionListener` of Flink's `FsStateChangelogWriter`, whose incremental size misses
results of earlier callbacks.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping

from dstl_dagster.format.handles import ChangelogStateHandle, SnapshotResult, StreamStateHandle
from dstl_dagster.format.key_group_ranges import KeyGroupRange
from dstl_dagster.format.sequence import SequenceNumber, SequenceNumberRange
from dstl_dagster.futures import MailboxFuture
from dstl_dagster.upload import UploadResult

_logger = logging.getLogger(__name__)

Arrival = tuple[int | None, list[UploadResult]] | tuple[list[SequenceNumber], BaseException]
"""A checkpoint id (None: pre-emptive) and the results; or the positions that failed, and why."""


class Inbox:
    """A queue that refuses once it is closed. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Arrival] = deque()
        self._closed = False

    def put(self, arrival: Arrival) -> bool:
        """False once closed: the caller keeps the arrival."""
        with self._lock:
            if not self._closed:
                self._waiting.append(arrival)
            return not self._closed

    def take(self) -> Arrival | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def close(self) -> list[Arrival]:
        """Refuse from now on. Returns what was not taken."""
        with self._lock:
            self._closed = True
            unread = list(self._waiting)
            self._waiting.clear()
            return unread


def snapshot_of(
    results: Iterable[UploadResult],
    key_group_range: KeyGroupRange,
    checkpointed_size: int,
    *,
    local_backup: bool,
) -> SnapshotResult:
    """The handles on these results, ascending by position; the local one only where every set has a copy."""
    ordered = sorted(results, key=lambda result: result.sequence_number)
    state_size = sum(result.size for result in ordered)
    durable = ChangelogStateHandle(
        tuple((result.stream_state_handle, result.offset) for result in ordered),
        key_group_range,
        state_size,
        checkpointed_size,
    )
    if not local_backup:
        return SnapshotResult(durable)
    copies: list[tuple[StreamStateHandle, int]] = [
        (result.local_handle, result.local_offset) for result in ordered if result.local_handle is not None
    ]
    if len(copies) != len(ordered):
        _logger.warning("%d of %d change sets have no local copy", len(ordered) - len(copies), len(ordered))
        return SnapshotResult(durable)
    return SnapshotResult(durable, ChangelogStateHandle(tuple(copies), key_group_range, state_size, 0))


class PersistCompletion:
    """One persist that waits for uploads. Used on the writer's thread only."""

    def __init__(
        self,
        wanted: SequenceNumberRange,
        checkpoint_id: int,
        uploaded: Mapping[SequenceNumber, UploadResult],
        future: MailboxFuture[SnapshotResult],
    ) -> None:
        self.wanted = wanted
        self.checkpoint_id = checkpoint_id
        self.future = future
        self._results = dict(uploaded)
        self._uploaded_before_bytes = sum(result.size for result in uploaded.values())

    def take(self, results: Iterable[UploadResult]) -> bool:
        """Take results; returns whether the whole range is uploaded now."""
        for result in results:
            if self.wanted.contains(result.sequence_number):
                self._results[result.sequence_number] = result
        return len(self._results) == self.wanted.size

    def wants_any(self, sequence_numbers: Iterable[SequenceNumber]) -> bool:
        """Whether one of these positions is in the range."""
        return any(self.wanted.contains(sqn) for sqn in sequence_numbers)

    def snapshot(self, key_group_range: KeyGroupRange, *, local_backup: bool) -> SnapshotResult:
        """The result, once the whole range is uploaded."""
        results = self._results.values()
        checkpointed_size = sum(result.size for result in results) - self._uploaded_before_bytes
        return snapshot_of(results, key_group_range, checkpointed_size, local_backup=local_backup)
