"""Where uploads and closing do better than upstream, one test for each decision, through a whole storage."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.errors import ClosedError, InternalError, UnavailableError
from dstl_dagster.format import (
    SequenceNumber,
    StateChange,
    StateChangeSet,
    StreamStateHandle,
)
from dstl_dagster.metrics import InMemoryMetrics
from dstl_dagster.registry import TaskChangelogRegistry
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import MemoryObjectStore, ObjectStat, ObjectWriter
from dstl_dagster.upload import BatchingStateChangeUploadScheduler, RetryPolicy, UploadTask, UploadTasksResult
from dstl_dagster.upload.scheduler import UploadPolicy, UploadScheduler
from dstl_dagster.upload.throttle import UploadThrottle
from tests.doubles.uploads import (
    CallerExecutor,
    HeldScheduler,
    ManualExecutor,
    ManualTimer,
    RecordingUploader,
)
from tests.unit.changelog.writing import DEADLINE_SECONDS, FAST, RANGE, names_in, open_writer, persisted


class FailingWriter:
    """A stream that breaks where it is told to."""

    def __init__(self, inner: ObjectWriter, where: str, effect: bool) -> None:
        self._inner = inner
        self._where = where
        self._effect = effect

    def write(self, payload: Any, crc32c: int | None = None) -> int:
        if self._where == "write":
            raise UnavailableError("the line broke")
        return self._inner.write(payload, crc32c)

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> Any:
        if self._where == "close":
            if self._effect:
                self._inner.close()
            raise UnavailableError("no answer")
        return self._inner.close()

    def abort(self) -> None:
        self._inner.abort()


class FailingStore(MemoryObjectStore):
    """A memory store whose first writes fail: before or after they had their effect."""

    def __init__(self, failures: int, *, where: str = "close", effect: bool = False) -> None:
        super().__init__()
        self.failures = failures
        self.where = where
        self.effect = effect
        self._failing_lock = threading.Lock()

    def _fails(self) -> bool:
        with self._failing_lock:
            self.failures -= 1
            return self.failures >= 0

    def put(self, name: str, payload: Any, **arguments: Any) -> Any:
        if self._fails():
            if self.effect:
                super().put(name, payload, **arguments)
            raise UnavailableError("no answer")
        return super().put(name, payload, **arguments)

    def open_write(self, name: str, **arguments: Any) -> Any:
        writer = super().open_write(name, **arguments)
        return FailingWriter(writer, self.where, self.effect) if self._fails() else writer


class TestClosing:
    def test_a_closed_writer_says_so(self) -> None:
        """Every call but close raises ClosedError, and close may be called again."""
        with open_writer() as (_, writer):
            writer.append(0, b"x")
            writer.close()
            writer.close()
            zero = SequenceNumber.of(0)
            calls: list[Callable[[], object]] = [
                lambda: writer.append(0, b"x"),
                lambda: writer.append_meta(b"x"),
                lambda: writer.append_batch(pa.array([0], pa.int32()), pa.array([b"x"], pa.binary())),
                writer.initial_sequence_number,
                writer.next_sequence_number,
                lambda: writer.persist(zero, 1),
                lambda: writer.confirm(zero, zero, 1),
                lambda: writer.reset(zero, zero, 1),
                lambda: writer.truncate(zero),
                lambda: writer.truncate_and_close(zero),
            ]
            for call in calls:
                with pytest.raises(ClosedError):
                    call()

    def test_pending_futures_fail_at_close(self) -> None:
        """A future that waits when its writer is closed fails with ClosedError."""
        scheduler = HeldScheduler()
        with open_writer(scheduler=scheduler) as (_, writer):
            writer.append(0, b"x")
            future = writer.persist(SequenceNumber.of(0), 1)
            writer.close()
            assert isinstance(future.exception(timeout=0), ClosedError)

    def test_a_late_result_is_released_by_count(self) -> None:
        """A result that arrives after close gives its file up only when no other writer's set is in it."""
        deleted: list[StreamStateHandle] = []
        registry = TaskChangelogRegistry.with_threads(deleted.append, 1)
        scheduler = HeldScheduler(RecordingUploader(registry))
        with FsStateChangelogStorage(
            "job", MemoryObjectStore(), FAST, scheduler=scheduler, registry=registry
        ) as storage:
            one, other = storage.create_writer("a", RANGE), storage.create_writer("b", RANGE)
            futures = []
            for writer in (one, other):
                writer.append(0, b"x")
                futures.append(writer.persist(SequenceNumber.of(0), 1))
            one.close()
            scheduler.complete_all()
            handle = futures[1].result(DEADLINE_SECONDS).job_manager_owned_snapshot
            assert handle is not None
            file = handle.handles_and_offsets[0][0]
            assert registry.tracked_count(file) == 1
            other.truncate_and_close(SequenceNumber.of(0))
        assert deleted == [file]

    def test_what_is_queued_when_the_storage_closes_fails(self) -> None:
        """Tasks that wait for their batch fail with ClosedError; so do those that come after close."""
        options = FsStateChangelogOptions(batch_persist_delay=timedelta(hours=1))
        storage = FsStateChangelogStorage("job", MemoryObjectStore(), options)
        writer = storage.create_writer("op", RANGE)
        writer.append(0, b"x")
        queued = writer.persist(SequenceNumber.of(0), 1)
        storage.close()
        assert isinstance(queued.exception(DEADLINE_SECONDS), ClosedError)
        from_ = writer.next_sequence_number()
        writer.append(0, b"y")
        assert isinstance(writer.persist(from_, 2).exception(DEADLINE_SECONDS), ClosedError)
        with pytest.raises(ClosedError):
            storage.create_writer("op", RANGE)
        storage.close()
        writer.close()

    def test_close_ends_a_running_upload(self) -> None:
        """A storage closed while an upload runs fails its future, deletes its file and leaves no thread."""
        began, go_on = threading.Event(), threading.Event()

        class Slow(MemoryObjectStore):
            def put(self, *arguments: Any, **keywords: Any) -> Any:
                began.set()
                assert go_on.wait(DEADLINE_SECONDS)
                return super().put(*arguments, **keywords)

        before = set(threading.enumerate())
        store = Slow()
        storage = FsStateChangelogStorage("job", store, FAST)
        writer = storage.create_writer("op", RANGE)
        writer.append(0, b"x")
        future = writer.persist(SequenceNumber.of(0), 1)
        assert began.wait(DEADLINE_SECONDS)
        closing = threading.Thread(target=storage.close)
        closing.start()
        assert isinstance(future.exception(DEADLINE_SECONDS), ClosedError)
        go_on.set()
        closing.join(DEADLINE_SECONDS)
        writer.close()
        assert names_in(store) == []
        assert set(threading.enumerate()) <= before


