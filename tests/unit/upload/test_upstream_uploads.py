"""What Flink's tests of schedulers, retries, metrics, uploaders and registries assert, by their names."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.errors import ClosedError, InvalidInputError, UnavailableError, UploadTimeoutError
from dstl_dagster.format import KeyGroupRange, SequenceNumber, StateChange, StateChangeSet, StreamStateHandle
from dstl_dagster.format.changelog_file.compression import Compression
from dstl_dagster.metrics import InMemoryMetrics
from dstl_dagster.registry import TaskChangelogRegistry
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import LocalObjectStore, MemoryObjectStore
from dstl_dagster.upload import (
    BatchingStateChangeUploadScheduler,
    DuplicatingStateChangeFsUploader,
    RetryPolicy,
    StateChangeFsUploader,
    UploadMetrics,
    UploadTask,
)
from dstl_dagster.upload.racing import RetryingExecutor
from tests.doubles.uploads import CallerExecutor, ManualExecutor, ManualTimer, RecordingUploader

DEADLINE_SECONDS = 20
PREFIX = "ChangelogStorage."


def _change_set(sqn: int = 0, size: int = 10) -> StateChangeSet:
    return StateChangeSet(uuid.UUID(int=1), SequenceNumber.of(sqn), [StateChange.of(0, b"x" * size)])


class Outcome:
    """What became of a task."""

    def __init__(self, *sets: StateChangeSet) -> None:
        self.completed = 0
        self.failures: list[tuple[list[SequenceNumber], BaseException]] = []
        self.ended = threading.Event()
        self.task = UploadTask(sets, self._on_success, self._on_failure)

    def _on_success(self, results: list[Any]) -> None:
        self.completed += 1
        self.results = results
        self.ended.set()

    def _on_failure(self, sqns: list[SequenceNumber], error: BaseException) -> None:
        self.failures.append((sqns, error))
        self.ended.set()


def _scheduler(
    uploader: RecordingUploader,
    *,
    delay: float = 0,
    threshold: int = 0,
    limit: int = 1_000_000,
    policy: RetryPolicy | None = None,
    timer: ManualTimer | None = None,
    executor: Any = None,
    threads: int = 1,
) -> BatchingStateChangeUploadScheduler:
    return BatchingStateChangeUploadScheduler(
        delay,
        threshold,
        policy or RetryPolicy.none(),
        uploader,
        threads,
        limit,
        timer=timer or ManualTimer(),
        executor=executor or CallerExecutor(),
    )


class TestBatchingStateChangeUploadSchedulerTest:
    def test_no_delay_and_threshold(self) -> None:
        """Without delay and threshold every request leaves at once, in order."""
        uploader = RecordingUploader()
        scheduler = _scheduler(uploader)
        for sqn in range(4):
            scheduler.upload(Outcome(_change_set(sqn)).task)
            assert [int(each.sequence_number) for each in uploader.change_sets] == list(range(sqn + 1))
        scheduler.close()

    def test_size_threshold(self) -> None:
        """Nothing leaves until the summed size reaches the threshold; then all of it does."""
        uploader = RecordingUploader()
        scheduler = _scheduler(uploader, delay=1000, threshold=30)
        for sqn in range(2):
            scheduler.upload(Outcome(_change_set(sqn)).task)
            assert uploader.attempts == []
        scheduler.upload(Outcome(_change_set(2)).task)
        assert [len(tasks) for tasks in uploader.attempts] == [3]
        scheduler.close()

    def test_delay(self) -> None:
        """A batch leaves when the configured delay after its first task is over, not before."""
        uploader, timer = RecordingUploader(), ManualTimer()
        scheduler = _scheduler(uploader, delay=0.5, threshold=1000, timer=timer)
        scheduler.upload(Outcome(_change_set(0)).task)
        assert timer.delays_seconds == [0.5]
        timer.advance(0.4)
        scheduler.upload(Outcome(_change_set(1)).task)
        assert uploader.attempts == []
        timer.advance(0.1)
        assert [len(tasks) for tasks in uploader.attempts] == [2]
        scheduler.close()

    def test_retry(self) -> None:
        """An uploader that fails four of five times completes the task."""
        uploader = RecordingUploader(outcomes=[OSError("no")] * 4)
        scheduler = _scheduler(uploader, policy=RetryPolicy.fixed(5, 0, 0))
        outcome = Outcome(_change_set())
        scheduler.upload(outcome.task)
        assert (outcome.completed, outcome.failures, len(uploader.attempts)) == (1, [], 5)
        scheduler.close()

    def test_upload_timeout(self) -> None:
        """One attempt that never returns fails the task with all its positions."""
        release = threading.Event()
        uploader, timer = RecordingUploader(outcomes=[lambda: _wait(release)]), ManualTimer()
        executor = ThreadPoolExecutor(1)
        scheduler = _scheduler(uploader, policy=RetryPolicy.fixed(1, 5, 0), timer=timer, executor=executor)
        outcome = Outcome(_change_set(3), _change_set(4))
        scheduler.upload(outcome.task)
        _until(lambda: timer.delays_seconds == [5])
        timer.advance(5)
        release.set()
        assert [sqns for sqns, _ in outcome.failures] == [[SequenceNumber.of(3), SequenceNumber.of(4)]]
        assert isinstance(outcome.failures[0][1], UnavailableError)
        scheduler.close()

    def test_retry_on_timeout(self) -> None:
        """Attempts that time out are followed by one that succeeds: completed, not failed."""
        release = threading.Event()
        hang = [lambda: _wait(release)] * 3
        uploader, timer = RecordingUploader(outcomes=hang), ManualTimer()
        scheduler = _scheduler(
            uploader, policy=RetryPolicy.fixed(4, 5, 0), timer=timer, executor=ThreadPoolExecutor(4)
        )
        outcome = Outcome(_change_set())
        scheduler.upload(outcome.task)
        for attempt in range(1, 4):
            _until(lambda attempt=attempt: len(uploader.attempts) == attempt and timer.delays_seconds == [5])
            timer.advance(5)
        assert outcome.ended.wait(DEADLINE_SECONDS)
        release.set()
        scheduler.close()
        assert (outcome.completed, outcome.failures) == (1, [])

    def test_error_handling(self) -> None:
        """A timer that takes nothing is told to the caller; the task fails and no capacity leaks."""
        timer = ManualTimer()
        timer.close()
        scheduler = _scheduler(RecordingUploader(), delay=10, threshold=1000, timer=timer)
        outcome = Outcome(_change_set())
        with pytest.raises(ClosedError):
            scheduler.upload(outcome.task)
        assert len(outcome.failures) == 1
        assert scheduler.in_flight_bytes == 0
        scheduler.close()

    def test_close(self) -> None:
        """Close ends the uploader, the timer and the executor."""
        uploader, timer, executor = RecordingUploader(), ManualTimer(), ManualExecutor()
        scheduler = _scheduler(uploader, timer=timer, executor=executor)
        scheduler.close()
        assert (uploader.closed, timer.closed, executor.closed) == (True, True, True)

    def test_back_pressure(self) -> None:
        """At the limit it is unavailable, and the next upload blocks until a completion makes room."""
        uploader, executor = RecordingUploader(), ManualExecutor()
        scheduler = _scheduler(uploader, limit=20, executor=executor)
        first, second = Outcome(_change_set(0), _change_set(1)), Outcome(_change_set(2))
        assert scheduler.availability.is_available
        scheduler.upload(first.task)
        assert not scheduler.availability.is_available
        available = scheduler.availability.available_future()
        blocked = threading.Thread(target=lambda: scheduler.upload(second.task))
        blocked.start()
        _until(lambda: len(scheduler._throttle._line) == 1)
        assert (available.done(), len(executor.queued)) == (False, 1)
        executor.run_next()
        blocked.join(DEADLINE_SECONDS)
        assert available.done()
        executor.run_all()
        assert (first.completed, second.completed, scheduler.in_flight_bytes) == (1, 1, 0)
        scheduler.close()

    def test_interrupted_when_back_pressured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An interrupt of the blocked thread fails the task, uploads nothing of it, and leaks nothing."""
        uploader, executor = RecordingUploader(), ManualExecutor()
        scheduler = _scheduler(uploader, limit=10, executor=executor)
        scheduler.upload(Outcome(_change_set(0)).task)

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(scheduler._throttle._condition, "wait", interrupt)
        outcome = Outcome(_change_set(1))
        with pytest.raises(KeyboardInterrupt):
            scheduler.upload(outcome.task)
        error = outcome.failures[0][1]
        assert isinstance(error, UnavailableError)
        assert isinstance(error.__cause__, KeyboardInterrupt)
        executor.run_all()
        assert [int(each.sequence_number) for each in uploader.change_sets] == [0]
        assert scheduler.in_flight_bytes == 0
        scheduler.close()


