"""Where this writer does better than upstream, one test for each decision, through a whole storage.

Upstream's faults are put back one by one in `test_broken_variants.py`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.changelog import FsStateChangelogStorage, FsStateChangelogWriter, TaskMailbox
from dstl_dagster.errors import ClosedError, FormatError, InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.format import (
    ChangelogStateHandle,
    KeyGroupRange,
    SequenceNumber,
    SnapshotResult,
    StateChange,
    StateChangeSet,
    StreamStateHandle,
)
from dstl_dagster.metrics import InMemoryMetrics
from dstl_dagster.registry import LocalChangelogRegistry, TaskChangelogRegistry
from dstl_dagster.settings import FsStateChangelogOptions, LocalRecoveryConfig
from dstl_dagster.storage import ABSENT, Generation, LocalObjectStore, MemoryObjectStore, ObjectWriter
from dstl_dagster.testing.uploads import CallerExecutor, HeldScheduler, ManualTimer, RecordingUploader
from dstl_dagster.upload import (
    BatchingStateChangeUploadScheduler,
    RetryPolicy,
    UploadTask,
    UploadTasksResult,
    UploadThrottle,
)

RANGE = KeyGroupRange.of(0, 3)
DEADLINE_SECONDS = 20
FAST = FsStateChangelogOptions(batch_persist_delay=timedelta(0), next_attempt_delay=timedelta(0))


@contextmanager
def _writer(
    store: Any = None, options: FsStateChangelogOptions = FAST, **arguments: Any
) -> Iterator[tuple[FsStateChangelogStorage, FsStateChangelogWriter]]:
    with (
        FsStateChangelogStorage(
            "job", MemoryObjectStore() if store is None else store, options, **arguments
        ) as storage,
        storage.create_writer("op", RANGE) as writer,
    ):
        yield storage, writer


def _persisted(writer: FsStateChangelogWriter, from_: int = 0) -> ChangelogStateHandle:
    result = writer.persist(SequenceNumber.of(from_), 1).result(DEADLINE_SECONDS)
    assert result.job_manager_owned_snapshot is not None
    return result.job_manager_owned_snapshot


def _names(store: MemoryObjectStore) -> list[str]:
    return [stat.name for stat in store.list()]


class FailingWriter:
    """A stream that breaks where it is told to."""

    def __init__(self, inner: ObjectWriter, where: str, effect: bool) -> None:
        self._inner = inner
        self._where = where
        self._effect = effect

    def write(self, payload: Any) -> int:
        if self._where == "write":
            raise UnavailableError("the line broke")
        return self._inner.write(payload)

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


class TestAppending:
    @pytest.mark.parametrize("key_group", [-1, 4, 99])
    def test_a_key_group_outside_the_range_is_refused(self, key_group: int) -> None:
        """Upstream accepts any key group; here it is an error, and nothing is buffered."""
        with _writer() as (_, writer):
            with pytest.raises(InvalidInputError, match="outside"):
                writer.append(key_group, b"x")
            columns = pa.array([0, key_group], pa.int32()), pa.array([b"a", b"b"], pa.binary())
            with pytest.raises(ValueError, match="outside"):
                writer.append_batch(*columns)
            assert int(writer.next_sequence_number()) == 0

    @pytest.mark.parametrize(
        ("key_groups", "values"),
        [
            (pa.array([0], pa.int64()), pa.array([b"x"], pa.binary())),
            (pa.array([0], pa.int32()), pa.array([1], pa.int32())),
            (pa.array([0], pa.int32()), pa.array(["x"], pa.string())),
            (pa.array([0, 1], pa.int32()), pa.array([b"x"], pa.binary())),
            (pa.array([0, None], pa.int32()), pa.array([b"x", b"y"], pa.binary())),
            (pa.array([0, 1], pa.int32()), pa.array([b"x", None], pa.binary())),
            ([0], [b"x"]),
        ],
    )
    def test_a_wrong_batch_is_refused_whole(self, key_groups: Any, values: Any) -> None:
        """Wrong types, lengths and nulls are errors, and nothing is buffered."""
        with _writer() as (_, writer):
            with pytest.raises(InvalidInputError):
                writer.append_batch(key_groups, values)
            assert int(writer.next_sequence_number()) == 0

    @pytest.mark.parametrize("value", [None, "text", 5, [1]])
    def test_only_bytes_are_changes(self, value: Any) -> None:
        """What is no bytes is refused, and nothing is buffered."""
        with _writer() as (_, writer):
            with pytest.raises(InvalidInputError, match="bytes"):
                writer.append(0, value)
            assert int(writer.next_sequence_number()) == 0

    def test_a_mutable_change_is_copied(self) -> None:
        """Altering a bytearray after the append does not alter the log."""
        with _writer() as (storage, writer):
            change = bytearray(b"before")
            writer.append(0, change)  # type: ignore[arg-type]  # what a careless caller passes
            change[:] = b"after!"
            assert [each.change for each in storage.create_reader().read(_persisted(writer))] == [b"before"]

    @pytest.mark.parametrize("arrow_type", [pa.large_binary(), pa.binary_view(), pa.binary(2)])
    def test_other_binary_types_are_taken(self, arrow_type: pa.DataType) -> None:
        """Large, view and fixed-size columns are binary too; slices and chunks of them are read right."""
        with _writer() as (storage, writer):
            column = pa.chunked_array(
                [pa.array([b"aa", b"bb"], arrow_type), pa.array([b"cc", b"dd"], arrow_type)]
            )
            writer.append_batch(pa.array([9, 1, 1, 0], pa.int32()).slice(1), column.slice(1))
            read = storage.create_reader().read(_persisted(writer))
            assert list(read) == [(0, b"dd"), (1, b"bb"), (1, b"cc")]

    def test_an_empty_batch_changes_nothing(self) -> None:
        """A batch of no rows does not even move the position."""
        with _writer() as (_, writer):
            writer.append_batch(pa.array([], pa.int32()), pa.array([], pa.binary()))
            assert int(writer.next_sequence_number()) == 0

    def test_a_batch_is_cut_like_single_appends(self) -> None:
        """A batch above the threshold is uploaded in pieces of about that size, in order."""
        options = FsStateChangelogOptions(
            preemptive_persist_threshold_in_bytes=2 << 20, batch_persist_delay=timedelta(0)
        )
        with _writer(options=options) as (storage, writer):
            values = pa.array([bytes([row % 251]) * 1000 for row in range(8_000)], pa.binary())
            writer.append_batch(pa.array(np.zeros(8_000, np.int32)), values)
            handle = _persisted(writer)
            assert len(handle.handles_and_offsets) == 4
            assert [each.change for each in storage.create_reader().read(handle)] == values.to_pylist()

    def test_the_writer_belongs_to_its_thread(self) -> None:
        """Every call from another thread is an error, and changes nothing."""
        with _writer() as (_, writer):
            errors: list[BaseException] = []
            calls: list[Callable[[], object]] = [
                lambda: writer.append(0, b"x"),
                lambda: writer.append_meta(b"x"),
                writer.next_sequence_number,
                lambda: writer.persist(SequenceNumber.of(0), 1),
                writer.close,
            ]

            def use() -> None:
                for call in calls:
                    try:
                        call()
                    except InvalidInputError as error:
                        errors.append(error)

            thread = threading.Thread(target=use)
            thread.start()
            thread.join(DEADLINE_SECONDS)
            assert [getattr(error, "kind", None) for error in errors] == ["wrong_thread"] * len(calls)
            assert int(writer.next_sequence_number()) == 0


class TestClosing:
    def test_a_closed_writer_says_so(self) -> None:
        """Every call but close raises ClosedError, and close may be called again."""
        with _writer() as (_, writer):
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
        with _writer(scheduler=scheduler) as (_, writer):
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
        assert _names(store) == []
        assert set(threading.enumerate()) == before


class TestRetries:
    @pytest.mark.parametrize("size", [10, 3 << 20], ids=["put", "stream"])
    @pytest.mark.parametrize("where", ["write", "close"])
    def test_a_failed_attempt_is_repeated(self, size: int, where: str) -> None:
        """An error of one attempt, on writing or closing, fails no task: another attempt follows, and the
        store holds the winner's file alone.
        """
        store = FailingStore(2, where=where)
        with _writer(store) as (storage, writer):
            writer.append(0, b"x" * size)
            handle = _persisted(writer)
            assert [len(each.change) for each in storage.create_reader().read(handle)] == [size]
        assert _names(store) == [handle.handles_and_offsets[0][0].name]

    @pytest.mark.parametrize("size", [10, 3 << 20], ids=["put", "stream"])
    def test_a_lost_answer_is_read_back(self, size: int) -> None:
        """An upload whose answer was lost counts when the object is provably its own: no second attempt."""
        store, metrics = FailingStore(1, effect=True), InMemoryMetrics()
        with _writer(store, metrics=metrics) as (_, writer):
            writer.append(0, b"x" * size)
            handle = _persisted(writer)
        assert _names(store) == [handle.handles_and_offsets[0][0].name]
        assert metrics.counter("ChangelogStorage.numberOfUploadRequests") == 1

    def test_exhausted_retries_fail_the_task_and_leave_nothing(self) -> None:
        """After the last attempt the future fails, and no attempt's file is left."""
        store, metrics = FailingStore(99), InMemoryMetrics()
        with _writer(store, metrics=metrics) as (_, writer):
            writer.append(0, b"x")
            with pytest.raises(UnavailableError, match="no answer"):
                _persisted(writer)
        assert metrics.counter("ChangelogStorage.numberOfUploadFailures") == 3
        assert _names(store) == []

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
        with _writer(store, options, metrics=metrics) as (_, writer):
            writer.append(0, b"x")
            handle = _persisted(writer)
            first_waits.set()
        assert _names(store) == [handle.handles_and_offsets[0][0].name]
        assert metrics.counter("ChangelogStorage.numberOfDiscardedUploads") == 1