class TestRetries:
    @pytest.mark.parametrize("size", [10, 3 << 20], ids=["put", "stream"])
    @pytest.mark.parametrize("where", ["write", "close"])
    def test_a_failed_attempt_is_repeated(self, size: int, where: str) -> None:
        """An error of one attempt, on writing or closing, fails no task: another attempt follows, and the
        store holds the winner's file alone.
        """
        store = FailingStore(2, where=where)
        with open_writer(store) as (storage, writer):
            writer.append(0, b"x" * size)
            handle = persisted(writer)
            assert [len(each.change) for each in storage.create_reader().read(handle)] == [size]
        assert names_in(store) == [handle.handles_and_offsets[0][0].name]

    @pytest.mark.parametrize("size", [10, 3 << 20], ids=["put", "stream"])
    def test_a_lost_answer_is_read_back(self, size: int) -> None:
        """An upload whose answer was lost counts when the object is provably its own: no second attempt."""
        store, metrics = FailingStore(1, effect=True), InMemoryMetrics()
        with open_writer(store, metrics=metrics) as (_, writer):
            writer.append(0, b"x" * size)
            handle = persisted(writer)
        assert names_in(store) == [handle.handles_and_offsets[0][0].name]
        assert metrics.counter("ChangelogStorage.numberOfUploadRequests") == 1

    def test_exhausted_retries_fail_the_task_and_leave_nothing(self) -> None:
        """After the last attempt the future fails, and no attempt's file is left."""
        store, metrics = FailingStore(99), InMemoryMetrics()
        with open_writer(store, metrics=metrics) as (_, writer):
            writer.append(0, b"x")
            with pytest.raises(UnavailableError, match="no answer"):
                persisted(writer)
        assert metrics.counter("ChangelogStorage.numberOfUploadFailures") == 3
        assert names_in(store) == []

    def test_the_loser_of_a_race_is_deleted(self) -> None:
        """An attempt that timed out and ends after the winner has its file deleted, also from local disk."""
        first_waits = threading.Event()
        lock = threading.Lock()
        puts = 0

        class SlowOnce(MemoryObjectStore):
            def put(self, *arguments: Any, **keywords: Any) -> Any:
                nonlocal puts
                with lock:
                    puts += 1
                    number = puts
                if number == 1:
                    assert first_waits.wait(DEADLINE_SECONDS)
                return super().put(*arguments, **keywords)

        store, metrics = SlowOnce(), InMemoryMetrics()
        options = FsStateChangelogOptions(
            batch_persist_delay=timedelta(0), upload_timeout=timedelta(milliseconds=20)
        )
        with open_writer(store, options, metrics=metrics) as (_, writer):
            writer.append(0, b"x")
            handle = persisted(writer)
            first_waits.set()
        assert names_in(store) == [handle.handles_and_offsets[0][0].name]
        assert metrics.counter("ChangelogStorage.numberOfDiscardedUploads") == 1


