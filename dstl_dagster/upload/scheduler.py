"""When tasks leave, and in which thread.

Owns the schedulers, when a batch is due, the in-flight limit and the threads. Does not own which tasks share
a file (`batches`), what an upload is (`uploader`) nor when it is repeated (`racing`).

Source: Flink's `StateChangeUploadScheduler` and `BatchingStateChangeUploadScheduler`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, Self

import pyarrow as pa

from dstl_dagster.concurrency import Closing
from dstl_dagster.errors import ClosedError, DstlError, InvalidInputError, UnavailableError
from dstl_dagster.format.changelog_file.compression import Compression
from dstl_dagster.settings.changelog import FsStateChangelogOptions, LocalRecoveryConfig
from dstl_dagster.storage import ObjectStore, RetryPolicy, StoreCapabilities
from dstl_dagster.upload.batches import Batch, BatchAction, BatchQueue, BeginFile, complete_all
from dstl_dagster.upload.file_upload import FileTracker
from dstl_dagster.upload.metrics import UploadMetrics
from dstl_dagster.upload.racing import RetryingExecutor
from dstl_dagster.upload.tasks import UploadTask
from dstl_dagster.upload.throttle import ALWAYS_AVAILABLE, Availability, UploadThrottle
from dstl_dagster.upload.timers import ThreadTimer, Timer
from dstl_dagster.upload.uploader import StateChangeFsUploader, StateChangeUploader, local_changelog_directory


class StateChangeUploadScheduler(Closing, Protocol):
    """Takes tasks and sees to it that each ends: completed or failed, exactly once. A context manager."""

    def upload(self, task: UploadTask) -> None:
        """Take a task; may block while too many bytes are in flight. Any thread.

        If it raises, the task has failed. Raises: ClosedError after `close`, or closed while it waited.
        """
        ...

    @property
    def availability(self) -> Availability:
        """Whether `upload` would block. A subclass that says nothing of it never does, as upstream's."""
        return ALWAYS_AVAILABLE

    def close(self) -> None:
        """Fail what has not ended, end every thread. May be called again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadPolicy:
    """How one scheduler works. Frozen.

    Attributes:
        persist_delay_seconds: how long a batch waits for company after its first task; 0: each task has a
            file of its own.
        size_threshold_bytes: payload that makes a batch due at once (inclusive).
        max_bytes_in_flight: payload of tasks that have not ended.
        num_threads: that upload.
        retry: when an attempt is followed by another.
        max_batch_bytes: payload of one file; a larger task has one to itself.
        max_batch_tasks: tasks of one file, which leaves once it has them; None: any number.

    Raises InvalidInputError where the threshold is above the in-flight limit, or a batch may have no task.
    """

    persist_delay_seconds: float
    size_threshold_bytes: int
    max_bytes_in_flight: int
    num_threads: int
    retry: RetryPolicy
    max_batch_bytes: int = 64 << 20
    max_batch_tasks: int | None = None

    def __post_init__(self) -> None:
        if self.size_threshold_bytes > self.max_bytes_in_flight:
            raise InvalidInputError(
                f"sizeThresholdBytes ({self.size_threshold_bytes}) must not exceed "
                f"maxBytesInFlight ({self.max_bytes_in_flight})"
            )
        if self.max_batch_tasks is not None and self.max_batch_tasks < 1:
            raise InvalidInputError(f"max_batch_tasks is {self.max_batch_tasks}: 1 or more, or None")

    @classmethod
    def from_options(cls, options: FsStateChangelogOptions, capabilities: StoreCapabilities) -> Self:
        """The policy for a store, which declares how many threads are worth starting."""
        return cls(
            persist_delay_seconds=options.batch_persist_delay.total_seconds(),
            size_threshold_bytes=options.batch_persist_size_threshold_bytes,
            max_bytes_in_flight=options.max_in_flight_bytes,
            num_threads=capabilities.useful_threads(options.num_upload_threads),
            retry=RetryPolicy.of_uploads(options),
        )

    def is_due(self, queued_bytes: int) -> bool:
        """Whether the queued tasks leave now."""
        return self.persist_delay_seconds == 0 or queued_bytes >= self.size_threshold_bytes


class UploadScheduler(StateChangeUploadScheduler):
    """Uploads tasks in batches, by an `UploadPolicy`; retries; limits bytes in flight.

    A batch is due at the first of: the delay after its first task; the threshold queued. It leaves with the
    first free thread, and tasks still join it until then, unless there is no delay: then each task has a file
    of its own. Batches upload in parallel and may end in any order.

    Args:
        uploader: makes the attempts. It is closed with the scheduler.
        begin_file: the uploader's, where it may begin a batch's file before the batch leaves
            (`StateChangeFsUploader.begin`); that file does not go through its `upload`.
        timer, executor: where waiting and uploading happen; by default threads of its own. They are closed
            with the scheduler.
    """

    def __init__(
        self,
        policy: UploadPolicy,
        uploader: StateChangeUploader,
        metrics: UploadMetrics | None = None,
        *,
        begin_file: BeginFile | None = None,
        timer: Timer | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._policy = policy
        self._uploader = uploader
        self._metrics = metrics or UploadMetrics()
        self._throttle = UploadThrottle(policy.max_bytes_in_flight)
        self._timer = timer or ThreadTimer("dstl-changelog-upload-timer")
        self._executor = executor or ThreadPoolExecutor(
            policy.num_threads, thread_name_prefix="dstl-changelog-upload"
        )
        self._retrying = RetryingExecutor(self._executor, self._timer, self._metrics.upload_wins)
        self._lock = threading.Lock()
        self._queue = BatchQueue(
            policy.size_threshold_bytes,
            policy.max_batch_bytes,
            begin_file,
            policy.max_batch_tasks if policy.persist_delay_seconds > 0 else 1,
        )
        self._begins_files = begin_file is not None
        self._early_write_is_queued = False
        self._claims = 0
        """Batches that are due and that no thread has taken out of the queue yet."""
        self._cancel_drain: Callable[[], None] | None = None
        self._fatal_error: BaseException | None = None
        self._closed = False
        self._end_gauge = self._metrics.watch_queue(self._queue_length)

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
        # Arrow imports pandas, if there is one, with the first array that it makes of Python's values: that
        # may take longer than an attempt.
        pa.array(())
        try:
            self._throttle.seize(task.size)
        except BaseException as error:
            task.fail(_failure_by(error))
            raise
        # From here on the task's end gives the bytes back, however it ends.
        admitted = UploadTask(
            task.change_sets,
            _first(lambda: self._throttle.release(task.size), task.complete),
            lambda _, error: _first(lambda: self._throttle.release(task.size), task.fail)(error),
            task.operator,
        )
        try:
            self._enqueue(admitted)
        except BaseException as error:
            self._withdraw(admitted)
            admitted.fail(_failure_by(error))
            raise

    # -- until a batch is due

    def _enqueue(self, task: UploadTask) -> None:
        with self._lock:
            closed = self._closed
            if not closed:
                self._queue.add(task)
            due = self._policy.is_due(self._queue.size_bytes) or self._queue.last_is_full
            if not closed and not due and self._cancel_drain is None:
                self._cancel_drain = self._timer.schedule(self._policy.persist_delay_seconds, self._drain)
        if closed:
            raise ClosedError("the upload scheduler is closed: open another storage")
        if due:
            self._drain()
        elif self._begins_files:
            self._queue_early_write()

    def _withdraw(self, task: UploadTask) -> None:
        with self._lock:
            emptied = self._queue.remove(task)
        if emptied is not None:
            emptied.early.abandon()

    def _queue_early_write(self) -> None:
        with self._lock:
            if self._early_write_is_queued:
                return
            self._early_write_is_queued = True
        # Refused when shut down, or for want of a thread, which the batch's attempt will report.
        with suppress(RuntimeError):
            self._executor.submit(self._write_early)

    def _write_early(self) -> None:
        with self._lock:
            self._early_write_is_queued = False
            batch = self._queue.first
            tasks = [] if batch is None else list(batch.tasks)
        if batch is not None:
            batch.early.write(tasks)

    # -- once it is due

    def _drain(self) -> None:
        """Everything queued is due: see to it that there is a claim for each of its batches."""
        with self._lock:
            self._end_wait()
            missing_claims = len(self._queue) - self._claims
            self._claims += max(0, missing_claims)
        for _ in range(missing_claims):
            if self._fatal_error is not None:
                self._fail_queue(self._fatal_error)
                return
            try:
                self._retrying.execute(self._policy.retry, BatchAction(self._uploader, self._claim))
            except (ClosedError, UnavailableError, OSError) as error:
                batch = self._claim()
                if batch is not None:
                    batch.fail(error)
            except BaseException as error:
                # No batch can be begun any more: fail every task at once.
                self._fatal_error = error
                self._fail_queue(error)
                raise

    def _claim(self) -> Batch | None:
        """Take the next batch out of the queue, in the thread that uploads it."""
        with self._lock:
            self._claims -= 1
            batch = self._queue.take()
            if not self._queue:
                # No task waits any more; the next task waits the whole delay.
                self._end_wait()
        if batch is not None:
            self._metrics.of(batch.tasks).batch_begins(len(batch.tasks))
        return batch

    def _end_wait(self) -> None:
        """Call under the lock."""
        if self._cancel_drain is not None:
            self._cancel_drain()
            self._cancel_drain = None

    def _fail_queue(self, error: BaseException) -> None:
        """Nothing queued will be uploaded."""
        batches = []
        with self._lock:
            while (batch := self._queue.take()) is not None:
                batches.append(batch)
            self._end_wait()
        for batch in batches:
            batch.fail(error)

    def close(self) -> None:
        """Fail what is queued or running with ClosedError; wait until no thread is left. May be called again.

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


