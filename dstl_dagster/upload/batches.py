"""Which queued tasks share a file, and the upload of one batch as something to retry.

Owns the queue, where a batch ends, the file that is begun while it waits for company, and when its tasks are
settled. Does not own threads or time (`scheduler`), nor when an attempt is repeated (`racing`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence

from dstl_dagster.errors import InternalError
from dstl_dagster.format.changelog_file.footer import MAX_CHANGE_SETS_PER_FILE
from dstl_dagster.upload.file_upload import FileUpload
from dstl_dagster.upload.tasks import UploadTask, UploadTasksResult
from dstl_dagster.upload.uploader import StateChangeUploader

_logger = logging.getLogger(__name__)

BeginFile = Callable[[Callable[[], bool]], FileUpload]
"""Begins a file, as `StateChangeFsUploader.begin`."""


class EarlyFile:
    """The file of one batch, begun before the batch leaves. Any thread; ends with `finish` or `abandon`.

    An error costs only this work: the first attempt then begins anew. It pays for itself (decision 0016).

    Args:
        begin_file: None: nothing is written early.
    """

    def __init__(self, begin_file: BeginFile | None) -> None:
        self._begin_file = begin_file
        self._lock = threading.Lock()
        self._file: FileUpload | None = None
        self._closed = False
        self._abandoned = False
        self._batch: Sequence[UploadTask] = ()

    def write(self, tasks: Sequence[UploadTask]) -> None:
        """Write those of the batch's tasks so far that are not in the file yet. Never raises."""
        with self._lock:
            if self._closed or self._begin_file is None:
                return
            try:
                if self._file is None:
                    self._file = self._begin_file(self._is_cancelled)
                for task in tasks[len(self._file.tasks) :]:
                    self._file.write(task)
            except Exception as error:  # noqa: BLE001 - if it persists, the first attempt meets it again
                _logger.info("the early file of a waiting batch was dropped: %s", error)
                self._close()

    def finish(self, batch: Sequence[UploadTask]) -> UploadTasksResult | None:
        """The batch leaves: write the rest and make the file durable. Raises as an attempt.

        None where nothing was written, or something other than the beginning of this batch.
        """
        with self._lock:
            file = self._file
            if self._closed or file is None or file.tasks != tuple(batch[: len(file.tasks)]):
                self._close()
                return None
            self._closed = True
            self._batch = batch
            for task in batch[len(file.tasks) :]:
                file.write(task)
            return file.finish()

    def abandon(self) -> None:
        """The batch will not be uploaded. Waits for a write under way. May be called again."""
        self._abandoned = True
        with self._lock:
            self._close()

    def _close(self) -> None:
        if not self._closed and self._file is not None:
            self._file.abort()
        self._closed = True

    def _is_cancelled(self) -> bool:
        return self._abandoned or (bool(self._batch) and all(task.is_finished for task in self._batch))


class Batch:
    """Tasks that share a file, in order; and that file, where it is begun before the batch leaves."""

    def __init__(self, begin_file: BeginFile | None = None) -> None:
        self.tasks: list[UploadTask] = []
        self.size_bytes = 0
        self.set_count = 0
        self.early = EarlyFile(begin_file)

    def add(self, task: UploadTask) -> None:
        self.tasks.append(task)
        self.size_bytes += task.size
        self.set_count += len(task.change_sets)

    def remove(self, task: UploadTask) -> None:
        self.tasks.remove(task)
        self.size_bytes -= task.size
        self.set_count -= len(task.change_sets)

    def fail(self, error: BaseException) -> None:
        """It will not be uploaded. Never raises."""
        fail_all(self.tasks, error)
        self.early.abandon()