class TestBatches:
    def test_a_batch_has_a_byte_limit(self) -> None:
        """Waiting tasks go into files of at most the limit; one larger task goes alone."""
        uploader = RecordingUploader()
        timer = ManualTimer()
        policy = UploadPolicy(
            persist_delay_seconds=1,
            size_threshold_bytes=1000,
            max_bytes_in_flight=10_000,
            num_threads=1,
            retry=RetryPolicy.none(),
            max_batch_bytes=25,
        )
        scheduler = UploadScheduler(policy, uploader, timer=timer, executor=CallerExecutor())
        for size in (10, 10, 10, 40, 5):
            change_set = StateChangeSet(uuid.uuid4(), SequenceNumber.of(0), [StateChange.of(0, b"x" * size)])
            scheduler.upload(UploadTask([change_set], lambda _: None, lambda *_: None))
        timer.advance(1)
        assert [[task.size for task in tasks] for tasks in uploader.attempts] == [[10, 10], [10], [40], [5]]
        scheduler.close()

    def test_the_in_flight_limit_is_not_overshot(self) -> None:
        """A task waits while it does not fit, though a byte is free; one above the limit passes alone."""
        throttle = UploadThrottle(10)
        throttle.seize(9)
        entered = threading.Event()
        blocked = threading.Thread(target=lambda: (throttle.seize(1000), entered.set()))
        blocked.start()
        assert not entered.wait(0.05)
        throttle.release(9)
        blocked.join(DEADLINE_SECONDS)
        assert throttle.in_flight_bytes == 1000

    def test_an_uploader_that_forgets_a_task_does_not_hang_it(self) -> None:
        """A result without one of the tasks fails that task."""

        class Forgetful(RecordingUploader):
            def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
                return UploadTasksResult({}, StreamStateHandle("file", 0))

        scheduler = BatchingStateChangeUploadScheduler(0, 0, RetryPolicy.none(), Forgetful(), 1, 100)
        with open_writer(scheduler=scheduler) as (_, writer):
            writer.append(0, b"x")
            assert writer.persist(SequenceNumber.of(0), 1).exception(DEADLINE_SECONDS) is not None

    def test_any_error_of_an_attempt_ends_its_task(self) -> None:
        """An attempt that dies with something that is no ordinary exception still fails its task."""
        scheduler = BatchingStateChangeUploadScheduler(
            0, 0, RetryPolicy.fixed(3, 0, 0), RecordingUploader(outcomes=[SystemExit(3)]), 1, 100
        )
        with open_writer(scheduler=scheduler) as (_, writer):
            writer.append(0, b"x")
            assert isinstance(
                writer.persist(SequenceNumber.of(0), 1).exception(DEADLINE_SECONDS), UnavailableError
            )

    def test_a_fatal_error_fails_all_that_come(self) -> None:
        """Where no upload can be begun any more, tasks that wait and tasks that come fail at once."""

        class NoThreads(ManualExecutor):
            def submit(self, *arguments: Any, **keywords: Any) -> Any:
                raise RuntimeError("can't start new thread")

        scheduler = BatchingStateChangeUploadScheduler(
            0, 0, RetryPolicy.none(), RecordingUploader(), 1, 100, executor=NoThreads()
        )
        with open_writer(scheduler=scheduler) as (_, writer):
            writer.append(0, b"x")
            with pytest.raises(RuntimeError, match="new thread"):
                writer.persist(SequenceNumber.of(0), 1)
            above = writer.next_sequence_number()
            writer.append(0, b"y")
            assert isinstance(writer.persist(above, 2).exception(DEADLINE_SECONDS), UnavailableError)
            assert scheduler.in_flight_bytes == 0

    def test_a_submit_that_meets_close_is_told_as_closed(self) -> None:
        """A batch that is handed over while the executor shuts down fails with ClosedError, not as fatal."""
        executor = ManualExecutor()
        scheduler = BatchingStateChangeUploadScheduler(
            0, 0, RetryPolicy.none(), RecordingUploader(), 1, 100, executor=executor
        )

        class Closing(ManualExecutor):
            def submit(self, *arguments: Any, **keywords: Any) -> Any:
                scheduler.close()
                raise RuntimeError("cannot schedule new futures after shutdown")

        scheduler._retrying._executor = Closing()
        with open_writer(scheduler=scheduler) as (_, writer):
            writer.append(0, b"x")
            future = writer.persist(SequenceNumber.of(0), 1)
            assert isinstance(future.exception(DEADLINE_SECONDS), ClosedError)
            assert scheduler.in_flight_bytes == 0


@pytest.mark.parametrize("mistake", [TypeError("buffers"), ValueError("flag"), ImportError("pandas")])
def test_a_mistake_inside_an_attempt_is_no_failure_of_the_storage(mistake: Exception) -> None:
    """Made once, and named: a wrong call or another version of a library fails the same way again."""
    attempts = []

    class Mistaken(MemoryObjectStore):
        def put(self, *_: Any, **__: Any) -> ObjectStat:
            attempts.append(1)
            raise mistake

    with open_writer(Mistaken()) as (_, writer):
        writer.append(1, b"x")
        with pytest.raises(InternalError, match=type(mistake).__name__) as failed:
            persisted(writer)
    assert failed.value.__cause__ is mistake
    assert attempts == [1]