class TestPersist:
    def test_a_persist_inside_a_completion_callback_works(self) -> None:
        """Appending and persisting from a completion callback neither hangs nor loses a change."""
        with _writer() as (storage, writer):
            writer.append(1, b"first")
            second: list[Any] = []

            def go_on(_: object) -> None:
                from_ = writer.next_sequence_number()
                writer.append(2, b"second")
                second.append(writer.persist(from_, 2))

            first = writer.persist(SequenceNumber.of(0), 1)
            also = writer.persist(SequenceNumber.of(0), 1)
            first.add_done_callback(go_on)
            assert first.result(DEADLINE_SECONDS)
            assert also.result(DEADLINE_SECONDS)
            handle = second[0].result(DEADLINE_SECONDS).job_manager_owned_snapshot
            assert list(storage.create_reader().read(handle)) == [(2, b"second")]

    def test_a_failed_range_does_not_stop_appends(self) -> None:
        """After a failed range, with an older set never persisted, appends go on and flush; a persist of the
        range raises; one above it works.
        """
        scheduler = HeldScheduler()
        options = FsStateChangelogOptions(preemptive_persist_threshold_in_bytes=10)
        with _writer(scheduler=scheduler, options=options) as (_, writer):
            writer.append(0, b"old")
            failing = writer.next_sequence_number()
            writer.append(0, b"fails")
            future = writer.persist(failing, 1)
            scheduler.fail()
            assert future.exception(DEADLINE_SECONDS) is not None
            above = writer.next_sequence_number()
            writer.append(0, b"x" * 20)
            writer.append(0, b"y" * 20)
            assert [int(each.sequence_number) for task in scheduler.tasks for each in task.change_sets] == [
                2,
                3,
            ]
            with pytest.raises(UnavailableError, match="already failed"):
                writer.persist(failing, 2)
            persisted = writer.persist(above, 3)
            scheduler.complete_all()
            assert persisted.result(DEADLINE_SECONDS).state_size == 40

    def test_a_pre_emptive_upload_that_cannot_begin_does_not_fail_the_append(self) -> None:
        """A scheduler that raises on a pre-emptive upload is told at the persist, not at the append."""

        class Refusing(HeldScheduler):
            def upload(self, task: UploadTask) -> None:
                raise UnavailableError("no")

        options = FsStateChangelogOptions(preemptive_persist_threshold_in_bytes=1)
        with _writer(scheduler=Refusing(), options=options) as (_, writer):
            writer.append(0, b"x")
            with pytest.raises(UnavailableError, match="already failed"):
                writer.persist(SequenceNumber.of(0), 1)

    def test_truncation_does_not_go_back(self) -> None:
        """Truncating lower than before is refused; upstream then makes futures that never complete."""
        with _writer() as (_, writer):
            for _ in range(3):
                writer.append(0, b"x")
                end = writer.next_sequence_number()
            writer.truncate(end)
            with pytest.raises(InvalidInputError, match="already"):
                writer.truncate(SequenceNumber.of(1))

    def test_the_checkpointed_size_counts_every_upload(self) -> None:
        """Sets that arrive in another callback, or were in flight before the persist, count as not yet
        uploaded; those uploaded before do not.
        """
        scheduler = HeldScheduler()
        with _writer(scheduler=scheduler) as (_, writer):
            writer.append(0, b"x" * 7)
            writer.persist(SequenceNumber.of(0), 1)
            scheduler.complete_all()
            writer.append(0, b"x" * 10)
            writer.persist(writer.initial_sequence_number(), 2)
            writer.append(0, b"x" * 3)
            future = writer.persist(SequenceNumber.of(0), 3)
            scheduler.complete()
            scheduler.complete()
            handle = future.result(DEADLINE_SECONDS).job_manager_owned_snapshot
            assert handle is not None
            assert (handle.state_size, handle.checkpointed_size) == (20, 13)

    def test_an_empty_range_is_an_empty_handle(self) -> None:
        """A persist of nothing is done at once."""
        with _writer() as (_, writer):
            future = writer.persist(SequenceNumber.of(0), 1)
            assert _persisted(writer).handles_and_offsets == ()
            assert future.result(timeout=0).state_size == 0

    def test_errors_come_in_upstreams_order(self) -> None:
        """A range that failed and was truncated is told as failed; one not yet appended as that."""
        scheduler = HeldScheduler()
        with _writer(scheduler=scheduler) as (_, writer):
            with pytest.raises(InvalidInputError, match="not yet appended"):
                writer.persist(SequenceNumber.of(1), 1)
            writer.append(0, b"x")
            writer.persist(SequenceNumber.of(0), 1)
            scheduler.fail()
            writer.next_sequence_number()
            writer.truncate(SequenceNumber.of(1))
            with pytest.raises(UnavailableError, match="already failed"):
                writer.persist(SequenceNumber.of(0), 2)
            for wrong in (None, 0, "0"):
                with pytest.raises(InvalidInputError, match="not a SequenceNumber"):
                    writer.persist(wrong, 2)  # type: ignore[arg-type]  # what a careless caller passes
            with pytest.raises(InvalidInputError, match="checkpoint id"):
                writer.persist(SequenceNumber.of(1), -1)

    def test_confirm_refuses_a_wrong_range(self) -> None:
        """A range that ends before it begins, or beyond what was appended, is refused."""
        with _writer() as (_, writer):
            one, zero = SequenceNumber.of(1), SequenceNumber.of(0)
            with pytest.raises(InvalidInputError, match=r"active sqn: 0"):
                writer.confirm(zero, one, 1)
            with pytest.raises(InvalidInputError, match=r"\[1,0\)"):
                writer.confirm(one, zero, 1)

    def test_log_ids_never_meet(self) -> None:
        """Writers of any storage have random log ids."""
        store = MemoryObjectStore()
        ids = set()
        for _ in range(3):
            with FsStateChangelogStorage("job", store) as storage:
                ids |= {storage.create_writer("op", RANGE).log_id for _ in range(3)}
        assert len(ids) == 9
        assert all(each.version == 4 for each in ids)