class BatchQueue:
    """Tasks in order of arrival, divided into batches. The caller holds its lock.

    A batch ends with the task that brings it to `threshold_bytes` or `max_tasks` (both inclusive), or before
    the one that would bring it above `max_bytes`; a larger task goes alone. A task joins the last batch or
    begins another.

    Args:
        max_tasks: None: any number.
        begin_file: for batches whose files may begin early; None: none may.
    """

    def __init__(
        self,
        threshold_bytes: int,
        max_bytes: int,
        begin_file: BeginFile | None = None,
        max_tasks: int | None = None,
    ) -> None:
        self._threshold_bytes = threshold_bytes
        self._max_bytes = max_bytes
        self._max_tasks = max_tasks
        self._begin_file = begin_file
        self._batches: deque[Batch] = deque()
        self.size_bytes = 0
        """Payload of all queued tasks."""

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def task_count(self) -> int:
        return sum(len(batch.tasks) for batch in self._batches)

    @property
    def first(self) -> Batch | None:
        return self._batches[0] if self._batches else None

    @property
    def last_is_full(self) -> bool:
        """Whether the batch that was begun last has as many tasks as it may."""
        return bool(self._batches) and len(self._batches[-1].tasks) == self._max_tasks

    def add(self, task: UploadTask) -> None:
        if not self._batches or not self._joins(self._batches[-1], task):
            self._batches.append(Batch(self._begin_file))
        self._batches[-1].add(task)
        self.size_bytes += task.size

    def take(self) -> Batch | None:
        if not self._batches:
            return None
        batch = self._batches.popleft()
        self.size_bytes -= batch.size_bytes
        return batch

    def remove(self, task: UploadTask) -> Batch | None:
        """Remove a task, if it is still queued. Returns its batch where no other task is left in it."""
        for batch in self._batches:
            if task in batch.tasks:
                batch.remove(task)
                self.size_bytes -= task.size
                if batch.tasks:
                    return None
                self._batches.remove(batch)
                return batch
        return None

    def _joins(self, batch: Batch, task: UploadTask) -> bool:
        return (
            batch.size_bytes < self._threshold_bytes
            and batch.size_bytes + task.size <= self._max_bytes
            and (self._max_tasks is None or len(batch.tasks) < self._max_tasks)
            and batch.set_count + len(task.change_sets) <= MAX_CHANGE_SETS_PER_FILE
        )


class BatchAction:
    """The upload of one batch. Its tasks are settled when its first attempt begins, not before.

    So tasks that arrive while every thread is busy join the batch, as in a group commit.

    Args:
        claim: takes the next batch out of the queue; None where it is empty.
    """

    def __init__(self, uploader: StateChangeUploader, claim: Callable[[], Batch | None]) -> None:
        self._uploader = uploader
        self._claim = claim
        self._lock = threading.Lock()
        self._tasks: Sequence[UploadTask] | None = None

    def attempt(self) -> UploadTasksResult | None:
        """Upload the batch; None where the queue was empty."""
        batch = None
        with self._lock:
            if self._tasks is None:
                batch = self._claim()
                self._tasks = () if batch is None else batch.tasks
        # Only the first attempt has the batch, and with it the file that was begun early.
        result = batch.early.finish(batch.tasks) if batch is not None else None
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
        batch = None
        with self._lock:
            if self._tasks is None:
                # No attempt got as far as claiming it (no thread for its timeout, say), and none will.
                self._tasks = ()
                batch = self._claim()
        if batch is not None:
            batch.fail(error)
        fail_all(self._tasks, error)


def complete_all(result: UploadTasksResult, tasks: Collection[UploadTask]) -> None:
    """Complete every task with its results."""
    cause: BaseException | None = None
    try:
        result.complete()
    except BaseException as error:
        cause = error
        raise
    finally:
        for task in tasks:
            # No other code would ever end a task that the uploader forgot.
            if not task.is_finished:
                forgotten = InternalError(
                    f"the uploader returned {result}, but without a result for this task"
                    + (f"; completing the others failed: {cause}" if cause is not None else "")
                )
                forgotten.__cause__ = cause
                task.fail(forgotten)


def fail_all(tasks: Collection[UploadTask], error: BaseException) -> None:
    """Fail every task. Never raises."""
    for task in tasks:
        try:
            task.fail(error)
        except Exception:
            _logger.exception("an upload failed, and so did its failure callback")