class CountingAction:
    """An action that fails as told, and notes what happens to it."""

    def __init__(self, outcomes: list[BaseException | None]) -> None:
        self.outcomes = outcomes
        self.attempts = 0
        self.completed: list[int] = []
        self.discarded: list[int] = []
        self.failed: list[BaseException] = []

    def attempt(self) -> int:
        self.attempts += 1
        outcome = self.outcomes[min(self.attempts, len(self.outcomes)) - 1]
        if outcome is not None:
            raise outcome
        return self.attempts

    def complete(self, result: int) -> None:
        self.completed.append(result)

    def discard(self, result: int) -> None:
        self.discarded.append(result)

    def fail(self, error: BaseException) -> None:
        self.failed.append(error)


class TestRetryingExecutorTest:
    def _run(self, policy: RetryPolicy, action: CountingAction, timer: ManualTimer | None = None) -> None:
        timer = timer or ManualTimer()
        executor = RetryingExecutor(CallerExecutor(), timer)
        executor.execute(policy, action)

    def test_no_retries(self) -> None:
        """Without a policy there is one attempt."""
        action = CountingAction([OSError("no")])
        self._run(RetryPolicy.none(), action)
        assert (action.attempts, len(action.failed)) == (1, 1)

    def test_fixed_retry_limit(self) -> None:
        """Five allowed attempts are exactly five."""
        action = CountingAction([OSError("no")])
        self._run(RetryPolicy.fixed(5, 0, 0), action)
        assert (action.attempts, len(action.failed)) == (5, 1)

    def test_fixed_retry_success(self) -> None:
        """It stops at the first success."""
        action = CountingAction([OSError("no"), OSError("no"), None])
        self._run(RetryPolicy.fixed(9, 0, 0), action)
        assert (action.attempts, action.completed, action.failed) == (3, [3], [])

    def test_non_retryable_exception(self) -> None:
        """What cannot go away by itself is tried once."""
        action = CountingAction([RuntimeError("a bug")])
        self._run(RetryPolicy.fixed(5, 0, 0), action)
        assert (action.attempts, len(action.failed)) == (1, 1)

    def test_retry_delay(self) -> None:
        """After an error the next attempt waits the configured time."""
        action, timer = CountingAction([OSError("no"), None]), ManualTimer()
        self._run(RetryPolicy.fixed(2, 0, 7), action, timer)
        assert (action.attempts, timer.delays_seconds) == (1, [7])
        timer.advance(7)
        assert action.completed == [2]

    def test_no_retry_delay_if_timeout(self) -> None:
        """After a time-out the next attempt does not wait."""
        action, timer = CountingAction([UploadTimeoutError("slow"), None]), ManualTimer()
        self._run(RetryPolicy.fixed(2, 0, 7), action, timer)
        assert (action.completed, timer.delays_seconds) == ([2], [])

    def test_timeout(self) -> None:
        """The second attempt starts one time-out after the first."""
        timer, executor = ManualTimer(), ManualExecutor()
        retrying = RetryingExecutor(executor, timer)
        release = threading.Event()
        action = HangingAction(release, hanging_attempts=1)
        retrying.execute(RetryPolicy.fixed(2, 3, 0), action)
        first = threading.Thread(target=executor.run_next)
        first.start()
        _until(lambda: timer.delays_seconds == [3])
        timer.advance(2.9)
        assert executor.queued == []
        timer.advance(0.1)
        assert len(executor.queued) == 1
        executor.run_next()
        assert action.completed == [2]
        release.set()
        first.join(DEADLINE_SECONDS)

    def test_discard_on_timeout(self) -> None:
        """Seven attempts of which the last wins: the six slow results are each discarded, none fails."""
        timer, executor = ManualTimer(), ManualExecutor()
        retrying = RetryingExecutor(executor, timer)
        release = threading.Event()
        action = HangingAction(release, hanging_attempts=6)
        retrying.execute(RetryPolicy.fixed(7, 3, 0), action)
        threads = []
        for attempt in range(6):
            threads.append(threading.Thread(target=executor.run_next))
            threads[-1].start()
            _until(lambda attempt=attempt: action.attempts == attempt + 1 and timer.delays_seconds == [3])
            timer.advance(3)
        executor.run_next()
        release.set()
        for thread in threads:
            thread.join(DEADLINE_SECONDS)
        assert (action.completed, sorted(action.discarded), action.failed) == ([7], [1, 2, 3, 4, 5, 6], [])


