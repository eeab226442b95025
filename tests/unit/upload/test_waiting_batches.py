"""What happens to a batch between its first task and its file: written early, joined late, given up."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from dstl_dagster.errors import ClosedError, UnavailableError
from dstl_dagster.format import SequenceNumber, StateChange, StateChangeSet, StreamStateHandle
from dstl_dagster.metrics import InMemoryMetrics
from dstl_dagster.registry import TaskChangelogRegistry
from dstl_dagster.storage import Generation, MemoryObjectStore, ObjectStore
from dstl_dagster.upload import (
    BatchingStateChangeUploadScheduler,
    RetryPolicy,
    StateChangeFsUploader,
    UploadMetrics,
    UploadTask,
    UploadTasksResult,
)
from dstl_dagster.upload.batches import BatchQueue
from dstl_dagster.upload.file_upload import FileUpload
from dstl_dagster.upload.scheduler import UploadPolicy, UploadScheduler
from tests.doubles.uploads import CallerExecutor, ManualExecutor, ManualTimer, RecordingUploader

DELAY_SECONDS = 1.0
BUFFER_BYTES = 1 << 20


class Store(MemoryObjectStore):
    """Counts what is written, and breaks streams while told so."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks = False
        self.streams = 0

    def open_write(self, name: str, **arguments: Any) -> Any:
        self.streams += 1
        if self.breaks:
            raise UnavailableError("the line broke")
        return super().open_write(name, **arguments)


class Bench:
    """A scheduler whose time and threads stand still, over a store that counts."""

    def __init__(self, store: ObjectStore | None = None) -> None:
        self.store: Any = store or Store()
        self.timer, self.executor, self.metrics = ManualTimer(), ManualExecutor(), InMemoryMetrics()
        registry = TaskChangelogRegistry(self._delete, CallerExecutor())
        metrics = UploadMetrics(self.metrics)
        uploader = StateChangeFsUploader(
            self.store, "", "job", registry, buffer_bytes=BUFFER_BYTES, metrics=metrics
        )
        policy = UploadPolicy(
            persist_delay_seconds=DELAY_SECONDS,
            size_threshold_bytes=10 * BUFFER_BYTES,
            max_bytes_in_flight=100 * BUFFER_BYTES,
            num_threads=1,
            retry=RetryPolicy.fixed(2, 0, 0),
        )
        self.scheduler = UploadScheduler(
            policy,
            uploader,
            metrics,
            begin_file=uploader.begin,
            timer=self.timer,
            executor=self.executor,
        )
        self.completed: list[int] = []
        self.failed: list[BaseException] = []

    def _delete(self, handle: StreamStateHandle) -> None:
        stat = self.store.stat(handle.name)
        if stat is not None:
            self.store.delete(handle.name, precondition=Generation(stat.generation))

    def upload(self, sqn: int, size: int) -> UploadTask:
        change_set = StateChangeSet(
            uuid.UUID(int=1), SequenceNumber.of(sqn), [StateChange.of(0, bytes([sqn]) * size)]
        )
        task = UploadTask(
            [change_set], lambda _: self.completed.append(sqn), lambda _, error: self.failed.append(error)
        )
        self.scheduler.upload(task)
        return task

    def content(self) -> list[bytes]:
        return [self.store.get(stat.name) for stat in self.store.list()]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.scheduler.close()
    assert bench.scheduler.in_flight_bytes == 0


def test_a_batch_that_waits_is_written_already(bench: Bench) -> None:
    """A free thread sends what is there; when the batch is due the rest follows, into the same file."""
    bench.upload(0, 2 * BUFFER_BYTES)
    bench.executor.run_all()
    assert (bench.store.streams, bench.completed, bench.content()) == (1, [], [])
    bench.upload(1, 10)
    bench.timer.advance(DELAY_SECONDS)
    bench.executor.run_all()
    assert (bench.store.streams, bench.completed) == (1, [0, 1])
    early = bench.content()

    other = Bench()
    other.upload(0, 2 * BUFFER_BYTES)
    other.executor.queued.clear()
    other.upload(1, 10)
    other.timer.advance(DELAY_SECONDS)
    other.executor.run_all()
    assert other.content() == early
    other.scheduler.close()


def test_an_early_error_costs_no_attempt_of_the_batch(bench: Bench) -> None:
    """What breaks before the batch is due is forgotten with its file; the first attempt begins anew."""
    bench.store.breaks = True
    bench.upload(0, 2 * BUFFER_BYTES)
    bench.executor.run_all()
    assert (bench.store.streams, bench.failed) == (1, [])
    bench.store.breaks = False
    bench.timer.advance(DELAY_SECONDS)
    bench.executor.run_all()
    assert (bench.completed, bench.failed, len(bench.content())) == ([0], [], 1)
    assert bench.metrics.counter("ChangelogStorage.numberOfUploadFailures") == 1