class BatchingStateChangeUploadScheduler(UploadScheduler):
    """The same by upstream's constructor; no file is begun before its batch is due.

    Args:
        persist_delay_seconds, size_threshold_bytes, max_bytes_in_flight, max_batch_tasks: see `UploadPolicy`.
        timer, executor: see `UploadScheduler`.

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
        max_batch_tasks: int | None = None,
        timer: Timer | None = None,
        executor: Executor | None = None,
    ) -> None:
        policy = UploadPolicy(
            persist_delay_seconds=persist_delay_seconds,
            size_threshold_bytes=size_threshold_bytes,
            max_bytes_in_flight=max_bytes_in_flight,
            num_threads=num_upload_threads,
            retry=retry_policy,
            max_batch_tasks=max_batch_tasks,
        )
        super().__init__(policy, uploader, metrics, timer=timer, executor=executor)

    @classmethod
    def of(
        cls,
        uploader: StateChangeUploader,
        max_batch_size: int,
        batch_timeout: timedelta,
        executor: Executor | None = None,
    ) -> Self:
        """A batch leaves with that many tasks, or after that time; the rest is as the options have it."""
        options = FsStateChangelogOptions(batch_persist_delay=batch_timeout)
        policy = UploadPolicy.from_options(options, StoreCapabilities())
        return cls(
            policy.persist_delay_seconds,
            policy.size_threshold_bytes,
            policy.retry,
            uploader,
            policy.num_threads,
            policy.max_bytes_in_flight,
            max_batch_tasks=max_batch_size,
            executor=executor,
        )


class _DirectScheduler(StateChangeUploadScheduler):
    """One file per task, one attempt per file."""

    def __init__(self, uploader: StateChangeUploader) -> None:
        self._uploader = uploader
        self._closed = False

    def upload(self, task: UploadTask) -> None:
        if self._closed:
            closed = ClosedError("the upload scheduler is closed: open another storage")
            task.fail(closed)
            raise closed
        try:
            result = self._uploader.upload([task])
        except BaseException as error:
            task.fail(error)
            raise
        complete_all(result, [task])

    def close(self) -> None:
        self._closed = True
        self._uploader.close()


def direct_scheduler(uploader: StateChangeUploader) -> StateChangeUploadScheduler:
    """A scheduler that uploads at once, in the caller's thread, and raises what the uploader raises."""
    return _DirectScheduler(uploader)


def _failure_by(error: BaseException) -> DstlError:
    if isinstance(error, DstlError):
        return error
    failure = UnavailableError(f"the upload could not be begun: {type(error).__name__}")
    failure.__cause__ = error
    return failure


def _first(before: Callable[[], None], then: Callable[..., None]) -> Callable[..., None]:
    """`then`, after `before` in any case."""

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
) -> UploadScheduler:
    """The scheduler that the options describe, with the uploader that local recovery calls for."""
    metrics = metrics or UploadMetrics()
    uploader = StateChangeFsUploader(
        store,
        base_path,
        job_id,
        registry,
        local_directory=local_changelog_directory(local_recovery, job_id),
        compression=Compression[options.compression.upper()],
        buffer_bytes=options.upload_buffer_bytes,
        metrics=metrics,
    )
    policy = UploadPolicy.from_options(options, store.capabilities)
    return UploadScheduler(policy, uploader, metrics, begin_file=uploader.begin)
