"""What Flink's FsStateChangelogWriterTest and FsStateChangelogWriterSqnTest assert, by their names."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from dstl_dagster.changelog import FsStateChangelogWriter
from dstl_dagster.errors import InvalidInputError, UnavailableError
from dstl_dagster.format import KeyGroupRange, SequenceNumber, StreamStateHandle
from dstl_dagster.registry import LocalChangelogRegistry, TaskChangelogRegistry
from dstl_dagster.settings import LocalRecoveryConfig
from tests.doubles.uploads import CallerExecutor, HeldScheduler, InlineMailbox, RecordingUploader

KEY_GROUP = 0
RANGE = KeyGroupRange.of(KEY_GROUP, KEY_GROUP)


@dataclass
class Setup:
    """A writer whose uploads wait for the test, and everything it talks to."""

    threshold: int = 1000
    local_copies: bool = False
    discarded: list[StreamStateHandle] = field(default_factory=list)
    discarded_locally: list[StreamStateHandle] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.registry = TaskChangelogRegistry(self.discarded.append, CallerExecutor())
        self.local_registry = LocalChangelogRegistry(self.discarded_locally.append, CallerExecutor())
        self.uploader = RecordingUploader(self.registry, local_copies=self.local_copies)
        self.scheduler = HeldScheduler(self.uploader)
        config = (
            LocalRecoveryConfig.enabled("unused") if self.local_copies else LocalRecoveryConfig.disabled()
        )
        self.writer = FsStateChangelogWriter(
            uuid.UUID(int=7),
            RANGE,
            self.scheduler,
            self.threshold,
            InlineMailbox(),
            self.registry,
            config,
            self.local_registry,
        )

    def append(self, change: bytes = b"change") -> SequenceNumber:
        """Roll over, then append; the position of the change."""
        sqn = self.writer.next_sequence_number()
        self.writer.append(KEY_GROUP, change)
        return sqn

    def checkpoint(self, from_: SequenceNumber, checkpoint_id: int) -> list[StreamStateHandle]:
        """Persist, let uploads end, and give the durable files."""
        future = self.writer.persist(from_, checkpoint_id)
        self.scheduler.complete_all()
        handle = future.result(timeout=0).job_manager_owned_snapshot
        assert handle is not None
        return [each for each, _ in handle.handles_and_offsets]

    @property
    def uploading(self) -> list[bytes]:
        return [
            change.change
            for task in self.scheduler.tasks
            for each in task.change_sets
            for change in each.changes
        ]


class TestFsStateChangelogWriterTest:
    def test_append(self) -> None:
        """Appends below the threshold upload nothing."""
        setup = Setup()
        setup.append()
        setup.append()
        assert setup.scheduler.tasks == []

    def test_pre_upload(self) -> None:
        """Reaching the threshold uploads at once; a persist of that position uploads nothing more."""
        setup = Setup(threshold=10)
        sqn = setup.append(b"0123456789")
        assert setup.uploading == [b"0123456789"]
        setup.writer.persist(sqn, 1)
        assert len(setup.scheduler.tasks) == 1

    def test_persist(self) -> None:
        """A persist submits what was appended; its future gives a handle of exactly that."""
        setup = Setup()
        sqn = setup.append(b"bytes")
        future = setup.writer.persist(sqn, 1)
        assert setup.uploading == [b"bytes"]
        assert not future.done()
        setup.scheduler.complete_all()
        handle = future.result(timeout=0).job_manager_owned_snapshot
        assert handle is not None
        assert handle.handles_and_offsets == ((StreamStateHandle("file-1", 5), 0),)
        assert (handle.state_size, handle.checkpointed_size) == (5, 5)

    def test_persist_again(self) -> None:
        """After completion and confirm, a persist of the same position does not upload again."""
        setup = Setup()
        sqn = setup.append()
        setup.checkpoint(sqn, 1)
        setup.writer.confirm(sqn, sqn.next(), 1)
        future = setup.writer.persist(sqn, 2)
        assert setup.scheduler.tasks == []
        handle = future.result(timeout=0).job_manager_owned_snapshot
        assert handle is not None
        assert (handle.state_size, handle.checkpointed_size) == (6, 0)

    def test_file_available_after_pre_upload(self) -> None:
        """Checkpoints, a materialisation, truncations and a pre-emptive upload discard no file in use."""
        setup = Setup(threshold=100)
        start = setup.append()
        setup.checkpoint(start, 1)
        second = setup.append()
        setup.writer.confirm(start, second, 1)
        setup.checkpoint(start, 2)
        materialised = setup.append(b"x" * 100)
        setup.scheduler.complete_all()
        setup.writer.confirm(start, materialised, 2)
        files = setup.checkpoint(materialised, 3)
        setup.writer.truncate(second)
        setup.writer.truncate(materialised)
        setup.writer.confirm(materialised, setup.writer.next_sequence_number(), 3)
        assert files
        assert not set(files) & set(setup.discarded)

    def test_file_available_after_close(self) -> None:
        """Truncate-and-close before the confirm leaves the files of the completed checkpoint."""
        setup = Setup()
        sqn = setup.append()
        files = setup.checkpoint(sqn, 1)
        setup.writer.truncate_and_close(sqn.next())
        assert files
        assert setup.discarded == []

    def test_local_file_discard(self) -> None:
        """Local copies stay while their checkpoint is valid, and go with the confirm of one without them."""
        setup = Setup(local_copies=True)
        first = setup.append()
        setup.checkpoint(first, 1)
        second = setup.append()
        setup.writer.confirm(first, second, 1)
        assert setup.discarded_locally == []
        setup.checkpoint(second, 2)
        setup.writer.confirm(second, second.next(), 2)
        assert setup.discarded_locally == [StreamStateHandle("copy-1", 6)]

    def test_local_file_after_materialize(self) -> None:
        """Truncation and confirm after a materialisation delete no file of the last checkpoint."""
        setup = Setup(local_copies=True)
        first = setup.append()
        files = setup.checkpoint(first, 1)
        end = setup.writer.next_sequence_number()
        setup.writer.confirm(first, end, 1)
        setup.writer.truncate(end)
        assert files
        assert setup.discarded == []
        assert setup.discarded_locally == []

    def test_local_file_abort(self) -> None:
        """Reset deletes the copies of the aborted checkpoint; the next checkpoint keeps its own."""
        setup = Setup(local_copies=True)
        first = setup.append()
        setup.checkpoint(first, 1)
        setup.writer.reset(first, first.next(), 1)
        assert setup.discarded_locally == [StreamStateHandle("copy-1", 6)]
        second = setup.append()
        setup.checkpoint(first, 2)
        setup.writer.confirm(first, second.next(), 2)
        assert StreamStateHandle("copy-2", 6) not in setup.discarded_locally

    def test_no_re_upload_before_completion(self) -> None:
        """A second persist of a position in flight uploads nothing, and completes with the first."""
        setup = Setup()
        sqn = setup.append()
        futures = [setup.writer.persist(sqn, 1), setup.writer.persist(sqn, 2)]
        assert len(setup.scheduler.tasks) == 1
        setup.scheduler.complete_all()
        assert all(future.done() for future in futures)

    def test_persist_newly_appended(self) -> None:
        """A persist from a newer position uploads only the newer change."""
        setup = Setup()
        setup.append(b"old")
        newer = setup.append(b"new")
        setup.writer.persist(newer, 1)
        assert setup.uploading == [b"new"]

    def test_persist_after_reset(self) -> None:
        """Reset loses nothing that was not uploaded."""
        setup = Setup()
        sqn = setup.append(b"kept")
        setup.writer.reset(sqn, SequenceNumber.of(0), 1)
        setup.writer.persist(sqn, 2)
        assert setup.uploading == [b"kept"]

    def test_persist_failure(self) -> None:
        """A failed upload fails the future, as an error that may be repeated."""
        setup = Setup()
        future = setup.writer.persist(setup.append(), 1)
        setup.scheduler.fail(error=OSError("gone"))
        with pytest.raises(UnavailableError, match="gone"):
            future.result(timeout=0)

    def test_persist_failed_changes(self) -> None:
        """A persist of a failed position raises at once."""
        setup = Setup()
        sqn = setup.append()
        setup.writer.persist(sqn, 1)
        setup.scheduler.fail()
        with pytest.raises(UnavailableError, match="already failed") as raised:
            setup.writer.persist(sqn, 2)
        assert raised.value.kind == "upload_failed"

    def test_persist_non_failed_changes(self) -> None:
        """A persist above the failed position works."""
        setup = Setup()
        setup.writer.persist(setup.append(), 1)
        setup.scheduler.fail()
        above = setup.append(b"above")
        assert setup.checkpoint(above, 2)

    def test_truncate(self) -> None:
        """A truncated position cannot be persisted; one that was never rolled over cannot be truncated."""
        setup = Setup()
        first = setup.append()
        with pytest.raises(InvalidInputError):
            setup.writer.truncate(first.next())
        setup.writer.next_sequence_number()
        setup.writer.truncate(first.next())
        with pytest.raises(InvalidInputError, match="truncated"):
            setup.writer.persist(first, 1)


Step = Callable[[FsStateChangelogWriter], object]


def _append(writer: FsStateChangelogWriter) -> None:
    writer.append(KEY_GROUP, b"x")


def _next(writer: FsStateChangelogWriter) -> None:
    writer.next_sequence_number()


def _persist(writer: FsStateChangelogWriter) -> None:
    writer.persist(writer.initial_sequence_number(), 1)


def _truncate_initial(writer: FsStateChangelogWriter) -> None:
    writer.truncate(writer.initial_sequence_number())


def _truncate_next(writer: FsStateChangelogWriter) -> None:
    writer.truncate(writer.next_sequence_number())


class TestFsStateChangelogWriterSqnTest:
    @pytest.mark.parametrize(
        ("steps", "expected"),
        [
            ([_next], 0),
            ([_append, _next], 1),
            ([_persist], 0),
            ([_append, _persist], 1),
            ([_append], 0),
            ([_append, _append], 0),
            ([_truncate_initial], 0),
            ([_append, _truncate_initial], 0),
            ([_append, _truncate_next], 1),
        ],
        ids=lambda value: (
            "-".join(step.__name__.strip("_") for step in value) if isinstance(value, list) else None
        ),
    )
    def test_run_test(self, steps: list[Step], expected: int) -> None:
        """The position moves on a roll-over with pending changes, and on nothing else."""
        setup = Setup()
        for step in steps:
            step(setup.writer)
        # Looked at without a roll-over: the public way to look is one.
        assert int(setup.writer._active_sqn) == expected