def test_an_error_after_an_early_beginning_is_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt that goes on with an early file may fail as any other: the next makes a file of its own."""
    bench.upload(0, 10)
    bench.executor.run_all()
    finish = FileUpload.finish

    def fail_once(self: FileUpload) -> Any:
        monkeypatch.setattr(FileUpload, "finish", finish)
        with self._attempting():
            raise UnavailableError("no answer")

    monkeypatch.setattr(FileUpload, "finish", fail_once)
    bench.timer.advance(DELAY_SECONDS)
    bench.executor.run_all()
    assert (bench.completed, bench.failed, len(bench.content())) == ([0], [], 1)
    assert bench.metrics.counter("ChangelogStorage.numberOfUploadRequests") == 2


def test_closing_gives_up_what_was_written_early(bench: Bench) -> None:
    """A storage closed while a batch waits fails its tasks, and no file of it is left."""
    bench.upload(0, 2 * BUFFER_BYTES)
    bench.executor.run_all()
    bench.scheduler.close()
    assert [type(error) for error in bench.failed] == [ClosedError]
    assert (bench.content(), bench.completed) == ([], [])


def test_a_task_that_is_withdrawn_takes_the_early_file_with_it(bench: Bench) -> None:
    """A file that holds what is no longer in the batch is not used."""
    bench.upload(0, 2 * BUFFER_BYTES)
    bench.executor.run_all()
    with bench.scheduler._lock:
        first = bench.scheduler._queue.first
        assert first is not None
        [gone] = first.tasks
    bench.scheduler._withdraw(gone)
    gone.fail(UnavailableError("interrupted"))
    bench.upload(1, 10)
    bench.timer.advance(DELAY_SECONDS)
    bench.executor.run_all()
    assert (bench.completed, len(bench.failed)) == ([1], 1)
    [content] = bench.content()
    assert len(content) < BUFFER_BYTES


def test_one_thread_is_asked_to_write_early_however_many_tasks_come(bench: Bench) -> None:
    """It writes all that is there when it begins; the next task asks again."""
    for sqn in range(5):
        bench.upload(sqn, 10)
    assert len(bench.executor.queued) == 1
    bench.executor.run_all()
    bench.upload(5, 10)
    assert len(bench.executor.queued) == 1
    bench.timer.advance(DELAY_SECONDS)
    bench.executor.run_all()
    assert (bench.completed, len(bench.content())) == ([0, 1, 2, 3, 4, 5], 1)


def _recorded(threshold: int = 100, delay: float = DELAY_SECONDS) -> tuple[Any, Any, Any, Any]:
    uploader, timer, executor = RecordingUploader(), ManualTimer(), ManualExecutor()
    scheduler = BatchingStateChangeUploadScheduler(
        delay, threshold, RetryPolicy.none(), uploader, 1, 10_000, timer=timer, executor=executor
    )
    return scheduler, uploader, timer, executor


def _task(size: int) -> UploadTask:
    change_set = StateChangeSet(uuid.uuid4(), SequenceNumber.of(0), [StateChange.of(0, b"x" * size)])
    return UploadTask([change_set], lambda _: None, lambda *_: None)


def test_tasks_join_a_batch_that_is_due_until_a_thread_takes_it() -> None:
    """While every thread is busy there are fewer, larger files."""
    scheduler, uploader, timer, executor = _recorded()
    scheduler.upload(_task(10))
    timer.advance(DELAY_SECONDS)
    scheduler.upload(_task(20))
    assert len(executor.queued) == 1
    executor.run_all()
    assert [[task.size for task in tasks] for tasks in uploader.attempts] == [[10, 20]]
    # And who comes then waits the whole delay.
    scheduler.upload(_task(30))
    assert timer.delays_seconds == [DELAY_SECONDS]
    scheduler.close()


def test_a_due_batch_grows_to_the_threshold_and_then_another_leaves() -> None:
    """Each of them has a thread that will take it."""
    scheduler, uploader, _, executor = _recorded()
    for size in (60, 50, 60, 50, 60):
        scheduler.upload(_task(size))
    assert len(executor.queued) == 3
    executor.run_all()
    assert [[task.size for task in tasks] for tasks in uploader.attempts] == [[60, 50], [60, 50], [60]]
    scheduler.close()


def test_without_delay_each_task_has_its_own_file() -> None:
    """Also where no thread was free to take the first before the second came."""
    scheduler, uploader, _, executor = _recorded(delay=0)
    for size in (10, 20, 30):
        scheduler.upload(_task(size))
    executor.run_all()
    assert [[task.size for task in tasks] for tasks in uploader.attempts] == [[10], [20], [30]]
    scheduler.close()


def test_where_batches_end() -> None:
    """With the task that reaches what is enough, before the one that would be too much."""
    tasks = [_task(size) for size in (10, 10, 10, 40, 5)]
    assert _ends(tasks, 1000, 25) == [2, 3, 4, 5]
    assert _ends(tasks, 20, 1000) == [2, 4, 5]
    assert _ends(tasks, 0, 1000) == [1, 2, 3, 4, 5]
    assert _ends([], 20, 1000) == []


def _ends(tasks: list[UploadTask], threshold_bytes: int, max_bytes: int) -> list[int]:
    queue = BatchQueue(threshold_bytes, max_bytes)
    for task in tasks:
        queue.add(task)
    assert queue.size_bytes == sum(task.size for task in tasks)
    lengths = []
    while (batch := queue.take()) is not None:
        lengths.append(len(batch.tasks))
    assert (queue.size_bytes, len(queue)) == (0, 0)
    return list(itertools.accumulate(lengths))


def test_an_uploader_of_ones_own_is_not_passed_by() -> None:
    """A subclass that changes `upload` is called for each batch, also where there is a delay."""
    registry, executor, timer = TaskChangelogRegistry.no_op(), ManualExecutor(), ManualTimer()
    uploads = []

    class Own(StateChangeFsUploader):
        def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
            uploads.append(len(tasks))
            return super().upload(tasks)

    scheduler = BatchingStateChangeUploadScheduler(
        DELAY_SECONDS,
        1000,
        RetryPolicy.none(),
        Own(MemoryObjectStore(), "", "job", registry),
        1,
        10_000,
        timer=timer,
        executor=executor,
    )
    scheduler.upload(_task(10))
    executor.run_all()
    timer.advance(DELAY_SECONDS)
    executor.run_all()
    assert uploads == [1]
    scheduler.close()
