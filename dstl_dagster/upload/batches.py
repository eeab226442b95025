"""Which waiting tasks share a file, and the upload of one such batch as something to retry.

Owns the line of tasks, where a batch ends, and when its tasks are chosen. Does not own threads or time
(`scheduler`), nor when an attempt is repeated (`retry`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence

from dstl_dagster.errors import InternalError
from dstl_dagster.format.footer import MAX_CHANGE_SETS_PER_FILE
from dstl_dagster.upload.early import EarlyUpload
from dstl_dagster.upload.tasks import UploadTask, UploadTasksResult
from dstl_dagster.upload.uploader import StateChangeUploader

__all__ = ["BatchAction", "BatchQueue", "complete_all", "fail_all"]

_logger = logging.getLogger(__name__)


class _Batch:
    """Tasks that will share a file, in order."""

    def __init__(self) -> None:
        self.tasks: list[UploadTask] = []
        self.size_bytes = 0
        self.set_count = 0

    def add(self, task: UploadTask) -> None:
        self.tasks.append(task)
        self.size_bytes += task.size
        self.set_count += len(task.change_sets)


class BatchQueue:
    """Tasks that wait, parted into batches as they come; the order stays. Whoever has it locks it.

    A batch ends with the task that brings it to `enough_bytes` (inclusive), or before the one that would
    bring it above `max_bytes`; one larger task goes alone, and so does one below `alone_below_bytes`. A task
    that comes later joins the last batch or begins another.
    """

    def __init__(self, enough_bytes: int, max_bytes: int, alone_below_bytes: int = 0) -> None:
        self._enough_bytes = enough_bytes
        self._max_bytes = max_bytes
        self._alone_below_bytes = alone_below_bytes
        self._batches: deque[_Batch] = deque()
        self.size_bytes = 0
        """Payload of all that waits."""

    def __len__(self) -> int:
        """How many batches."""
        return len(self._batches)

    @property
    def task_count(self) -> int:
        return sum(len(batch.tasks) for batch in self._batches)

    def first(self) -> list[UploadTask]:
        """What the first batch has so far; empty where nothing waits."""
        return list(self._batches[0].tasks) if self._batches else []

    def add(self, task: UploadTask) -> None:
        """Put a task in line."""
        if not self._batches or not self._joins(self._batches[-1], task):
            self._batches.append(_Batch())
        self._batches[-1].add(task)
        self.size_bytes += task.size

    def take(self) -> list[UploadTask]:
        """Take the first batch; empty where nothing waits."""
        if not self._batches:
            return []
        batch = self._batches.popleft()
        self.size_bytes -= batch.size_bytes
        return batch.tasks

    def remove(self, task: UploadTask) -> None:
        """Take this one out again, if it still waits."""
        waiting = [each for batch in self._batches for each in batch.tasks]
        if task in waiting:
            self._batches.clear()
            self.size_bytes = 0
            for each in waiting:
                if each is not task:
                    self.add(each)

    def _joins(self, batch: _Batch, task: UploadTask) -> bool:
        return (
            min(batch.size_bytes, task.size) >= self._alone_below_bytes
            and batch.size_bytes < self._enough_bytes
            and batch.size_bytes + task.size <= self._max_bytes
            and batch.set_count + len(task.change_sets) <= MAX_CHANGE_SETS_PER_FILE
        )


class BatchAction:
    """The upload of one batch. Its tasks are chosen when its first attempt begins, not before.

    So what arrives while every thread is busy shares the next file, as in a group commit.

    Args:
        claim: takes the next batch out of the queue, and what was written of it early, if anything.
    """

    def __init__(
        self,
        uploader: StateChangeUploader,
        claim: Callable[[], tuple[Sequence[UploadTask], EarlyUpload | None]],
    ) -> None:
        self._uploader = uploader
        self._claim = claim
        self._lock = threading.Lock()
        self._tasks: Sequence[UploadTask] | None = None

    def attempt(self) -> UploadTasksResult | None:
        """Upload the batch; None where nobody waits any more."""
        early = None
        with self._lock:
            if self._tasks is None:
                self._tasks, early = self._claim()
        result = early.finish(self._tasks) if early is not None else None
        if result is None and self._tasks:
            result = self._uploader.upload(self._tasks)
        return result

    def complete(self, result: UploadTasksResult | None) -> None:
        if result is not None:
            complete_all(result, self._tasks or ())

    def discard(self, result: UploadTasksResult | None) -> None:
        if result is not None:
            result.discard()

    def fail(self, error: BaseException) -> None:
        fail_all(self._tasks or (), error)


def complete_all(result: UploadTasksResult, tasks: Collection[UploadTask]) -> None:
    """Tell every task where it stands."""
    try:
        result.complete()
    finally:
        for task in tasks:
            # A task that an uploader forgot would be waited for without end.
            task.fail(InternalError("the uploader returned, but without a result for this task"))


def fail_all(tasks: Collection[UploadTask], error: BaseException) -> None:
    """Tell every task that it failed. Never raises."""
    for task in tasks:
        try:
            task.fail(error)
        except Exception:
            _logger.exception("an upload failed, and telling its writer failed too")