class HangingAction(CountingAction):
    """An action whose first attempts return only when released."""

    def __init__(self, release: threading.Event, hanging_attempts: int) -> None:
        super().__init__([None])
        self._release = release
        self._hanging_attempts = hanging_attempts
        self._lock = threading.Lock()

    def attempt(self) -> int:
        with self._lock:
            self.attempts += 1
            number = self.attempts
        if number <= self._hanging_attempts:
            _wait(self._release)
        return number


def _wait(event: threading.Event) -> None:
    assert event.wait(DEADLINE_SECONDS)


def _until(holds: Any) -> None:
    """Wait for what another thread is about to do."""
    pause = threading.Event()
    for _ in range(DEADLINE_SECONDS * 1000):
        if holds():
            return
        pause.wait(0.001)
    raise AssertionError("it did not happen in time")


class TestChangelogStorageMetricsTest:
    def _storage(
        self, metrics: InMemoryMetrics, store: Any = None, **options: Any
    ) -> FsStateChangelogStorage:
        # No time-outs: on a busy machine a slow attempt would be counted twice.
        settings = FsStateChangelogOptions(
            preemptive_persist_threshold_in_bytes=1 << 30, upload_timeout=timedelta(0), **options
        )
        return FsStateChangelogStorage("job", store or MemoryObjectStore(), settings, metrics=metrics)

    def test_uploads_counter(self) -> None:
        """Five persists are five requests, and each took time."""
        metrics = InMemoryMetrics()
        with self._storage(metrics) as storage, storage.create_writer("op", KeyGroupRange.of(0, 0)) as writer:
            for _ in range(5):
                from_ = writer.next_sequence_number()
                writer.append(0, b"x")
                writer.persist(from_, 1).result(DEADLINE_SECONDS)
        assert metrics.counter(PREFIX + "numberOfUploadRequests") == 5
        assert min(metrics.histogram(PREFIX + "uploadLatenciesNanos")) > 0

    def test_upload_sizes(self) -> None:
        """A size is the payload and a header of constant length."""
        metrics = InMemoryMetrics()
        with self._storage(metrics) as storage, storage.create_writer("op", KeyGroupRange.of(0, 0)) as writer:
            for size in (10, 100, 1000):
                from_ = writer.next_sequence_number()
                writer.append(0, b"x" * size)
                writer.persist(from_, 1).result(DEADLINE_SECONDS)
        assert [size - 16 for size in metrics.histogram(PREFIX + "uploadSizes")] == [10, 100, 1000]

    def test_upload_failures_counter(self, tmp_path: Path) -> None:
        """Where the base path is a file every attempt counts as a failure."""
        (tmp_path / "base").write_text("a file")
        metrics = InMemoryMetrics()
        store = LocalObjectStore(tmp_path, durable=False)
        options: dict[str, Any] = {"base_path": "base", "retry_policy": "none"}
        with (
            self._storage(metrics, store, **options) as storage,
            storage.create_writer("op", KeyGroupRange.of(0, 0)) as writer,
        ):
            for _ in range(3):
                from_ = writer.next_sequence_number()
                writer.append(0, b"x")
                assert writer.persist(from_, 1).exception(DEADLINE_SECONDS) is not None
        assert metrics.counter(PREFIX + "numberOfUploadRequests") == 3
        assert metrics.counter(PREFIX + "numberOfUploadFailures") == 3

    def test_upload_batch_sizes(self) -> None:
        """Five writers in one drain are a batch of five, each time."""
        metrics, timer = InMemoryMetrics(), ManualTimer()
        scheduler = self._batching(metrics, RecordingUploader(), timer)
        for _ in range(3):
            for _ in range(5):
                scheduler.upload(Outcome(_change_set()).task)
            timer.advance(1)
        assert metrics.histogram(PREFIX + "uploadBatchSizes") == (5, 5, 5)
        scheduler.close()

    def _batching(
        self,
        metrics: InMemoryMetrics,
        uploader: RecordingUploader,
        timer: ManualTimer,
        policy: RetryPolicy | None = None,
    ) -> BatchingStateChangeUploadScheduler:
        return BatchingStateChangeUploadScheduler(
            1.0,
            10_000,
            policy or RetryPolicy.none(),
            uploader,
            1,
            1_000_000,
            UploadMetrics(metrics),
            timer=timer,
            executor=CallerExecutor(),
        )

    def test_attempts_per_upload(self) -> None:
        """Where the third attempt wins, three is recorded."""
        metrics, timer = InMemoryMetrics(), ManualTimer()
        uploader = RecordingUploader(outcomes=[OSError("no"), OSError("no")] * 2)
        uploader._outcomes.insert(2, None)
        scheduler = self._batching(metrics, uploader, timer, RetryPolicy.fixed(5, 0, 0))
        for _ in range(2):
            scheduler.upload(Outcome(_change_set()).task)
            timer.advance(1)
        assert metrics.histogram(PREFIX + "attemptsPerUpload") == (3, 3)
        scheduler.close()

    def test_total_attempts_per_upload(self) -> None:
        """Where the first attempt wins after three were started, the total is three."""
        metrics, timer = InMemoryMetrics(), ManualTimer()
        executor = ManualExecutor()
        retrying = RetryingExecutor(executor, timer, UploadMetrics(metrics).upload_wins)
        release = threading.Event()
        action = HangingAction(release, hanging_attempts=1)
        retrying.execute(RetryPolicy.fixed(3, 1, 0), action)
        first = threading.Thread(target=executor.run_next)
        first.start()
        _until(lambda: timer.delays_seconds == [1])
        timer.advance(1)
        # The second attempt is started, as far as a busy executor lets it; its time-out makes the third due.
        _, second = executor.queued.pop()
        action._hanging_attempts = 3
        thread = threading.Thread(target=second)
        thread.start()
        _until(lambda: timer.delays_seconds == [1])
        timer.advance(1)
        release.set()
        first.join(DEADLINE_SECONDS)
        thread.join(DEADLINE_SECONDS)
        assert metrics.histogram(PREFIX + "totalAttemptsPerUpload") == (3,)
        executor.queued.clear()

    def test_queue_size(self) -> None:
        """Eleven tasks that wait are eleven; after the drain there are none."""
        metrics, timer = InMemoryMetrics(), ManualTimer()
        scheduler = self._batching(metrics, RecordingUploader(), timer)
        for _ in range(11):
            scheduler.upload(Outcome(_change_set()).task)
        assert metrics.gauge(PREFIX + "uploadQueueSize") == 11
        timer.advance(1)
        assert metrics.gauge(PREFIX + "uploadQueueSize") == 0
        scheduler.close()
        assert metrics.gauge(PREFIX + "uploadQueueSize") is None


