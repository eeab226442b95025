"""When tasks leave.

Owns the queue, the in-flight limit and the threads. Does not own which tasks share a file (`batches`), what
an upload is (`uploader`) nor when it is tried again (`retry`).

Source: Flink's `StateChangeUploadScheduler` and `BatchingStateChangeUploadScheduler`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final, Protocol

from dstl_dagster.errors import ClosedError, DstlError, InvalidInputError, UnavailableError
from dstl_dagster.format.compression import Compression
from dstl_dagster.settings.changelog import FsStateChangelogOptions, LocalRecoveryConfig
from dstl_dagster.storage import ObjectStore, RequestCost
from dstl_dagster.upload.availability import Availability, UploadThrottle
from dstl_dagster.upload.batches import BatchAction, BatchQueue, fail_all
from dstl_dagster.upload.early import BeginFile, EarlyUpload
from dstl_dagster.upload.file_upload import FileTracker
from dstl_dagster.upload.metrics import UploadMetrics
from dstl_dagster.upload.places import local_changelog_directory
from dstl_dagster.upload.retry import RetryingExecutor, RetryPolicy
from dstl_dagster.upload.tasks import UploadTask
from dstl_dagster.upload.timers import ThreadTimer, Timer
from dstl_dagster.upload.uploader import (
    DuplicatingStateChangeFsUploader,
    StateChangeFsUploader,
    StateChangeUploader,
)

__all__ = [
    "BatchingStateChangeUploadScheduler",
    "StateChangeUploadScheduler",
    "scheduler_from_config",
]

_DEFAULT_MAX_BATCH_BYTES: Final = 64 << 20
_SHARE_FROM: Final = 4
"""Without delay, tasks of so many times the bytes that are uploaded here share a file."""


class StateChangeUploadScheduler(Protocol):
    """Takes tasks and sees to it that each ends: completed or failed, exactly once."""

    def upload(self, task: UploadTask) -> None:
        """Take a task; may block while too many bytes are in flight. Any thread.

        Where it raises, the task has failed. After `close` the task fails with ClosedError, and nothing
        is raised.
        """
        ...

    @property
    def availability(self) -> Availability:
        """Whether `upload` would block."""
        ...

    def close(self) -> None:
        """Fail what has not ended, end every thread. May be called again."""
        ...


class BatchingStateChangeUploadScheduler:
    """Waits a little so that tasks of many writers share a file; retries; limits bytes in flight.

    A batch is due at the first of: `persist_delay_seconds` after its first task; `size_threshold_bytes`
    waiting (inclusive). It leaves with the first free thread, and tasks still join it until then. With a
    delay of 0 every task is due at once, and alone; only large ones that wait for a thread share a file,
    where small ones wait for none (`bytes_uploaded_here`). Batches upload in parallel and may end in any
    order. A batch that waits is written early, where `begin` is given.

    Args:
        persist_delay_seconds, size_threshold_bytes, retry_policy, uploader, num_upload_threads,
        max_bytes_in_flight, metrics: as upstream's constructor.
        max_batch_bytes: the most payload of one file; one larger task goes alone.
        bytes_uploaded_here: without delay, a task of at most so many bytes is uploaded in the thread that
            brings it, without a time-out (0: none is); for stores that answer sooner than a thread wakes up.
        begin: the uploader's, where its attempts may begin before all their tasks are there
            (`StateChangeFsUploader.begin`); what is begun so does not go through its `upload`.
        timer, executor: where waiting and uploading happen; by default threads of its own. They are closed
            with it.

    Raises InvalidInputError where the threshold is above the in-flight limit.
    """

    def __init__(
        self,
        persist_delay_seconds: float,
        size_threshold_bytes: int,
        retry_policy: RetryPolicy,
        uploader: StateChangeUploader,
        num_upload_threads: int,
        max_bytes_in_flight: int,
        metrics: UploadMetrics | None = None,
        *,
        max_batch_bytes: int = _DEFAULT_MAX_BATCH_BYTES,
        bytes_uploaded_here: int = 0,
        begin: BeginFile | None = None,
        timer: Timer | None = None,
        executor: Executor | None = None,
    ) -> None:
        if size_threshold_bytes > max_bytes_in_flight:
            raise InvalidInputError(
                f"sizeThresholdBytes ({size_threshold_bytes}) must not exceed "
                f"maxBytesInFlight ({max_bytes_in_flight})"
            )
        self._delay_seconds = persist_delay_seconds
        self._size_threshold_bytes = size_threshold_bytes
        self._bytes_uploaded_here = bytes_uploaded_here if persist_delay_seconds == 0 else 0
        self._retry_policy = retry_policy
        self._uploader = uploader
        self._metrics = metrics or UploadMetrics()
        self._throttle = UploadThrottle(max_bytes_in_flight)
        self._timer = timer or ThreadTimer("dstl-changelog-upload-timer")
        self._retrying = RetryingExecutor(
            executor or ThreadPoolExecutor(num_upload_threads, thread_name_prefix="dstl-changelog-upload"),
            self._timer,
            self._metrics.upload_wins,
        )
        self._begin = begin
        self._lock = threading.Lock()
        self._queue = self._new_queue(size_threshold_bytes, max_batch_bytes)
        self._early: EarlyUpload | None = None
        self._early_is_due = False
        """Whether a thread was asked to write early and has not begun."""
        self._claims = 0
        """Batches that are due and that no thread has taken out of the queue yet."""
        self._cancel_drain: Callable[[], None] | None = None
        self._fatal_error: BaseException | None = None
        self._closed = False
        self._end_gauge = self._metrics.watch_queue(self._queue_length)

    def _new_queue(self, size_threshold_bytes: int, max_batch_bytes: int) -> BatchQueue:
        if self._delay_seconds > 0:
            return BatchQueue(size_threshold_bytes, max_batch_bytes)
        # Who asks for no delay asks for a file of its own.
        if self._bytes_uploaded_here == 0:
            return BatchQueue(0, max_batch_bytes)
        # In a folder making a file costs more than a request. For large tasks one file less gains a tenth;
        # for smaller ones that is lost again, because the other thread is left idle.
        return BatchQueue(size_threshold_bytes, max_batch_bytes, _SHARE_FROM * self._bytes_uploaded_here)

    def _queue_length(self) -> float:
        with self._lock:
            return self._queue.task_count

    @property
    def availability(self) -> Availability:
        return self._throttle

    @property
    def in_flight_bytes(self) -> int:
        """Payload bytes of tasks that have not ended."""
        return self._throttle.in_flight_bytes

    def upload(self, task: UploadTask) -> None:
        if self._fatal_error is not None:
            task.fail(self._fatal_error)
            return
        try:
            self._throttle.seize(task.size)
        except ClosedError as error:
            task.fail(error)
            return
        except BaseException as interrupt:
            task.fail(_failure_by(interrupt))
            raise
        # From here on the task's end gives the bytes back, whoever ends it and why.
        counted = UploadTask(
            task.change_sets,
            _first(lambda: self._throttle.release(task.size), task.complete),
            lambda _, error: _first(lambda: self._throttle.release(task.size), task.fail)(error),
        )
        try:
            self._enqueue(counted)
        except BaseException as error:
            self._withdraw(counted)
            counted.fail(_failure_by(error))
            raise

    def _enqueue(self, task: UploadTask) -> None:
        with self._lock:
            closed = self._closed
            if not closed:
                self._queue.add(task)
            due = self._delay_seconds == 0 or self._queue.size_bytes >= self._size_threshold_bytes
            if not closed and not due and self._cancel_drain is None:
                self._cancel_drain = self._timer.schedule(self._delay_seconds, self._drain)
            asks_for_thread = not closed and not due and self._asks_to_write_early()
        if closed:
            task.fail(ClosedError("the upload scheduler is closed: open another storage"))
        elif due:
            self._drain()
        elif asks_for_thread:
            self._retrying.run_aside(self._write_early)

    def _withdraw(self, task: UploadTask) -> None:
        with self._lock:
            self._queue.remove(task)

    # -- before a batch is due

    def _asks_to_write_early(self) -> bool:
        """Whether a thread is to be sent to write what waits. Call under the lock."""
        # A batch that is half full is about to be due: then a second thread would only be in the way of the
        # one that takes it.
        if self._begin is None or self._queue.size_bytes > self._size_threshold_bytes // 2:
            return False
        if self._early is None:
            self._early = EarlyUpload(self._begin)
        asked, self._early_is_due = self._early_is_due, True
        return not asked

    def _write_early(self) -> None:
        with self._lock:
            self._early_is_due = False
            early, batch = self._early, self._queue.first()
        if early is not None:
            early.write(batch)

    # -- when it is due

    def _drain(self) -> None:
        """All that waits is due: see to it that there is a claim for each of its batches."""
        with self._lock:
            self._end_wait()
            missing_claims = len(self._queue) - self._claims
            self._claims += max(0, missing_claims)
            here = self._bytes_uploaded_here > 0 and self._queue.size_bytes <= self._bytes_uploaded_here
        for _ in range(missing_claims):
            if self._fatal_error is not None:
                self._fail_queue(self._fatal_error)
                return
            try:
                self._retrying.execute(
                    self._retry_policy, BatchAction(self._uploader, self._claim), here=here
                )
            except (ClosedError, UnavailableError, OSError) as error:
                _fail(*self._claim(), error)
            except BaseException as error:
                # No batch could be begun any more: say so at once, to all who come.
                self._fatal_error = error
                self._fail_queue(error)
                raise

    def _claim(self) -> tuple[list[UploadTask], EarlyUpload | None]:
        """Take the next batch out of the queue, in the thread that uploads it."""
        with self._lock:
            self._claims -= 1
            taken = self._queue.take()
            early, self._early = self._early, None
            if not self._queue:
                # Nobody waits any more; whoever comes next waits the whole delay.
                self._end_wait()
        if taken:
            self._metrics.batch_begins(len(taken))
        return taken, early

    def _end_wait(self) -> None:
        """Call under the lock."""
        if self._cancel_drain is not None:
            self._cancel_drain()
            self._cancel_drain = None

    def _fail_queue(self, error: BaseException) -> None:
        """Nothing that waits will be uploaded."""
        with self._lock:
            tasks = [task for _ in range(len(self._queue)) for task in self._queue.take()]
            early, self._early = self._early, None
            self._end_wait()
        _fail(tasks, early, error)

    def close(self) -> None:
        """Fail what waits and what runs with ClosedError; wait until no thread is left. May be called again.

        A running attempt stops at its next piece. One that hangs in the store is waited for: the store's
        own time-outs end it.
        """
        with self._lock:
            self._closed = True
        self._throttle.close()
        self._fail_queue(ClosedError("the upload waited for its batch when its storage was closed"))
        self._retrying.close()
        self._end_gauge()
        self._uploader.close()


def _fail(tasks: list[UploadTask], early: EarlyUpload | None, error: BaseException) -> None:
    fail_all(tasks, error)
    if early is not None:
        early.abandon()


def _failure_by(error: BaseException) -> DstlError:
    if isinstance(error, DstlError):
        return error
    failure = UnavailableError(f"the upload could not be begun: {type(error).__name__}", "interrupted")
    failure.__cause__ = error
    return failure


def _first(before: Callable[[], None], then: Callable[..., None]) -> Callable[..., None]:
    """`then`, after `before` whatever happens."""

    def both(*arguments: object) -> None:
        before()
        then(*arguments)

    return both


def scheduler_from_config(
    job_id: uuid.UUID | str,
    store: ObjectStore,
    options: FsStateChangelogOptions,
    registry: FileTracker,
    local_recovery: LocalRecoveryConfig,
    *,
    base_path: str,
    metrics: UploadMetrics | None = None,
) -> BatchingStateChangeUploadScheduler:
    """The batching scheduler that the options describe, with the uploader that local recovery calls for."""
    metrics = metrics or UploadMetrics()
    compression = Compression[options.compression.upper()]
    local_directory = local_changelog_directory(local_recovery, job_id)
    uploader: StateChangeFsUploader
    if local_directory is None:
        uploader = StateChangeFsUploader(
            store,
            base_path,
            job_id,
            registry,
            compression=compression,
            buffer_bytes=options.upload_buffer_bytes,
            metrics=metrics,
        )
    else:
        uploader = DuplicatingStateChangeFsUploader(
            store,
            base_path,
            job_id,
            registry,
            local_directory,
            compression=compression,
            buffer_bytes=options.upload_buffer_bytes,
            metrics=metrics,
        )
    # Without a network, waking a thread takes longer than writing a small file.
    capabilities = store.capabilities
    upload_here = capabilities.request_cost is RequestCost.SYSTEM_CALL
    return BatchingStateChangeUploadScheduler(
        options.batch_persist_delay.total_seconds(),
        options.batch_persist_size_threshold_bytes,
        RetryPolicy.from_options(options),
        uploader,
        capabilities.useful_threads(options.num_upload_threads),
        options.max_in_flight_bytes,
        metrics,
        max_batch_bytes=options.max_batch_bytes,
        bytes_uploaded_here=options.upload_buffer_bytes if upload_here else 0,
        begin=uploader.begin,
    )