class TestMailbox:
    def test_a_shared_mailbox_runs_the_callbacks_on_its_owner(self) -> None:
        """With a mailbox of the caller's, results wait there until the owner runs it."""
        mailbox = TaskMailbox()
        threads: list[int] = []
        with (
            FsStateChangelogStorage("job", MemoryObjectStore(), FAST) as storage,
            storage.create_writer("op", RANGE, mailbox) as writer,
        ):
            writer.append(0, b"x")
            future = writer.persist(SequenceNumber.of(0), 1)
            future.add_done_callback(lambda _: threads.append(threading.get_ident()))
            mailbox.run_until(future, DEADLINE_SECONDS)
        assert threads == [threading.get_ident()]

    def test_only_the_owner_runs_it(self) -> None:
        """Another thread may hand commands over, but not run them."""
        mailbox, errors = TaskMailbox(), []

        def use() -> None:
            mailbox.execute(lambda: None, "fine")
            try:
                mailbox.run_pending()
            except InvalidInputError as error:
                errors.append(error.kind)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join(DEADLINE_SECONDS)
        assert (errors, mailbox.run_pending()) == (["wrong_thread"], 1)

    def test_a_command_that_raises_leaves_the_others(self) -> None:
        """An error of a command reaches the owner; what stands behind it still runs."""
        mailbox, ran = TaskMailbox(), []

        def fails() -> None:
            raise ValueError("of the command")

        mailbox.execute(fails, "fails")
        mailbox.execute(lambda: ran.append(1), "runs")
        with pytest.raises(ValueError, match="of the command"):
            mailbox.run_pending()
        assert (mailbox.run_pending(), ran) == (1, [1])

    def test_waiting_times_out(self) -> None:
        """`result(timeout)` on the owner's thread raises TimeoutError, and the upload goes on."""
        scheduler = HeldScheduler()
        with _writer(scheduler=scheduler) as (_, writer):
            writer.append(0, b"x")
            future = writer.persist(SequenceNumber.of(0), 1)
            with pytest.raises(TimeoutError):
                future.result(timeout=0.01)
            assert not future.cancel()
            scheduler.complete_all()
            assert future.result(timeout=0).state_size == 1

    def test_another_thread_may_wait(self) -> None:
        """A future's result can be waited for elsewhere while the owner runs its mailbox."""
        with _writer() as (_, writer):
            writer.append(0, b"x")
            future = writer.persist(SequenceNumber.of(0), 1)
            results: list[SnapshotResult] = []
            waiter = threading.Thread(target=lambda: results.append(future.result(DEADLINE_SECONDS)))
            waiter.start()
            future.result(DEADLINE_SECONDS)
            waiter.join(DEADLINE_SECONDS)
            assert len(results) == 1