class TestStateChangeFsUploaderTest:
    def test_base_path(self) -> None:
        """Files lie under the root, the job's 32 hex digits, and `dstl`."""
        job = uuid.UUID("000102030405060708090a0b0c0d0e0f")
        registry = TaskChangelogRegistry.no_op()
        uploader = StateChangeFsUploader(MemoryObjectStore(), "some/root", job, registry)
        assert uploader.base_path == "some/root/000102030405060708090a0b0c0d0e0f/dstl"

    @pytest.mark.parametrize("compression", list(Compression))
    def test_compression(self, compression: Compression) -> None:
        """An upload of no task makes a whole file with any compression, and leaves nothing open."""
        store = MemoryObjectStore()
        uploader = StateChangeFsUploader(
            store, "", "job", TaskChangelogRegistry.no_op(), compression=compression
        )
        result = uploader.upload([])
        assert store.get(result.handle.name)[:1] == bytes([compression.value])
        assert result.state_size == 0

    def test_a_copy_beside_each_file(self, tmp_path: Path) -> None:
        """By the name that upstream has for it: the same bytes, under the same file name."""
        store, folder = MemoryObjectStore(), tmp_path / "copies"
        registry = TaskChangelogRegistry.no_op()
        uploader = DuplicatingStateChangeFsUploader(store, "", "job", registry, folder)
        result = uploader.upload([Outcome(_change_set()).task])
        assert result.local_handle is not None
        (copy,) = folder.iterdir()
        assert copy.name == result.handle.name.rpartition("/")[2]
        assert copy.read_bytes() == store.get(result.handle.name)


class TestTaskChangelogRegistryImplTest:
    def test_discarded_when_not_used(self) -> None:
        """A file is deleted exactly at its last release."""
        discarded: list[StreamStateHandle] = []
        registry = TaskChangelogRegistry(discarded.append, CallerExecutor())
        handle = StreamStateHandle("file", 1)
        registry.start_tracking(handle, 3)
        for _ in range(2):
            registry.release(handle)
            assert discarded == []
        registry.release(handle)
        assert discarded == [handle]

    def test_not_discarded_if_stopped_tracking(self) -> None:
        """Releases after tracking was stopped never delete."""
        discarded: list[StreamStateHandle] = []
        registry = TaskChangelogRegistry(discarded.append, CallerExecutor())
        handle = StreamStateHandle("file", 1)
        registry.start_tracking(handle, 1)
        registry.stop_tracking(handle)
        registry.release(handle)
        assert discarded == []

    def test_initial_count_is_above_zero(self) -> None:
        """A file that nobody needs cannot be tracked."""
        with pytest.raises(InvalidInputError, match="larger than zero"):
            TaskChangelogRegistry.no_op().start_tracking(StreamStateHandle("file", 1), 0)
