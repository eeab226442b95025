"""What a scheduler promises to its callers, and what an uploader of one's own may return to it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.errors import ClosedError, InternalError, InvalidInputError
from dstl_dagster.format import KeyGroupRange, SequenceNumber, StateChange, StateChangeSet
from dstl_dagster.format import StreamStateHandle as Handle
from dstl_dagster.format.handles import LocalStateHandle
from dstl_dagster.storage import ABSENT, MemoryObjectStore
from dstl_dagster.upload import (
    BatchingStateChangeUploadScheduler,
    RetryPolicy,
    StateChangeUploadScheduler,
    UploadResult,
    UploadTask,
    UploadTasksResult,
    direct_scheduler,
)
from tests.doubles.uploads import CallerExecutor, ManualTimer, RecordingUploader


def change_set(sqn: int) -> StateChangeSet:
    return StateChangeSet(uuid.UUID(int=1), SequenceNumber.of(sqn), [StateChange.of(1, b"x")])


class Ended:
    """A task that remembers how it ended."""

    def __init__(self, *sqns: int) -> None:
        self.ends: list[list[UploadResult] | BaseException] = []
        self.task = UploadTask(
            [change_set(sqn) for sqn in sqns or (1,)],
            self.ends.append,
            lambda _, error: self.ends.append(error),
        )

    @property
    def error(self) -> BaseException:
        (end,) = self.ends
        assert isinstance(end, BaseException)
        return end


class Returning(RecordingUploader):
    """An uploader whose attempts return what the test says."""

    def __init__(self, result: Callable[[list[UploadTask]], UploadTasksResult]) -> None:
        super().__init__()
        self._result = result

    def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
        super().upload(tasks)
        return self._result(list(tasks))


def batching(uploader: RecordingUploader, **how: int) -> BatchingStateChangeUploadScheduler:
    return BatchingStateChangeUploadScheduler(
        how.pop("delay_seconds", 0), 100, RetryPolicy.none(), uploader, 1, 100,
        timer=ManualTimer(), executor=CallerExecutor(), **how,
    )  # fmt: skip


@pytest.mark.parametrize("make", [batching, direct_scheduler])
def test_upload_after_close_raises(make: Callable[[RecordingUploader], StateChangeUploadScheduler]) -> None:
    """Seed 002: the call says that the scheduler is closed, as an IOException would; the task fails too."""
    uploader, ended = RecordingUploader(), Ended()
    scheduler = make(uploader)
    scheduler.close()
    with pytest.raises(OSError, match="closed") as caught:
        scheduler.upload(ended.task)
    assert ended.error is caught.value
    assert uploader.attempts == []


def test_a_persist_on_a_closed_scheduler_is_told_by_its_future() -> None:
    """As when it is closed a moment later."""
    storage = FsStateChangelogStorage("job", MemoryObjectStore())
    with storage.create_writer("op", KeyGroupRange.of(0, 3)) as writer:
        writer.append(1, b"x")
        storage.close()
        assert isinstance(writer.persist(SequenceNumber.of(0), 1).exception(0), ClosedError)


def test_a_schedulers_default_availability_is_upstreams() -> None:
    """A subclass of the protocol that says nothing about it is always available."""

    class Own(StateChangeUploadScheduler):
        def upload(self, task: UploadTask) -> None:
            task.complete([])

        def close(self) -> None:
            pass

    assert Own().availability.is_available
    assert Own().availability.available_future().done()


def test_a_batch_leaves_with_its_last_task() -> None:
    """Seed 002's `maxBatchSize`: that many tasks, before the delay; the rest wait for theirs."""
    uploader = RecordingUploader()
    scheduler = batching(uploader, delay_seconds=1, max_batch_tasks=3)
    for sqn in range(7):
        scheduler.upload(Ended(sqn).task)
    assert [len(tasks) for tasks in uploader.attempts] == [3, 3]
    scheduler.close()
    with pytest.raises(InvalidInputError, match="max_batch_tasks"):
        batching(uploader, max_batch_tasks=0)


def test_a_task_may_fail_alone() -> None:
    """An uploader's error for one task of a batch ends that one, with that error; the other is stored."""
    wrong, right, refused = Ended(1), Ended(2), OSError("too large for this service")

    def result(tasks: list[UploadTask]) -> UploadTasksResult:
        bad, good = tasks
        stored = {good: dict.fromkeys(good.change_sets, (0, 0))}
        return UploadTasksResult(stored, Handle("file", 1), failed={bad: refused})

    scheduler = batching(Returning(result), delay_seconds=1, max_batch_tasks=2)
    for each in (wrong, right):
        scheduler.upload(each.task)
    assert wrong.error is refused
    assert isinstance(right.ends[0], list)
    scheduler.close()


def test_a_task_with_an_offset_missing_is_not_uploaded() -> None:
    """It would be taken for durable, and a persist of both sets would wait for ever."""
    ended = Ended(1, 2)

    def result(tasks: list[UploadTask]) -> UploadTasksResult:
        return UploadTasksResult({tasks[0]: {tasks[0].change_sets[0]: (0, 0)}}, Handle("file", 1))

    batching(Returning(result)).upload(ended.task)
    assert isinstance(ended.error, InternalError)
    assert "file without an offset for 2" in str(ended.error)


def test_a_forgotten_task_has_the_real_cause() -> None:
    """Where completing breaks before a task's turn, its error names what broke."""
    ended = Ended()

    class Broken(UploadTasksResult):
        def complete(self) -> None:
            raise LookupError("of the result")

    batching(Returning(lambda _: Broken({}, Handle("file", 1)))).upload(ended.task)
    assert isinstance(ended.error.__cause__, LookupError)
    assert "of the result" in str(ended.error)


def test_discard_deletes(tmp_path: Path) -> None:
    """The file in its store and the copy, by what the result knows; once is enough, twice does no harm."""
    store, copy = MemoryObjectStore(), tmp_path / "copy"
    stored = store.put("file", b"x", precondition=ABSENT)
    copy.write_bytes(b"x")
    for generation in (stored.generation, None):
        handle = Handle("file", 1, generation=generation)
        UploadTasksResult({}, handle, LocalStateHandle(str(copy), 1), store=store).discard()
        assert store.stat("file") is None
    assert not copy.exists()


def test_discard_without_a_way_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is deleted, and a warning names the file."""
    UploadTasksResult({}, Handle("file", 1)).discard()
    assert "no way to delete file" in caplog.text
