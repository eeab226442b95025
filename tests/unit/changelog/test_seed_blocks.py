"""The blocks of seeds 000 to 002 as they are written, step by step: callbacks, errors, retries, waiting.

`test_seed_examples` has what each example shows. Here the lines stand in the seeds' order, in Python's
spelling, also where they go wrong on purpose.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Iterator
from datetime import timedelta

import pytest

from dstl_dagster.changelog import FsStateChangelogStorage, FsStateChangelogWriter, TaskMailbox
from dstl_dagster.errors import ClosedError, UnavailableError
from dstl_dagster.format import (
    ChangelogStateHandle,
    KeyGroupRange,
    SequenceNumber,
    SnapshotResult,
    StateChange,
    StateChangeSet,
    StreamStateHandle,
)
from dstl_dagster.registry import TaskChangelogRegistry
from dstl_dagster.settings import FsStateChangelogOptions, LocalRecoveryConfig, MemorySize
from dstl_dagster.storage import ABSENT, MemoryObjectStore, ObjectStore
from dstl_dagster.testing.uploads import CallerExecutor, HeldScheduler, ManualTimer
from dstl_dagster.upload import (
    BatchingStateChangeUploadScheduler,
    RetryPolicy,
    StateChangeFsUploader,
    UploadResult,
    UploadTask,
    UploadTasksResult,
    direct_scheduler,
    scheduler_from_config,
)

DEADLINE_SECONDS = 20
CHECKPOINT = 12345


class Setup:
    """A writer whose uploads end when the test says so."""

    def __init__(self) -> None:
        self.scheduler = HeldScheduler()
        self.storage = FsStateChangelogStorage("job", MemoryObjectStore(), scheduler=self.scheduler)
        self.writer: FsStateChangelogWriter = self.storage.create_writer(
            "my-operator", KeyGroupRange.of(0, 127), TaskMailbox()
        )

    def uploads_end(self) -> None:
        """In another thread, as they do; it has ended when this returns."""
        thread = threading.Thread(target=self.scheduler.complete_all)
        thread.start()
        thread.join()


@pytest.fixture
def setup() -> Iterator[Setup]:
    made = Setup()
    yield made
    made.writer.close()
    made.storage.close()


def change_set(sqn: int) -> StateChangeSet:
    return StateChangeSet(uuid.uuid4(), SequenceNumber.of(sqn), [StateChange.of(1, b"x" * (sqn + 1))])


class TestSeed000:
    def test_usage_counts_the_handles(self, setup: Setup) -> None:
        """`thenAccept` logs how many handles there are."""
        logged: list[int] = []
        setup.writer.append(5, b"a")
        setup.writer.append_meta(b"meta")
        accepted = setup.writer.persist(setup.writer.initial_sequence_number(), CHECKPOINT).then_accept(
            lambda result: logged.append(len(handle_of(result).stream_state_handles()))
        )
        setup.uploads_end()
        accepted.result(DEADLINE_SECONDS)
        assert logged == [1]

    def test_error_handling(self, setup: Setup) -> None:
        """`whenComplete` tells a failed persist; `catch (IOException)` around append is `except OSError`."""
        told: list[str] = []

        def when_complete(result: SnapshotResult | None, error: BaseException | None) -> None:
            told.append("failed" if error is not None else "persisted")

        setup.writer.append(1, b"x")
        future = setup.writer.persist(SequenceNumber.of(0), CHECKPOINT).when_complete(when_complete)
        setup.scheduler.fail(error=OSError("the disk is gone"))
        assert isinstance(future.exception(DEADLINE_SECONDS), OSError)
        setup.writer.close()
        try:
            setup.writer.append(1, b"y")
        except OSError as error:
            told.append(f"append: {type(error).__name__}")
        assert told == ["failed", "append: ClosedError"]


class TestSeed001:
    @pytest.mark.parametrize("durable", [True, False])
    def test_basic_usage_read_literally(self, setup: Setup, durable: bool) -> None:
        """Persist, thenAccept, close: the callback has what is durable by then; else the future says why."""
        printed: list[ChangelogStateHandle] = []
        setup.writer.append_meta(b"operator-metadata")
        setup.writer.append(5, b"state 1")
        future = setup.writer.persist(setup.writer.initial_sequence_number(), CHECKPOINT).then_accept(
            lambda result: printed.append(handle_of(result))
        )
        if durable:
            setup.uploads_end()
        setup.writer.close()
        assert len(printed) == durable
        assert isinstance(future.exception(0), ClosedError | None)
        assert (future.exception(0) is None) == durable

    def test_persistence_prints_where(self, setup: Setup) -> None:
        """`getStreamStateHandle()` of what stands in one file; no local backup without local recovery."""
        printed: list[object] = []

        def when_complete(result: SnapshotResult | None, error: BaseException | None) -> None:
            assert result is not None
            printed.append(handle_of(result).stream_state_handle().name)
            printed.append(result.task_local_snapshot)

        setup.writer.append(1, b"a")
        setup.writer.append(2, b"b")
        setup.writer.persist(SequenceNumber.of(0), CHECKPOINT).when_complete(when_complete)
        setup.uploads_end()
        setup.writer.reset(SequenceNumber.of(0), SequenceNumber.of(0), 0)  # any call takes in what arrived
        assert printed == ["file-1", None]

    def test_chained_persists(self, setup: Setup) -> None:
        """`thenCompose` appends more and persists again, `thenAccept` follows both."""
        completed: list[str] = []

        def compose(_: SnapshotResult) -> object:
            from_ = setup.writer.next_sequence_number()
            setup.writer.append(3, b"more")
            second = setup.writer.persist(from_, 12346)
            setup.uploads_end()
            return second

        setup.writer.append(1, b"first")
        chain = (
            setup.writer.persist(SequenceNumber.of(0), CHECKPOINT)
            .then_compose(compose)  # type: ignore[arg-type]  # a persist's future
            .then_accept(lambda _: completed.append("both"))
        )
        setup.uploads_end()
        chain.result(DEADLINE_SECONDS)
        assert completed == ["both"]

    def test_reset_in_the_except_branch(self, setup: Setup) -> None:
        """The failed checkpoint is reset, the writer closed in `finally`; what was durable before stays."""
        writer = setup.writer
        seq1 = writer.next_sequence_number()
        writer.append(1, b"a")
        seq2 = writer.next_sequence_number()
        failed: list[BaseException] = []
        try:
            future = writer.persist(seq1, CHECKPOINT)
            setup.scheduler.fail()
            future.result(DEADLINE_SECONDS)
            writer.confirm(seq1, seq2, CHECKPOINT)
        except OSError as error:
            failed.append(error)
            writer.reset(seq1, seq2, CHECKPOINT)
            with pytest.raises(UnavailableError, match="already failed"):
                writer.persist(seq1, CHECKPOINT + 1)
            # The documented way on: the state anew, from above the failure.
            writer.append(1, b"a, written anew")
            again = writer.persist(seq2, CHECKPOINT + 1)
            setup.uploads_end()
            assert again.result(DEADLINE_SECONDS).state_size == 15
        finally:
            writer.close()
        assert [type(each) for each in failed] == [UnavailableError]

    def test_append_meta_fails_with_an_io_exception(self, setup: Setup) -> None:
        """`catch (IOException)` around appendMeta is `except OSError`."""
        setup.writer.close()
        with pytest.raises(OSError, match="closed"):
            setup.writer.append_meta(b"metadata")

    def test_exceptionally_recovers(self, setup: Setup) -> None:
        """`exceptionally` prints the failure and returns null."""
        printed: list[str] = []

        def recover(error: BaseException) -> SnapshotResult:
            printed.append(f"Persistence failed: {error}")
            return SnapshotResult()

        setup.writer.append(1, b"x")
        future = setup.writer.persist(SequenceNumber.of(0), CHECKPOINT).exceptionally(recover)
        setup.scheduler.fail()
        assert future.result(DEADLINE_SECONDS) == SnapshotResult()
        assert len(printed) == 1
        assert "failed by the test" in printed[0]


class TestSeed002:
    def test_waits_for_availability_and_then_uploads(self) -> None:
        """Not available: the upload follows the availability future, and then goes through."""
        gate, entered = threading.Event(), threading.Event()

        class Slow(OwnUploader):
            def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
                entered.set()
                assert gate.wait(DEADLINE_SECONDS)
                return super().upload(tasks)

        ended = threading.Semaphore(0)
        scheduler = BatchingStateChangeUploadScheduler(
            0, 0, RetryPolicy.none(), Slow(MemoryObjectStore()), 1, max_bytes_in_flight=2
        )
        first = UploadTask([change_set(1)], lambda _: ended.release(), lambda *_: None)
        second = UploadTask([change_set(1)], lambda _: ended.release(), lambda *_: None)
        assert scheduler.availability.is_available
        scheduler.upload(first)
        assert entered.wait(DEADLINE_SECONDS)
        assert not scheduler.availability.is_available
        scheduler.availability.available_future().add_done_callback(lambda _: scheduler.upload(second))
        assert not second.is_finished
        gate.set()
        for _ in range(2):
            assert ended.acquire(timeout=DEADLINE_SECONDS)
        scheduler.close()

    @pytest.mark.parametrize(("policy", "attempts"), [("fixed", 5), ("none", 1)])
    def test_the_configured_retry_policy(self, policy: str, attempts: int) -> None:
        """`RETRY_POLICY`, attempts, delay and timeout by upstream's constants: so many attempts, no more."""

        class Away(MemoryObjectStore):
            tried = 0

            def put(self, *arguments: object, **keywords: object) -> object:  # type: ignore[override]
                Away.tried += 1
                raise UnavailableError("the service is away")

        options = FsStateChangelogOptions.from_mapping(
            {
                FsStateChangelogOptions.RETRY_POLICY: policy,
                FsStateChangelogOptions.RETRY_MAX_ATTEMPTS: 5,
                FsStateChangelogOptions.RETRY_DELAY_AFTER_FAILURE: timedelta(0),
                FsStateChangelogOptions.UPLOAD_TIMEOUT: timedelta(seconds=30),
                FsStateChangelogOptions.PERSIST_DELAY: timedelta(0),
                FsStateChangelogOptions.IN_FLIGHT_DATA_LIMIT: MemorySize.parse("200MB"),
            }
        )
        scheduler = scheduler_from_config(
            uuid.uuid4(), Away(), options, registry(), LocalRecoveryConfig.disabled(), base_path="base"
        )
        failed: list[BaseException] = []
        ended = threading.Event()

        def on_failed(_: list[SequenceNumber], error: BaseException) -> None:
            failed.append(error)
            ended.set()

        scheduler.upload(UploadTask([change_set(1)], lambda _: None, on_failed))
        assert ended.wait(DEADLINE_SECONDS)
        scheduler.close()
        assert (Away.tried, [str(each) for each in failed]) == (attempts, ["the service is away"])

    @pytest.mark.parametrize(
        ("happens", "told"), [("io", "I/O error"), ("timeout", "timed out"), ("bug", "Unexpected")]
    )
    def test_failures_are_told_apart_by_class(self, happens: str, told: str) -> None:
        """An I/O error, a time-out and anything else, by class, in the failure callback."""
        timer = ManualTimer()

        class Failing(OwnUploader):
            def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
                if happens == "timeout":
                    timer.advance(60)
                    raise UnavailableError("too late")
                raise OSError("no space") if happens == "io" else LookupError("a bug")

        heard: list[str] = []

        def on_failed(_: list[SequenceNumber], error: BaseException) -> None:
            if isinstance(error, TimeoutError):
                heard.append("timed out")
            elif isinstance(error, OSError):
                heard.append("I/O error")
            else:
                heard.append("Unexpected")

        scheduler = BatchingStateChangeUploadScheduler(
            0, 0, RetryPolicy.fixed(1, 30, 0), Failing(MemoryObjectStore()), 1, 100,
            timer=timer, executor=CallerExecutor(),
        )  # fmt: skip
        scheduler.upload(UploadTask([change_set(1)], lambda _: None, on_failed))
        scheduler.close()
        assert heard == [told]

    def test_a_closed_scheduler_cannot_schedule(self) -> None:
        """`catch (IOException)` around upload: the scheduler may be closed."""
        scheduler = direct_scheduler(OwnUploader(MemoryObjectStore()))
        scheduler.close()
        with pytest.raises(OSError, match="closed"):
            scheduler.upload(UploadTask([change_set(1)], lambda _: None, lambda *_: None))

    def test_an_uploader_from_scratch(self) -> None:
        """Written from the protocol alone; its file is read back, and one task of three fails alone."""
        store = MemoryObjectStore()
        results: list[UploadResult] = []
        failures: list[BaseException] = []
        scheduler = BatchingStateChangeUploadScheduler(
            1, 100, RetryPolicy.none(), OwnUploader(store), 1, 100,
            max_batch_tasks=3, timer=ManualTimer(), executor=CallerExecutor(),
        )  # fmt: skip
        for sqn in (1, OwnUploader.REFUSED, 2):
            scheduler.upload(
                UploadTask([change_set(sqn)], results.extend, lambda _, error: failures.append(error))
            )
        scheduler.close()
        assert [(each.offset, each.size, int(each.sequence_number)) for each in results] == [
            (0, 2, 1),
            (2, 3, 2),
        ]
        assert store.get(results[0].stream_state_handle.name) == b"xxxxx"
        assert [str(each) for each in failures] == ["not this one"]


