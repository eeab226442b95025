"""Uploads under a test's control: a manual timer, manual executors, uploaders that record.

Owns stand-ins for `upload`'s timer, executor, uploader and scheduler. Does not own any behaviour under test.

Twins of Flink's `TestingStateChangeUploader`, `TestingBatchingUploadScheduler` and
`DiscardRecordableStateChangeUploader`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from typing import Any

from dstl_dagster.errors import ClosedError
from dstl_dagster.format import StateChangeSet, StreamStateHandle
from dstl_dagster.registry import TaskChangelogRegistry
from dstl_dagster.upload import (
    StateChangeUploader,
    StateChangeUploadScheduler,
    UploadResult,
    UploadTask,
    UploadTasksResult,
)


class InlineMailbox:
    """Runs a command at once, in the submitting thread."""

    def execute(self, command: Callable[[], None], description: str) -> None:
        del description
        command()


class ManualTimer:
    """A timer whose time advances only through `advance`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now_seconds = 0.0
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.closed = False

    @property
    def delays_seconds(self) -> list[float]:
        """Time left for each waiting command, ascending."""
        with self._lock:
            return sorted(due - self._now_seconds for due, _, _ in self._waiting)

    def schedule(self, delay_seconds: float, command: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            if self.closed:
                raise ClosedError("the timer is closed")
            self._count += 1
            entry = (self._now_seconds + delay_seconds, self._count, command)
            self._waiting.append(entry)

        def cancel() -> None:
            with self._lock:
                if entry in self._waiting:
                    self._waiting.remove(entry)

        return cancel

    def advance(self, seconds: float) -> None:
        """Advance time and run what becomes due, in order."""
        with self._lock:
            end_seconds = self._now_seconds + seconds
        while True:
            with self._lock:
                due = min((entry for entry in self._waiting if entry[0] <= end_seconds), default=None)
                if due is None:
                    self._now_seconds = end_seconds
                    return
                self._waiting.remove(due)
                self._now_seconds = max(self._now_seconds, due[0])
            due[2]()

    def close(self) -> None:
        with self._lock:
            self.closed = True
            self._waiting.clear()


class ManualExecutor(Executor):
    """An executor whose work runs in the thread that calls `run_next` or `run_all`."""

    def __init__(self) -> None:
        self.queued: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self.queued.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run_next(self) -> None:
        future, work = self.queued.pop(0)
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    def run_all(self) -> None:
        while self.queued:
            self.run_next()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.closed = True
        if cancel_futures:
            self.queued.clear()
        elif wait:
            self.run_all()


class CallerExecutor(ManualExecutor):
    """An executor that runs work at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        self.run_next()
        return future


class RecordingUploader(StateChangeUploader):
    """Records what it is asked to upload; each attempt writes one imaginary file.

    Args:
        registry: tracks each file, as an uploader must ensure.
        outcomes: what the attempts do, in order: an exception is raised, a callable is called first, None
            succeeds. After the last one, every attempt succeeds.
    """

    def __init__(
        self,
        registry: TaskChangelogRegistry | None = None,
        outcomes: Collection[BaseException | Callable[[], None] | None] = (),
        *,
        local_copies: bool = False,
    ) -> None:
        self._lock = threading.Lock()
        self._registry = registry
        self._outcomes = list(outcomes)
        self._local_copies = local_copies
        self.attempts: list[list[UploadTask]] = []
        self.discarded: list[StreamStateHandle] = []
        self.closed = False

    @property
    def change_sets(self) -> list[StateChangeSet]:
        """All sets of all attempts, in order."""
        with self._lock:
            return [each for tasks in self.attempts for task in tasks for each in task.change_sets]

    def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
        with self._lock:
            self.attempts.append(list(tasks))
            number = len(self.attempts)
            outcome = self._outcomes.pop(0) if self._outcomes else None
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is not None:
            outcome()
        handle = StreamStateHandle(f"file-{number}", sum(task.size for task in tasks))
        local = StreamStateHandle(f"copy-{number}", handle.size) if self._local_copies else None
        set_count = sum(len(task.change_sets) for task in tasks)
        if self._registry is not None:
            for each in (handle, local):
                if each is not None:
                    self._registry.start_tracking(each, set_count)
        offsets = {
            task: {change_set: (at, at) for at, change_set in enumerate(task.change_sets)} for task in tasks
        }
        return UploadTasksResult(offsets, handle, local, lambda: self.discarded.append(handle))

    def close(self) -> None:
        self.closed = True


class HeldScheduler(StateChangeUploadScheduler):
    """A scheduler that holds every task until the test completes or fails it."""

    def __init__(self, uploader: StateChangeUploader | None = None) -> None:
        self.tasks: list[UploadTask] = []
        self._uploader = uploader or RecordingUploader()
        self.closed = False

    def upload(self, task: UploadTask) -> None:
        self.tasks.append(task)

    def complete_all(self) -> None:
        """Upload all held tasks, as one file."""
        tasks, self.tasks = self.tasks, []
        if tasks:
            self._uploader.upload(tasks).complete()

    def complete(self, index: int = 0) -> list[UploadResult]:
        """Upload one task; returns its results."""
        task = self.tasks.pop(index)
        result = self._uploader.upload([task])
        result.complete()
        return result.results[task]

    def fail(self, index: int = 0, error: BaseException | None = None) -> None:
        """Fail one task permanently."""
        self.tasks.pop(index).fail(error or OSError("failed by the test"))

    def close(self) -> None:
        self.closed = True