class TestBatches:
    def test_a_batch_has_a_byte_limit(self) -> None:
        """Waiting tasks go into files of at most the limit; one larger task goes alone."""
        uploader = RecordingUploader()
        timer = ManualTimer()
        scheduler = BatchingStateChangeUploadScheduler(
            1,
            1000,
            RetryPolicy.none(),
            uploader,
            1,
            10_000,
            max_batch_bytes=25,
            timer=timer,
            executor=CallerExecutor(),
        )
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
        with _writer(scheduler=scheduler) as (_, writer):
            writer.append(0, b"x")
            assert writer.persist(SequenceNumber.of(0), 1).exception(DEADLINE_SECONDS) is not None

    def test_any_error_of_an_attempt_ends_its_task(self) -> None:
        """An attempt that dies with something that is no ordinary exception still fails its task."""
        scheduler = BatchingStateChangeUploadScheduler(
            0, 0, RetryPolicy.fixed(3, 0, 0), RecordingUploader(outcomes=[SystemExit(3)]), 1, 100
        )
        with _writer(scheduler=scheduler) as (_, writer):
            writer.append(0, b"x")
            assert isinstance(
                writer.persist(SequenceNumber.of(0), 1).exception(DEADLINE_SECONDS), UnavailableError
            )


class TestLocalRecovery:
    def test_the_copy_is_read_instead_of_the_durable_file(self, tmp_path: Path) -> None:
        """A restore on the same machine reads the copy: the durable file may even be away."""
        store = MemoryObjectStore()
        local = LocalRecoveryConfig.enabled(tmp_path)
        with _writer(store, local_recovery=local) as (storage, writer):
            writer.append(0, b"x")
            handle = _persisted(writer)
            writer.confirm(SequenceNumber.of(0), SequenceNumber.of(1), 1)
            name = handle.handles_and_offsets[0][0].name
            stat = store.stat(name)
            assert stat is not None
            store.delete(name, precondition=Generation(stat.generation))
            assert list(storage.create_reader().read(handle)) == [(0, b"x")]
        with pytest.raises(NotFoundError, match=name):
            list(FsStateChangelogStorage("job", store).create_reader().read(handle))

    @pytest.mark.parametrize("harm", ["flip", "cut", "empty"])
    def test_a_bad_copy_falls_back_to_the_durable_file(self, harm: str, tmp_path: Path) -> None:
        """A copy that was altered, cut or emptied is passed over: the durable file decides."""
        local = LocalRecoveryConfig.enabled(tmp_path)
        with _writer(local_recovery=local) as (storage, writer):
            writer.append(0, b"precious")
            handle = _persisted(writer)
            (copy,) = (path for path in tmp_path.rglob("*") if path.is_file())
            content = bytearray(copy.read_bytes())
            content[18] ^= 1
            copy.write_bytes({"flip": content, "cut": content[:20], "empty": b""}[harm])
            assert list(storage.create_reader().read(handle)) == [(0, b"precious")]

    def test_a_failing_copy_does_not_fail_the_upload(self, tmp_path: Path) -> None:
        """Where the copy cannot be written there is none: the upload succeeds, and it is counted."""
        (tmp_path / "file").write_text("no directory")
        metrics = InMemoryMetrics()
        local = LocalRecoveryConfig.enabled(tmp_path / "file")
        with _writer(local_recovery=local, metrics=metrics) as (_, writer):
            writer.append(0, b"x")
            result = writer.persist(SequenceNumber.of(0), 1).result(DEADLINE_SECONDS)
        assert result.state_size == 1
        assert result.task_local_snapshot is None
        assert metrics.counter("ChangelogStorage.numberOfLocalCopyFailures") == 1

    def test_copies_of_a_pre_emptive_upload_count_for_the_checkpoint_that_waits(self, tmp_path: Path) -> None:
        """A set in flight when persist was called has its copy registered for that checkpoint."""
        deleted: list[StreamStateHandle] = []
        scheduler = HeldScheduler(RecordingUploader(local_copies=True))
        writer = FsStateChangelogWriter(
            uuid.uuid4(),
            RANGE,
            scheduler,
            1,
            None,
            TaskChangelogRegistry.no_op(),
            LocalRecoveryConfig.enabled(tmp_path),
            LocalChangelogRegistry.with_thread(deleted.append),
        )
        writer.append(0, b"x")
        future = writer.persist(SequenceNumber.of(0), 5)
        scheduler.complete_all()
        assert future.result(DEADLINE_SECONDS).task_local_snapshot is not None
        writer._local_registry.discard_up_to_checkpoint(6)
        writer._local_registry.close()
        assert [handle.name for handle in deleted] == ["copy-1"]


