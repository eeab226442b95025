"""Where the writer does better than upstream, one test for each decision, through a whole storage."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.changelog import FsStateChangelogStorage, TaskMailbox
from dstl_dagster.errors import InvalidInputError, UnavailableError
from dstl_dagster.format import (
    SequenceNumber,
    SnapshotResult,
)
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import MemoryObjectStore
from dstl_dagster.upload import (
    UploadTask,
)
from tests.doubles.uploads import HeldScheduler
from tests.unit.changelog.writing import DEADLINE_SECONDS, FAST, RANGE, open_writer, persisted


class TestAppending:
    @pytest.mark.parametrize("key_group", [-1, 4, 99])
    def test_a_key_group_outside_the_range_is_refused(self, key_group: int) -> None:
        """Upstream accepts any key group; here it is an error, and nothing is buffered."""
        with open_writer() as (_, writer):
            with pytest.raises(InvalidInputError, match="outside"):
                writer.append(key_group, b"x")
            columns = pa.array([0, key_group], pa.int32()), pa.array([b"a", b"b"], pa.binary())
            with pytest.raises(ValueError, match="outside"):
                writer.append_batch(*columns)
            assert int(writer.next_sequence_number()) == 0

    @pytest.mark.parametrize("key_group", [1.5, "1", None])
    def test_a_key_group_is_a_whole_number(self, key_group: Any) -> None:
        """What has no integer value is refused; numpy's integers are taken."""
        with open_writer() as (storage, writer):
            with pytest.raises(InvalidInputError, match="key group"):
                writer.append(key_group, b"x")
            writer.append(np.int64(2), b"x")  # type: ignore[arg-type]  # numpy's integers are no ints
            assert list(storage.create_reader().read(persisted(writer))) == [(2, b"x")]

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
        with open_writer() as (_, writer):
            with pytest.raises(InvalidInputError):
                writer.append_batch(key_groups, values)
            assert int(writer.next_sequence_number()) == 0

    @pytest.mark.parametrize("value", [None, "text", 5, [1]])
    def test_only_bytes_are_changes(self, value: Any) -> None:
        """What is no bytes is refused, and nothing is buffered."""
        with open_writer() as (_, writer):
            with pytest.raises(InvalidInputError, match="bytes"):
                writer.append(0, value)
            assert int(writer.next_sequence_number()) == 0

    def test_a_mutable_change_is_copied(self) -> None:
        """Altering a bytearray after the append does not alter the log."""
        with open_writer() as (storage, writer):
            change = bytearray(b"before")
            writer.append(0, change)  # type: ignore[arg-type]  # what a careless caller passes
            change[:] = b"after!"
            assert [each.change for each in storage.create_reader().read(persisted(writer))] == [b"before"]

    @pytest.mark.parametrize("arrow_type", [pa.large_binary(), pa.binary_view(), pa.binary(2)])
    def test_other_binary_types_are_taken(self, arrow_type: pa.DataType) -> None:
        """Large, view and fixed-size columns are binary too; slices and chunks of them are read right."""
        with open_writer() as (storage, writer):
            column = pa.chunked_array(
                [pa.array([b"aa", b"bb"], arrow_type), pa.array([b"cc", b"dd"], arrow_type)]
            )
            writer.append_batch(pa.array([9, 1, 1, 0], pa.int32()).slice(1), column.slice(1))
            read = storage.create_reader().read(persisted(writer))
            assert list(read) == [(0, b"dd"), (1, b"bb"), (1, b"cc")]

    def test_an_empty_batch_changes_nothing(self) -> None:
        """A batch of no rows does not even move the position."""
        with open_writer() as (_, writer):
            writer.append_batch(pa.array([], pa.int32()), pa.array([], pa.binary()))
            assert int(writer.next_sequence_number()) == 0

    def test_a_large_batch_is_uploaded_in_pieces(self) -> None:
        """Whatever the threshold, a piece has 16 MiB at least, for each costs a file; the order stays."""
        options = FsStateChangelogOptions(
            preemptive_persist_threshold_in_bytes=2 << 20, batch_persist_delay=timedelta(0)
        )
        with open_writer(options=options) as (storage, writer):
            values = pa.array([bytes([row]) * 1_000_000 for row in range(40)], pa.binary())
            writer.append_batch(pa.array(np.zeros(40, np.int32)), values)
            handle = persisted(writer)
            sizes = [file.size for file, _ in handle.handles_and_offsets]
            assert [size // 1_000_000 for size in sizes] == [17, 17, 6]
            assert [each.change for each in storage.create_reader().read(handle)] == values.to_pylist()

    def test_the_writer_belongs_to_its_thread(self) -> None:
        """Every call from another thread is an error, and changes nothing."""
        with open_writer() as (_, writer):
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
            assert [getattr(error, "kind", None) for error in errors] == ["invalid_input"] * len(calls)
            assert int(writer.next_sequence_number()) == 0


class TestPersist:
    def test_a_persist_inside_a_completion_callback_works(self) -> None:
        """Appending and persisting from a completion callback neither hangs nor loses a change."""
        with open_writer() as (storage, writer):
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
        with open_writer(scheduler=scheduler, options=options) as (_, writer):
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
            above_it = writer.persist(above, 3)
            scheduler.complete_all()
            assert above_it.result(DEADLINE_SECONDS).state_size == 40

    def test_a_pre_emptive_upload_that_cannot_begin_does_not_fail_the_append(self) -> None:
        """A scheduler that raises on a pre-emptive upload is told at the persist, not at the append."""

        class Refusing(HeldScheduler):
            def upload(self, task: UploadTask) -> None:
                raise UnavailableError("no")

        options = FsStateChangelogOptions(preemptive_persist_threshold_in_bytes=1)
        with open_writer(scheduler=Refusing(), options=options) as (_, writer):
            writer.append(0, b"x")
            with pytest.raises(UnavailableError, match="already failed"):
                writer.persist(SequenceNumber.of(0), 1)

    def test_truncation_does_not_go_back(self) -> None:
        """Truncating lower than before is refused; upstream then makes futures that never complete."""
        with open_writer() as (_, writer):
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
        with open_writer(scheduler=scheduler) as (_, writer):
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
        with open_writer() as (_, writer):
            future = writer.persist(SequenceNumber.of(0), 1)
            assert persisted(writer).handles_and_offsets == ()
            assert future.result(timeout=0).state_size == 0

    def test_errors_come_in_upstreams_order(self) -> None:
        """A range that failed and was truncated is told as failed; one not yet appended as that."""
        scheduler = HeldScheduler()
        with open_writer(scheduler=scheduler) as (_, writer):
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
        with open_writer() as (_, writer):
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
        assert (errors, mailbox.run_pending()) == (["invalid_input"], 1)

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
        with open_writer(scheduler=scheduler) as (_, writer):
            writer.append(0, b"x")
            future = writer.persist(SequenceNumber.of(0), 1)
            with pytest.raises(TimeoutError):
                future.result(timeout=0.01)
            assert not future.cancel()
            scheduler.complete_all()
            assert future.result(timeout=0).state_size == 1

    def test_another_thread_may_wait(self) -> None:
        """A future's result can be waited for elsewhere while the owner runs its mailbox."""
        with open_writer() as (_, writer):
            writer.append(0, b"x")
            future = writer.persist(SequenceNumber.of(0), 1)
            results: list[SnapshotResult] = []
            waiter = threading.Thread(target=lambda: results.append(future.result(DEADLINE_SECONDS)))
            waiter.start()
            future.result(DEADLINE_SECONDS)
            waiter.join(DEADLINE_SECONDS)
            assert len(results) == 1
