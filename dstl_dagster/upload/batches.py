"""Which waiting tasks share a file, and the upload of one such batch as something to retry.

Owns where a batch ends and when its tasks are chosen. Does not own the queue, threads or time
(`scheduler`), nor when an attempt is repeated (`retry`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence

from dstl_dagster.errors import InternalError
from dstl_dagster.format.footer import MAX_CHANGE_SETS_PER_FILE
from dstl_dagster.upload.early import EarlyUpload
from dstl_dagster.upload.tasks import UploadTask, UploadTasksResult
from dstl_dagster.upload.uploader import StateChangeUploader

__all__ = ["BatchAction", "complete_all", "fail_all", "split_into_batches"]

_logger = logging.getLogger(__name__)


def split_into_batches(tasks: Sequence[UploadTask], enough_bytes: int, max_bytes: int) -> list[int]:
    """Where each batch ends (exclusive) in a queue of tasks. The order stays.

    A batch ends with the task that brings it to `enough_bytes` (inclusive), or before the one that would
    bring it above `max_bytes`; one larger task goes alone. More tasks at the queue's end move no end but
    the last.
    """
    ends: list[int] = []
    batch_bytes = batch_sets = 0
    for index, task in enumerate(tasks):
        begins = index == (ends[-1] if ends else 0)
        set_count = len(task.change_sets)
        overflows = batch_bytes + task.size > max_bytes or batch_sets + set_count > MAX_CHANGE_SETS_PER_FILE
        if not begins and (overflows or batch_bytes >= enough_bytes):
            ends.append(index)
            batch_bytes = batch_sets = 0
        batch_bytes += task.size
        batch_sets += set_count
    if tasks:
        ends.append(len(tasks))
    return ends


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
