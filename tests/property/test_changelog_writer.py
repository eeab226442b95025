"""A writer under any order of calls, uploads and faults, against a small model.

The writer uses the real batching scheduler, retries, uploader and store; only time and threads are simulated.
The model is a list of sets, each with its changes and its state, and shares no code with the package.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dstl_dagster.changelog import ChangelogReader, FsStateChangelogWriter
from dstl_dagster.changelog.writer.results import PersistCompletion
from dstl_dagster.errors import ClosedError, InvalidInputError, UnavailableError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, SequenceNumber, StreamStateHandle
from dstl_dagster.format.changelog_file import encoding as changelog_file_encoding
from dstl_dagster.registry import LocalChangelogRegistry, TaskChangelogRegistry
from dstl_dagster.settings import LocalRecoveryConfig
from dstl_dagster.storage import Generation, MemoryObjectStore
from dstl_dagster.upload import RetryPolicy, StateChangeFsUploader, UploadTask, UploadTasksResult
from dstl_dagster.upload.batches import BatchAction
from dstl_dagster.upload.scheduler import UploadPolicy, UploadScheduler
from tests.doubles.uploads import CallerExecutor, InlineMailbox, ManualExecutor, ManualTimer
from tests.profiles import examples

TIMEOUT_SECONDS = 10.0
DELAY_SECONDS = 1.0
THRESHOLD_BYTES = 60


class FaultyStore(MemoryObjectStore):
    """A memory store whose next put fails as the test demands."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Any] = []

    def put(self, name: str, payload: Any, **arguments: Any) -> Any:
        fault = self.before.pop(0) if self.before else None
        if fault == "fail":
            raise UnavailableError("failed by the test")
        if fault == "lost":
            super().put(name, payload, **arguments)
            raise UnavailableError("the answer was lost")
        if callable(fault):
            fault()
        return super().put(name, payload, **arguments)


@dataclass
class ModelSet:
    """One set of the model's log: waiting, in flight, durable, or failed."""

    changes: list[tuple[int, bytes]]
    state: str = "waiting"


@dataclass
class ModelPersist:
    """A future, and what its result must be."""

    future: Any
    start: int
    stop: int
    durable_bytes: int
    confirmed: bool = False


@dataclass
class Model:
    """The model of a log."""

    sets: list[ModelSet] = field(default_factory=list)
    active: list[tuple[int, bytes]] = field(default_factory=list)
    lowest: int = 0

    @property
    def end(self) -> int:
        return len(self.sets)

    def roll(self) -> None:
        if self.active:
            self.sets.append(ModelSet(self.active))
            self.active = []

    def active_bytes(self) -> int:
        return sum(len(change) for _, change in self.active)

    def failed_below(self, end: int, start: int) -> bool:
        return any(one.state == "failed" for one in self.sets[start:end])


class WriterMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.store = FaultyStore()
        self.timer, self.executor = ManualTimer(), ManualExecutor()
        self.registry = TaskChangelogRegistry(self._delete, CallerExecutor())
        uploader = StateChangeFsUploader(self.store, "", "job", self.registry)
        policy = UploadPolicy(
            persist_delay_seconds=DELAY_SECONDS,
            size_threshold_bytes=10_000,
            max_bytes_in_flight=1_000_000,
            num_threads=1,
            retry=RetryPolicy.fixed(2, TIMEOUT_SECONDS, 3.0),
        )
        self.scheduler = UploadScheduler(
            policy, uploader, begin_file=uploader.begin, timer=self.timer, executor=self.executor
        )
        self.writer = FsStateChangelogWriter(
            uuid.uuid4(),
            KeyGroupRange.of(0, 7),
            self.scheduler,
            THRESHOLD_BYTES,
            InlineMailbox(),
            self.registry,
            LocalRecoveryConfig.disabled(),
            LocalChangelogRegistry(lambda _: None, CallerExecutor()),
        )
        self.reader = ChangelogReader(self.store)
        self.model = Model()
        self.persists: list[ModelPersist] = []
        self.confirmed_files: set[str] = set()
        self.highest_failed = -1
        self.closed = False

    def _delete(self, handle: StreamStateHandle) -> None:
        stat = self.store.stat(handle.name)
        if stat is not None:
            self.store.delete(handle.name, precondition=Generation(stat.generation))

    # -- the owner's calls

    def _flush_model(self) -> None:
        """What a pre-emptive upload takes: every waiting set above the last failure."""
        self.model.roll()
        for sqn, one in enumerate(self.model.sets):
            if one.state == "waiting" and sqn > self.highest_failed and sqn >= self.model.lowest:
                one.state = "flying"

    def _appended(self, rows: list[tuple[int, bytes]]) -> None:
        self.model.active += rows
        if self.model.active_bytes() >= THRESHOLD_BYTES:
            self._flush_model()

    @precondition(lambda self: not self.closed)
    @rule(key_group=st.integers(0, 7), change=st.binary(max_size=30))
    def append(self, key_group: int, change: bytes) -> None:
        self.writer.append(key_group, change)
        self._appended([(key_group, change)])

    @precondition(lambda self: not self.closed)
    @rule(change=st.binary(max_size=30))
    def append_meta(self, change: bytes) -> None:
        self.writer.append_meta(change)
        self._appended([(-1, change)])

    @precondition(lambda self: not self.closed)
    @rule(rows=st.lists(st.tuples(st.integers(0, 7), st.binary(max_size=20)), max_size=8))
    def append_batch(self, rows: list[tuple[int, bytes]]) -> None:
        self.writer.append_batch(
            pa.array([row[0] for row in rows], pa.int32()), pa.array([row[1] for row in rows], pa.binary())
        )
        if rows:
            self._appended(rows)

    @precondition(lambda self: not self.closed)
    @rule(key_group=st.sampled_from([-2, -1, 8, 1000]))
    def append_outside(self, key_group: int) -> None:
        try:
            self.writer.append(key_group, b"x")
        except InvalidInputError:
            return
        raise AssertionError("a key group outside the range was taken")

    @precondition(lambda self: not self.closed)
    @rule()
    def next_sequence_number(self) -> None:
        self.model.roll()
        assert int(self.writer.next_sequence_number()) == self.model.end

    @precondition(lambda self: not self.closed)
    @rule(data=st.data())
    def persist(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.model.end + 1))
        # The writer compares before it rolls over.
        known_end = self.model.end
        try:
            future = self.writer.persist(SequenceNumber.of(start), len(self.persists))
        except UnavailableError:
            assert self.highest_failed >= start
            return
        except InvalidInputError:
            assert start < self.model.lowest or start > known_end
            return
        assert self.model.lowest <= start <= known_end
        assert start > self.highest_failed
        self.model.roll()
        durable = sum(
            len(change)
            for one in self.model.sets[start:]
            if one.state == "durable"
            for _, change in one.changes
        )
        for one in self.model.sets[start:]:
            if one.state == "waiting":
                one.state = "flying"
        self.persists.append(ModelPersist(future, start, self.model.end, durable))

    @precondition(lambda self: not self.closed)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        to = data.draw(st.integers(0, self.model.end + 1))
        try:
            self.writer.truncate(SequenceNumber.of(to))
        except InvalidInputError:
            assert to < self.model.lowest or to > self.model.end
            return
        assert self.model.lowest <= to <= self.model.end
        self.model.lowest = to

    @precondition(lambda self: not self.closed and any(self._is_whole(each) for each in self.persists))
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        persist = data.draw(st.sampled_from([each for each in self.persists if self._is_whole(each)]))
        self.writer.confirm(SequenceNumber.of(persist.start), SequenceNumber.of(persist.stop), 1)
        persist.confirmed = True
        self.confirmed_files |= {file.name for file, _ in self._handle(persist).handles_and_offsets}

    @precondition(lambda self: not self.closed)
    @rule()
    def reset(self) -> None:
        self.writer.reset(SequenceNumber.of(0), SequenceNumber.of(self.model.end), 1)

    # -- what happens elsewhere

    @rule(seconds=st.sampled_from([DELAY_SECONDS, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.timer.advance(seconds)

    def _run_attempt(self, *faults: Any) -> None:
        self.store.before = list(faults)
        self.executor.run_next()
        self.store.before = []
        self._settle()

    @precondition(lambda self: self.executor.queued)
    @rule()
    def an_upload_succeeds(self) -> None:
        self._run_attempt()

    @precondition(lambda self: self.executor.queued)
    @rule(fault=st.sampled_from(["fail", "lost"]))
    def an_upload_fails(self, fault: str) -> None:
        self._run_attempt(fault)

    @precondition(lambda self: self.executor.queued)
    @rule()
    def an_upload_fails_for_good(self) -> None:
        """Attempt after attempt, as often as the policy allows."""
        for _ in range(2):
            if self.executor.queued:
                self._run_attempt("fail")
            self.timer.advance(3.0)

    @precondition(lambda self: self.executor.queued)
    @rule(second_too=st.booleans())
    def an_upload_times_out(self, second_too: bool) -> None:
        """It is still running when its successor starts, and ends before or after it."""

        def hang() -> None:
            self.timer.advance(TIMEOUT_SECONDS)
            if second_too and self.executor.queued:
                self.executor.run_next()

        self._run_attempt(hang)

    def _settle(self) -> None:
        """Update the sets in flight from the futures and the writer's answers."""
        for sqn, one in enumerate(self.model.sets):
            if one.state != "flying":
                continue
            if not self.closed and SequenceNumber.of(sqn) in self.writer._uploaded:
                one.state = "durable"
        if not self.closed and self.writer._highest_failed is not None:
            self.highest_failed = int(self.writer._highest_failed[0])

    @precondition(lambda self: not self.closed and len(self.model.sets) > 3)
    @rule()
    def close(self) -> None:
        self.writer.close()
        self.closed = True
        for each in self.persists:
            assert each.future.done()
        for call in (lambda: self.writer.append(0, b""), self.writer.next_sequence_number):
            try:
                call()
            except ClosedError:
                continue
            raise AssertionError("a closed writer took a call")

    # -- what always holds

    @staticmethod
    def _handle(persist: ModelPersist) -> ChangelogStateHandle:
        handle = persist.future.result(timeout=0).job_manager_owned_snapshot
        assert handle is not None
        return handle

    def _is_whole(self, persist: ModelPersist) -> bool:
        """Completed, and no part of it truncated since."""
        ended = persist.future.done() and persist.future.exception() is None
        return bool(ended and persist.start >= self.model.lowest)

    @invariant()
    def completed_futures_hold_exactly_their_range(self) -> None:
        for persist in getattr(self, "persists", []):
            if not (self._is_whole(persist) or (persist.confirmed and persist.future.done())):
                continue
            handle = self._handle(persist)
            sets = self.model.sets[persist.start : persist.stop]
            expected = [row for one in sets for row in sorted(one.changes, key=lambda row: row[0])]
            assert list(self.reader.read(handle)) == expected
            size = sum(len(change) for _, change in expected)
            assert (handle.state_size, handle.checkpointed_size) == (size, size - persist.durable_bytes)

    @invariant()
    def every_byte_in_flight_belongs_to_a_task_that_has_not_ended(self) -> None:
        if (
            getattr(self, "executor", None) is not None
            and not self.executor.queued
            and not self.timer.delays_seconds
        ):
            assert self.scheduler.in_flight_bytes == 0

    def teardown(self) -> None:
        if not hasattr(self, "writer"):
            return
        while self.executor.queued or self.timer.delays_seconds:
            self.timer.advance(TIMEOUT_SECONDS)
            self.executor.run_all()
            self._settle()
        for persist in self.persists:
            assert persist.future.done()
        kept = set(self.confirmed_files)
        if not self.closed:
            kept |= {result.stream_state_handle.name for result in self.writer._uploaded.values()}
            self.writer.close()
        else:
            for persist in self.persists:
                if persist.future.exception() is None:
                    kept |= {file.name for file, _ in self._handle(persist).handles_and_offsets}
        self.scheduler.close()
        assert self.scheduler.in_flight_bytes == 0
        left = {stat.name for stat in self.store.list()}
        if not self.closed:
            assert left <= kept


WriterMachine.TestCase.settings = examples(30, stateful_step_count=40)
TestWriter = WriterMachine.TestCase


# -- the machine must be able to fail: upstream's bugs, and a few others, reintroduced one by one


def _forget_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream: the incremental size counts the last callback only."""

    def take(self: Any, results: Any) -> bool:
        self._uploaded_before_bytes = sum(result.size for result in self._results.values())
        return bool(original(self, results))

    original = PersistCompletion.take
    monkeypatch.setattr(PersistCompletion, "take", take)


def _fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream: an attempt that fails also fails its tasks, and its successor's file leaks."""

    def attempt(self: Any) -> Any:
        try:
            return original(self)
        except UnavailableError as error:
            for task in self._tasks:
                task.fail(error)
            raise

    original = BatchAction.attempt
    monkeypatch.setattr(BatchAction, "attempt", attempt)
    # The faulty attempt must not stop its successor, as upstream's does not.
    monkeypatch.setattr(UploadTask, "is_finished", False)


def _keep_losers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of an attempt that lost the race is kept."""
    monkeypatch.setattr(UploadTasksResult, "discard", lambda self: None)


def _truncate_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream: a truncation may move backwards."""

    def truncate(self: Any, to: SequenceNumber) -> None:
        if to <= self._active_sqn:
            self._lowest_sqn = min(self._lowest_sqn, to)
        original(self, to)

    original = FsStateChangelogWriter.truncate
    monkeypatch.setattr(FsStateChangelogWriter, "truncate", truncate)


def _drop_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata is appended to key group 0."""
    monkeypatch.setattr(FsStateChangelogWriter, "append_meta", lambda self, value: self.append(0, value))


def _unstable_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order inside a key group is lost."""

    def order(key_groups: Any) -> Any:
        found = original(key_groups)
        if found is None:
            return None
        return np.lexsort((-np.arange(len(key_groups)), key_groups))

    original = changelog_file_encoding._group_order
    monkeypatch.setattr(changelog_file_encoding, "_group_order", order)


def _close_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream: futures pending at close are never completed."""

    def close(self: Any) -> None:
        self._completions = []
        original(self)

    original = FsStateChangelogWriter.close
    monkeypatch.setattr(FsStateChangelogWriter, "close", close)


def _leak_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that fails keeps its bytes in flight."""

    def fail(self: Any, error: BaseException) -> None:
        if self._finish():
            owner = self._failure_callback
            cells = [cell.cell_contents for cell in (owner.__closure__ or ())]
            tasks = [cell for cell in cells if isinstance(cell, UploadTask)]
            if tasks:
                tasks[0].fail(error)
            else:
                owner([one.sequence_number for one in self.change_sets], error)

    monkeypatch.setattr(UploadTask, "fail", fail)


@pytest.mark.parametrize(
    "breakage",
    [
        _forget_size,
        _fail_at_once,
        _keep_losers,
        _truncate_back,
        _drop_meta,
        _unstable_groups,
        _close_forgets,
        _leak_capacity,
    ],
    ids=lambda breakage: breakage.__name__.strip("_"),
)
def test_the_machine_finds(breakage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bug, reintroduced, makes the machine fail."""
    breakage(monkeypatch)
    quick = settings(
        max_examples=2000,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        derandomize=True,
    )
    with pytest.raises(BaseException) as raised:
        run_state_machine_as_test(WriterMachine, settings=quick)
    assert not isinstance(raised.value, (KeyboardInterrupt, SystemExit))