class TestReading:
    @pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
    def test_an_altered_byte_never_gives_other_changes(self, compression: Any) -> None:
        """One altered byte anywhere in the file is a FormatError that names file and offset.

        Only frame headers that no reader needs, around a compressed body, may be altered unnoticed.
        """
        store = MemoryObjectStore()
        options = FsStateChangelogOptions(batch_persist_delay=timedelta(0), compression=compression)
        with _writer(store, options) as (storage, writer):
            writer.append_meta(b"schema")
            writer.append(1, b"abcabcabcabcabcabcabc")
            writer.append(2, b"")
            handle = _persisted(writer)
            file = handle.handles_and_offsets[0][0]
            content = store.get(file.name)
            true = list(storage.create_reader().read(handle))
            assert len(true) == 3
            noticed = 0
            for position in range(len(content)):
                harmed = bytearray(content)
                harmed[position] ^= 0x10
                other = MemoryObjectStore()
                other.put(file.name, bytes(harmed), precondition=ABSENT)
                reader = FsStateChangelogStorage("job", other).create_reader()
                moved = ChangelogStateHandle(
                    ((StreamStateHandle(file.name, file.size, stored_bytes=file.stored_bytes), 0),),
                    RANGE,
                    0,
                    0,
                )
                try:
                    found = list(reader.read(moved))
                except FormatError as error:
                    noticed += f"{file.name}, offset 0" in error.message
                else:
                    assert found == true
            unnoticed_limit = {"none": 0, "snappy": 20, "zstd": 20}[compression]
            assert len(content) - noticed <= unnoticed_limit

    def test_a_missing_file_is_named(self) -> None:
        """A handle on a deleted file is NotFoundError with the file's name."""
        handle = ChangelogStateHandle.of_files([("gone/file", 0)], RANGE)
        with (
            FsStateChangelogStorage("job", MemoryObjectStore()) as storage,
            pytest.raises(NotFoundError, match="gone/file"),
        ):
            list(storage.create_reader().read(handle))

    def test_a_wrong_handle_is_refused(self) -> None:
        """A reader says what it takes."""
        with FsStateChangelogStorage("job", MemoryObjectStore()) as storage:
            with pytest.raises(InvalidInputError, match="job_manager_owned_snapshot"):
                storage.create_reader().read(SnapshotResult())  # type: ignore[arg-type]  # the likely slip
            foreign = ChangelogStateHandle((), RANGE, 0, 0, storage_identifier="memory")
            with pytest.raises(FormatError, match="memory"):
                storage.create_reader().read(foreign)

    def test_sets_of_many_writers_in_one_file_are_told_apart(self, tmp_path: Path) -> None:
        """Writers that share a batch share a file, and each handle reads its own sets from it."""
        options = FsStateChangelogOptions(batch_persist_delay=timedelta(milliseconds=50))
        store = LocalObjectStore(tmp_path, durable=False)
        with FsStateChangelogStorage("job", store, options) as storage:
            writers = [storage.create_writer(f"op{number}", RANGE) for number in range(4)]
            futures = []
            for number, writer in enumerate(writers):
                for row in range(3):
                    writer.append(row, b"%d-%d" % (number, row))
                    writer.next_sequence_number()
                futures.append(writer.persist(SequenceNumber.of(0), 1))
            reader = storage.create_reader()
            files = set()
            for number, future in enumerate(futures):
                handle = future.result(DEADLINE_SECONDS).job_manager_owned_snapshot
                assert handle is not None
                files |= {each.name for each, _ in handle.handles_and_offsets}
                assert [each.change for each in reader.read(handle)] == [
                    b"%d-%d" % (number, row) for row in range(3)
                ]
            assert len(files) == 1
