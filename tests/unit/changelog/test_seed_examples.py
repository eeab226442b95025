"""Each example of the documents that the project started from, in Python's spelling.

Where an example contradicts its own classes or a decision of ours, the test says so.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import Any

import pytest

from dstl_dagster.changelog import FsStateChangelogStorage, FsStateChangelogWriter, TaskMailbox
from dstl_dagster.errors import ClosedError, InvalidInputError, UnavailableError
from dstl_dagster.format import (
    KeyGroupRange,
    SequenceNumber,
    SnapshotResult,
    StateChange,
    StateChangeSet,
    StreamStateHandle,
)
from dstl_dagster.metrics import InMemoryMetrics
from dstl_dagster.registry import TaskChangelogRegistry
from dstl_dagster.settings import FsStateChangelogOptions, LocalRecoveryConfig
from dstl_dagster.storage import ABSENT, MemoryObjectStore
from dstl_dagster.upload import (
    BatchingStateChangeUploadScheduler,
    RetryPolicy,
    StateChangeFsUploader,
    StateChangeUploader,
    UploadMetrics,
    UploadResult,
    UploadTask,
    UploadTasksResult,
    direct_scheduler,
    scheduler_from_config,
)
from tests.doubles.uploads import HeldScheduler, ManualExecutor, RecordingUploader

DEADLINE_SECONDS = 20
CHECKPOINT = 12345


@pytest.fixture
def storage(tmp_path: Any) -> Iterator[FsStateChangelogStorage]:
    with FsStateChangelogStorage(
        uuid.uuid4(),
        MemoryObjectStore(),
        FsStateChangelogOptions(batch_persist_delay=timedelta(milliseconds=1)),
        local_recovery=LocalRecoveryConfig.enabled(tmp_path),
    ) as made:
        yield made


@pytest.fixture
def writer(storage: FsStateChangelogStorage) -> Iterator[FsStateChangelogWriter]:
    with storage.create_writer("my-operator", KeyGroupRange.of(0, 127), TaskMailbox()) as made:
        yield made


class TestSeed000:
    def test_usage(self, writer: FsStateChangelogWriter) -> None:
        """Append, take the position, persist, look at the handle, confirm."""
        writer.append(5, b"change of key group 5")
        writer.append(10, b"change of key group 10")
        writer.append_meta(b"operator metadata")
        checkpoint_sqn = writer.next_sequence_number()
        future = writer.persist(writer.initial_sequence_number(), CHECKPOINT)
        handle = future.result(DEADLINE_SECONDS).job_manager_owned_snapshot
        assert handle is not None
        assert len(handle.handles_and_offsets) == 1
        writer.confirm(writer.initial_sequence_number(), checkpoint_sqn, CHECKPOINT)

    def test_preemptive_persistence(self) -> None:
        """A change that exceeds the threshold is uploaded without a checkpoint."""
        scheduler = HeldScheduler()
        options = FsStateChangelogOptions.from_mapping(
            {"state.changelog.dstl.dfs.preemptive-persist-threshold": "5MB"}
        )
        with (
            FsStateChangelogStorage("job", MemoryObjectStore(), options, scheduler=scheduler) as storage,
            storage.create_writer("op", KeyGroupRange.of(0, 127)) as writer,
        ):
            writer.append(1, b"x" * (5 << 20))
            assert len(scheduler.tasks) == 1

    def test_sequence_number_management(
        self, storage: FsStateChangelogStorage, writer: FsStateChangelogWriter
    ) -> None:
        """Roll-over points tell batches apart; a persist begins at one."""
        assert writer.initial_sequence_number() == SequenceNumber.of(0)
        writer.append(1, b"change 1")
        writer.append(2, b"change 2")
        rollover1 = writer.next_sequence_number()
        writer.append(3, b"change 3")
        writer.append(4, b"change 4")
        rollover2 = writer.next_sequence_number()
        assert rollover1 < rollover2
        handle = writer.persist(rollover1, CHECKPOINT).result(DEADLINE_SECONDS).job_manager_owned_snapshot
        assert handle is not None
        assert [each.key_group for each in storage.create_reader().read(handle)] == [3, 4]

    def test_error_handling(self, caplog: pytest.LogCaptureFixture) -> None:
        """A callback learns whether the persist failed."""
        scheduler, logger = HeldScheduler(), logging.getLogger("seed")
        with (
            FsStateChangelogStorage("job", MemoryObjectStore(), scheduler=scheduler) as storage,
            storage.create_writer("op", KeyGroupRange.of(0, 127)) as writer,
        ):
            writer.append(1, b"x")
            future = writer.persist(SequenceNumber.of(0), CHECKPOINT)

            def when_complete(done: Any) -> None:
                if done.exception() is not None:
                    logger.error("persist failed for checkpoint %s", CHECKPOINT)

            future.add_done_callback(when_complete)
            scheduler.fail()
            assert isinstance(future.exception(DEADLINE_SECONDS), UnavailableError)
        assert "persist failed for checkpoint 12345" in caplog.text

    def test_lifecycle(self, storage: FsStateChangelogStorage, writer: FsStateChangelogWriter) -> None:
        """Persist, confirm, reset of another, truncate, close: what is confirmed is readable after it."""
        writer.append(1, b"x")
        start, end = writer.initial_sequence_number(), writer.next_sequence_number()
        handle = writer.persist(start, 1).result(DEADLINE_SECONDS).job_manager_owned_snapshot
        writer.confirm(start, end, 1)
        writer.reset(start, end, 2)
        writer.truncate(end)
        with pytest.raises(InvalidInputError, match="truncated"):
            writer.persist(start, 2)
        writer.close()
        assert handle is not None
        assert [each.change for each in storage.create_reader().read(handle)] == [b"x"]

    def test_local_recovery(self, writer: FsStateChangelogWriter) -> None:
        """Both handles are there, and the local one stands for the same changes."""
        writer.append(1, b"x")
        result = writer.persist(SequenceNumber.of(0), CHECKPOINT).result(DEADLINE_SECONDS)
        assert result.job_manager_owned_snapshot is not None
        assert result.task_local_snapshot is not None
        assert result.task_local_snapshot.state_size == result.job_manager_owned_snapshot.state_size


class TestSeed001:
    def test_basic_usage(self, writer: FsStateChangelogWriter) -> None:
        """Metadata, changes, persist from the first position, a callback, close."""
        seen: list[SnapshotResult] = []
        initial = writer.initial_sequence_number()
        writer.append_meta(b"operator-metadata")
        writer.append(5, b"state 1")
        writer.append(15, b"state 2")
        writer.next_sequence_number()
        future = writer.persist(initial, CHECKPOINT)
        future.add_done_callback(lambda done: seen.append(done.result()))
        future.result(DEADLINE_SECONDS)
        writer.close()
        assert [each.state_size for each in seen] == [31]

    def test_sequence_numbers(self, writer: FsStateChangelogWriter) -> None:
        """From the first position to the present one."""
        start = writer.initial_sequence_number()
        writer.append(1, b"x")
        writer.append(2, b"y")
        current = writer.next_sequence_number()
        assert (int(start), int(current)) == (0, 1)
        assert writer.persist(start, CHECKPOINT).result(DEADLINE_SECONDS).state_size == 2

    def test_appending(self, storage: FsStateChangelogStorage) -> None:
        """Metadata as JSON, a change for each key group, and an error for one outside the range."""
        with storage.create_writer("operator-1", KeyGroupRange.of(0, 63)) as writer:
            writer.append_meta(json.dumps({"operator": "MyOperator", "version": "1.0"}).encode())
            for key_group in range(64):
                writer.append(key_group, b"%d" % key_group)
            with pytest.raises(ValueError, match="100"):
                writer.append(100, b"x")
            assert writer.persist(SequenceNumber.of(0), 1).result(DEADLINE_SECONDS).state_size > 64

    def test_the_chained_example_persists_an_empty_range(
        self, storage: FsStateChangelogStorage, writer: FsStateChangelogWriter
    ) -> None:
        """In a callback: append more, then persist from `next_sequence_number()`, as the document has it.

        That position lies behind what was just appended, so the second persist holds nothing. It works (it
        breaks upstream's writer), and the change is durable with the next persist from before it.
        """
        writer.append(1, b"first")
        chained: list[Any] = []

        def then_compose(_: object) -> None:
            writer.append(3, b"more")
            chained.append(writer.persist(writer.next_sequence_number(), 12346))

        first = writer.persist(SequenceNumber.of(0), CHECKPOINT)
        first.add_done_callback(then_compose)
        assert first.result(DEADLINE_SECONDS).state_size == 5
        second = chained[0].result(DEADLINE_SECONDS)
        assert (second.state_size, second.job_manager_owned_snapshot.handles_and_offsets) == (0, ())
        handle = (
            writer.persist(SequenceNumber.of(0), 12347).result(DEADLINE_SECONDS).job_manager_owned_snapshot
        )
        assert handle is not None
        assert [each.change for each in storage.create_reader().read(handle)] == [b"first", b"more"]

    def test_lifecycle(self, storage: FsStateChangelogStorage, writer: FsStateChangelogWriter) -> None:
        """Confirm after the persist, go on, truncate what a later state covers; the end closes it, once."""
        first = writer.next_sequence_number()
        writer.append(1, b"a")
        writer.append(2, b"b")
        second = writer.next_sequence_number()
        handle = writer.persist(first, CHECKPOINT).result(DEADLINE_SECONDS).job_manager_owned_snapshot
        writer.confirm(first, second, CHECKPOINT)
        writer.append(3, b"c")
        third = writer.next_sequence_number()
        writer.truncate(second)
        later = writer.persist(second, CHECKPOINT + 1).result(DEADLINE_SECONDS).job_manager_owned_snapshot
        writer.truncate_and_close(third)
        writer.close()
        with pytest.raises(ValueError, match="closed"):
            writer.append(1, b"d")
        assert handle is not None
        assert later is not None
        read = storage.create_reader().read
        assert [each.change for each in (*read(handle), *read(later))] == [b"a", b"b", b"c"]


class TestSeed002:
    """The document's `UploadTask()` without arguments, and its fields, contradict its own class."""

    def _set(self, sqn: int) -> StateChangeSet:
        return StateChangeSet(uuid.uuid4(), SequenceNumber.of(sqn), [StateChange.of(1, b"x" * (sqn + 1))])

    def test_direct_scheduler(self) -> None:
        """A task through a direct scheduler is uploaded when the call returns."""
        store = MemoryObjectStore()
        uploader = StateChangeFsUploader(store, "base", "job", TaskChangelogRegistry.no_op())
        scheduler = direct_scheduler(uploader)
        results: list[UploadResult] = []
        scheduler.upload(UploadTask([self._set(1)], results.extend, lambda *_: None))
        scheduler.close()
        assert [(result.offset, result.size) for result in results] == [(0, 2)]
        assert store.stat(results[0].stream_state_handle.name) is not None

    def test_a_task_of_one_change_set(self, caplog: pytest.LogCaptureFixture) -> None:
        """`task.changeset`; of the callbacks those that are wanted. A failure without one is in the log."""
        results: list[UploadResult] = []
        task = UploadTask(self._set(1), results.extend)
        assert (len(task.change_sets), task.size) == (1, 2)
        task.fail(OSError("the disk is full"))
        assert "positions 1 were not uploaded: the disk is full" in caplog.text
        UploadTask(self._set(2)).complete([])
        assert results == []

    def test_an_uploader_of_a_file_for_each_task(self) -> None:
        """`new UploadTasksResult(successful, failed)`: the scheduler ends the tasks, by the winner."""
        store, refused = MemoryObjectStore(), OSError("too large for this service")

        class MyUploader(StateChangeUploader):
            def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
                successful, failed = {}, {}
                for number, task in enumerate(tasks):
                    if task.size > 2:
                        failed[task] = refused
                        continue
                    stat = store.put(f"file-{number}", b"x" * task.size, precondition=ABSENT)
                    handle = StreamStateHandle(stat.name, stat.size, stat.generation)
                    successful[task] = [
                        UploadResult.of(handle, None, change_set, 0, 0) for change_set in task.change_sets
                    ]
                return UploadTasksResult(successful, failed=failed, store=store)

            def close(self) -> None:
                pass

        executor, ends = ManualExecutor(), []
        scheduler = BatchingStateChangeUploadScheduler.of(MyUploader(), 3, timedelta(hours=1), executor)
        tasks = [
            UploadTask(self._set(sqn), ends.append, lambda _, error: ends.append(error)) for sqn in (0, 1, 2)
        ]
        for task in tasks:
            scheduler.upload(task)
        executor.run_all()
        (first,), (second,), error = ends
        assert (first.stream_state_handle.name, second.stream_state_handle.name) == ("file-0", "file-1")
        assert (error, first.size, second.size) == (refused, 1, 2)
        lost = UploadTasksResult({tasks[0]: [first], tasks[1]: [second]}, store=store)
        assert lost.state_size == 3
        lost.discard()
        assert [each.name for each in store.list()] == []
        with pytest.raises(InvalidInputError, match="give its handle"):
            UploadTasksResult({tasks[0]: {tasks[0].change_sets[0]: (0, 0)}})
        scheduler.close()

    def test_a_batching_scheduler(self) -> None:
        """`(uploader, maxBatchSize, batchTimeout, executor)`: a batch leaves with its last task, on that
        executor, and shares a file; `thenRun` uploads when there is room.
        """
        uploader, executor = RecordingUploader(), ManualExecutor()
        scheduler = BatchingStateChangeUploadScheduler.of(uploader, 2, timedelta(hours=1), executor)
        for sqn in range(3):
            scheduler.upload(UploadTask(self._set(sqn)))
        assert len(executor.queued) == 1
        executor.run_all()
        assert [len(tasks) for tasks in uploader.attempts] == [2]
        scheduler.close()

    def test_what_follows_availability(self) -> None:
        """`getAvailabilityFuture().thenRun(...)`: once, when there is room, in the thread that made it."""
        uploader, executor = RecordingUploader(), ManualExecutor()
        scheduler = BatchingStateChangeUploadScheduler(
            0, 1, RetryPolicy.none(), uploader, 1, 1, executor=executor
        )
        available = scheduler.availability.available_future
        scheduler.upload(UploadTask(self._set(0)))
        ran: list[str] = []
        uploaded = (
            available()
            .then_run(lambda: scheduler.upload(UploadTask(self._set(0))))
            .then_run(lambda: ran.append(threading.current_thread().name))
        )
        assert (uploaded.done(), available().cancel(), ran) == (False, False, [])
        executor.run_next()
        assert (uploaded.result(0), ran) == (None, [threading.current_thread().name])
        assert not scheduler.availability.is_available
        executor.run_all()
        assert available().then_apply(lambda _: "at once").result(0) == "at once"
        assert len(uploader.attempts) == 2
        scheduler.upload(UploadTask(self._set(0)))
        waits = available().when_complete(lambda _, error: ran.append(type(error).__name__))
        scheduler.close()
        assert isinstance(waits.exception(0), ClosedError)
        assert ran[1:] == ["ClosedError"]

    def test_several_change_sets_and_callbacks(self) -> None:
        """A task of two logs gives a result for each; a failing one names its positions."""
        failures: list[list[int]] = []

        def fails(positions: list[SequenceNumber], _: BaseException) -> None:
            failures.append([int(each) for each in positions])

        task = UploadTask([self._set(1), self._set(2)], lambda _: None, fails)
        assert task.size == 5
        task.fail(OSError("no"))
        task.fail(OSError("twice"))
        task.complete([])
        assert failures == [[1, 2]]

    def test_scheduler_from_configuration(self) -> None:
        """Threads, buffer, limit, attempts and timeout by configuration; each set becomes a task."""
        options = FsStateChangelogOptions.from_mapping(
            {
                "state.changelog.dstl.dfs.upload.num-threads": 10,
                "state.changelog.dstl.dfs.upload.buffer-size": "2MB",
                "state.changelog.dstl.dfs.upload.max-in-flight": "200MB",
                "state.changelog.dstl.dfs.upload.max-attempts": 5,
                "state.changelog.dstl.dfs.upload.timeout": "30s",
                "state.changelog.dstl.dfs.batch.persist-delay": "0ms",
            }
        )
        metrics = InMemoryMetrics()
        scheduler = scheduler_from_config(
            uuid.uuid4(),
            MemoryObjectStore(),
            options,
            TaskChangelogRegistry.no_op(),
            LocalRecoveryConfig.disabled(),
            base_path="base",
            metrics=UploadMetrics(metrics),
        )
        ended = threading.Semaphore(0)
        for sqn in range(4):
            scheduler.upload(UploadTask([self._set(sqn)], lambda _: ended.release(), lambda *_: None))
        for _ in range(4):
            assert ended.acquire(timeout=DEADLINE_SECONDS)
        scheduler.close()
        assert metrics.counter("ChangelogStorage.numberOfUploadRequests") == 4

    def test_an_uploader_of_ones_own(self) -> None:
        """A user's uploader returns where the sets stand; completing tasks is the scheduler's."""
        store = MemoryObjectStore()

        class MyUploader(StateChangeFsUploader):
            uploads = 0

            def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
                self.uploads += 1
                return super().upload(tasks)

        registry = TaskChangelogRegistry.no_op()
        uploader = MyUploader(store, "base", "job", registry)
        with (
            FsStateChangelogStorage(
                "job", store, scheduler=direct_scheduler(uploader), registry=registry
            ) as storage,
            storage.create_writer("op", KeyGroupRange.of(0, 3)) as writer,
        ):
            writer.append(1, b"x")
            assert writer.persist(SequenceNumber.of(0), 1).result(DEADLINE_SECONDS).state_size == 1
        assert uploader.uploads == 1

    def test_availability(self, storage: FsStateChangelogStorage) -> None:
        """Available at first, with a future that is done."""
        assert storage.availability.is_available
        assert storage.availability.available_future().result(0) is None

    def test_a_direct_schedulers_error_reaches_the_caller(self) -> None:
        """The task fails, and the error is raised too; a persist raises it, later ones say so."""

        class Away(MemoryObjectStore):
            def put(self, *arguments: Any, **keywords: Any) -> Any:
                raise UnavailableError("the service is away")

        store, registry = Away(), TaskChangelogRegistry.no_op()
        uploader = StateChangeFsUploader(store, "base", "job", registry)
        with (
            FsStateChangelogStorage(
                "job", store, scheduler=direct_scheduler(uploader), registry=registry
            ) as storage,
            storage.create_writer("op", KeyGroupRange.of(0, 3)) as writer,
        ):
            writer.append(1, b"x")
            with pytest.raises(UnavailableError, match="away"):
                writer.persist(SequenceNumber.of(0), 1)
            with pytest.raises(UnavailableError, match="already failed"):
                writer.persist(SequenceNumber.of(0), 2)

    def test_a_wrong_scheduler_is_refused(self) -> None:
        """A threshold above the in-flight limit could never be reached."""
        with pytest.raises(InvalidInputError, match=r"upload\.max-in-flight"):
            FsStateChangelogOptions(batch_persist_size_threshold_bytes=2, max_in_flight_bytes=1)