class OwnUploader:
    """Seed 002's `MyStateChangeUploader`, for real: all changes of a batch in one object."""

    REFUSED = 13

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
        successful: dict[UploadTask, dict[StateChangeSet, tuple[int, int]]] = {}
        failed: dict[UploadTask, BaseException] = {}
        body = b""
        for task in tasks:
            offsets = {}
            try:
                for each in task.change_sets:
                    offsets[each] = (len(body), 0)
                    body += self._payload_of(each)
                successful[task] = offsets
            except OSError as error:
                failed[task] = error
        stored = self._store.put(f"own/{uuid.uuid4()}", body, precondition=ABSENT)
        handle = StreamStateHandle(stored.name, len(body), generation=stored.generation)
        return UploadTasksResult(successful, handle, store=self._store, failed=failed)

    def _payload_of(self, each: StateChangeSet) -> bytes:
        if int(each.sequence_number) == self.REFUSED:
            raise OSError("not this one")
        return b"".join(change.change for change in each.changes)

    def close(self) -> None:
        """Nothing is held."""


def handle_of(result: SnapshotResult) -> ChangelogStateHandle:
    assert result.job_manager_owned_snapshot is not None
    return result.job_manager_owned_snapshot


def registry() -> TaskChangelogRegistry:
    return TaskChangelogRegistry.no_op()


def test_the_direct_schedulers_block() -> None:
    """Create a direct scheduler, a task with both callbacks, schedule, clean up."""
    completed: list[UploadResult] = []
    scheduler = direct_scheduler(StateChangeFsUploader(MemoryObjectStore(), "base", "job", registry()))
    scheduler.upload(UploadTask([change_set(0), change_set(1)], completed.extend, lambda *_: None))
    scheduler.close()
    assert sorted(int(each.sequence_number) for each in completed) == [0, 1]
    assert len({each.stream_state_handle for each in completed}) == 1
