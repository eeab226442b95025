"""The contract of changelog writers: on files in memory and in a folder, and on one made from the interface.

The broken ones at the end show that each of its tests catches something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dstl_dagster.changelog import (
    FsStateChangelogStorage,
    MailboxFuture,
    StateChangelogWriter,
    TaskMailbox,
)
from dstl_dagster.errors import ClosedError, InvalidInputError
from dstl_dagster.format import ChangelogStateHandle, SequenceNumber, SnapshotResult
from dstl_dagster.storage import MemoryObjectStore, open_store
from dstl_dagster.testing.changelog_conformance import (
    RANGE,
    ChangelogUnderTest,
    StateChangelogWriterConformance,
)

SUITE = StateChangelogWriterConformance()


def fs_log(storage: FsStateChangelogStorage) -> ChangelogUnderTest:
    def read(handle: ChangelogStateHandle) -> list[tuple[int, bytes]]:
        return [(each.key_group, bytes(each.change)) for each in storage.create_reader().read(handle)]

    return ChangelogUnderTest(storage.create_writer("op", RANGE), read)


class TestInMemory(StateChangelogWriterConformance):
    @pytest.fixture
    def log(self) -> Iterator[ChangelogUnderTest]:
        with FsStateChangelogStorage("job", MemoryObjectStore()) as storage:
            yield fs_log(storage)


class TestInAFolder(StateChangelogWriterConformance):
    @pytest.fixture
    def log(self, tmp_path: Path) -> Iterator[ChangelogUnderTest]:
        with FsStateChangelogStorage("job", open_store(tmp_path.as_uri())) as storage:
            yield fs_log(storage)


class ListWriter(StateChangelogWriter[ChangelogStateHandle]):
    """A log in a list, made from `StateChangelogWriter`'s docstrings alone: durable when it is appended."""

    logs: ClassVar[dict[str, list[tuple[int, bytes]]]] = {}

    def __init__(self) -> None:
        self._parts: list[list[tuple[int, bytes]]] = [[]]
        self._lowest = 0
        self._closed = False
        self._mailbox = TaskMailbox()

    def append(self, key_group: int, value: bytes) -> None:
        self._check()
        if not RANGE.contains(key_group):
            raise InvalidInputError(f"key group {key_group} is outside of {RANGE}")
        self._parts[-1].append((key_group, value))

    def append_meta(self, value: bytes) -> None:
        self._check()
        self._parts[-1].append((-1, value))

    def initial_sequence_number(self) -> SequenceNumber:
        self._check()
        return SequenceNumber.of(0)

    def next_sequence_number(self) -> SequenceNumber:
        self._check()
        if self._parts[-1]:
            self._parts.append([])
        return SequenceNumber.of(len(self._parts) - 1)

    def persist(self, from_: SequenceNumber, checkpoint_id: int) -> MailboxFuture[SnapshotResult]:
        end = self.next_sequence_number()
        if not self._lowest <= int(from_) <= int(end):
            raise InvalidInputError(f"{from_} is not in the log")
        name = f"log {len(self.logs)}"
        self.logs[name] = [each for part in self._parts[int(from_) :] for each in part]
        future: MailboxFuture[SnapshotResult] = MailboxFuture(self._mailbox)
        future.set_result(SnapshotResult(ChangelogStateHandle.of_files([(name, 0)], RANGE)))
        return future

    def truncate(self, to: SequenceNumber) -> None:
        self._check()
        if not self._lowest <= int(to) <= len(self._parts) - 1:
            raise InvalidInputError(f"cannot truncate to {to}")
        self._lowest = int(to)

    def confirm(self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: int) -> None:
        self._check()
        if not int(from_) <= int(to) <= len(self._parts) - 1:
            raise InvalidInputError(f"cannot confirm [{from_},{to})")

    def reset(self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: int) -> None:
        self._check()

    def truncate_and_close(self, from_: SequenceNumber) -> None:
        self._check()
        self.close()

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the log is closed")


def list_log(writer: StateChangelogWriter) -> ChangelogUnderTest:
    def read(handle: ChangelogStateHandle) -> list[tuple[int, bytes]]:
        return sorted(ListWriter.logs[handle.stream_state_handle().name], key=lambda change: change[0])

    return ChangelogUnderTest(writer, read)


class TestOneInAList(StateChangelogWriterConformance):
    @pytest.fixture
    def log(self) -> ChangelogUnderTest:
        return list_log(ListWriter())


# -- broken ones


class TakesAnyKeyGroup(ListWriter):
    def append(self, key_group: int, value: bytes) -> None:
        self._check()
        self._parts[-1].append((key_group, value))


class AlwaysAdvances(ListWriter):
    def next_sequence_number(self) -> SequenceNumber:
        super().next_sequence_number()
        self._parts.append([])
        return SequenceNumber.of(len(self._parts) - 1)


class PersistsEverything(ListWriter):
    def persist(self, from_: SequenceNumber, checkpoint_id: int) -> MailboxFuture[SnapshotResult]:
        super().persist(from_, checkpoint_id)
        return super().persist(SequenceNumber.of(0), checkpoint_id)


class ResetForgets(ListWriter):
    def reset(self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: int) -> None:
        super().reset(from_, to, checkpoint_id)
        self._parts = [[] for _ in self._parts]


class TruncatesConfirmed(ListWriter):
    def truncate(self, to: SequenceNumber) -> None:
        super().truncate(to)
        self.logs.clear()


class GoesBack(ListWriter):
    def truncate(self, to: SequenceNumber) -> None:
        self._lowest = int(to)


class ConfirmsAnything(ListWriter):
    def confirm(self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: int) -> None:
        self._check()


class IgnoresClose(ListWriter):
    def close(self) -> None:
        pass


class CloseDeletes(ListWriter):
    def close(self) -> None:
        super().close()
        self.logs.clear()


class LeavesPending(ListWriter):
    def persist(self, from_: SequenceNumber, checkpoint_id: int) -> MailboxFuture[SnapshotResult]:
        super().persist(from_, checkpoint_id)
        return MailboxFuture(self._mailbox)


class ForgetsMetadata(ListWriter):
    def append_meta(self, value: bytes) -> None:
        self._check()


class GivesPlainFutures(ListWriter):
    def persist(self, from_: SequenceNumber, checkpoint_id: int) -> Any:
        future: Future[SnapshotResult] = Future()
        future.set_result(super().persist(from_, checkpoint_id).result(0))
        return future


BROKEN: list[tuple[type[ListWriter], Callable[[ChangelogUnderTest], None]]] = [
    (TakesAnyKeyGroup, lambda log: SUITE.test_a_foreign_key_group_is_refused(log, 6)),
    (AlwaysAdvances, SUITE.test_positions_count_what_was_appended),
    (PersistsEverything, SUITE.test_a_persist_begins_where_it_is_told),
    (PersistsEverything, SUITE.test_a_persist_rolls_over),
    (PersistsEverything, SUITE.test_a_persist_of_nothing_has_an_empty_handle),
    (ResetForgets, SUITE.test_a_reset_loses_nothing),
    (TruncatesConfirmed, SUITE.test_what_is_confirmed_outlives_the_writer),
    (GoesBack, SUITE.test_what_is_truncated_is_gone),
    (GoesBack, SUITE.test_only_what_has_a_position_is_truncated),
    (ConfirmsAnything, SUITE.test_confirm_wants_a_range_of_the_log),
    (IgnoresClose, SUITE.test_a_closed_writer_says_so),
    (CloseDeletes, SUITE.test_what_was_durable_stays_after_close),
    (LeavesPending, SUITE.test_no_future_is_left_pending),
    (ForgetsMetadata, SUITE.test_what_was_appended_is_read_back),
    (GivesPlainFutures, SUITE.test_a_step_may_append_and_persist),
    (GivesPlainFutures, SUITE.test_a_persist_is_awaited),
]


@pytest.mark.parametrize(("broken", "test"), BROKEN)
def test_the_suite_bites(broken: type[ListWriter], test: Callable[[ChangelogUnderTest], None]) -> None:
    """A writer with one promise broken fails the test of that promise, which a sound one passes."""
    test(list_log(ListWriter()))
    with pytest.raises(
        (AssertionError, AttributeError, KeyError, TypeError, TimeoutError, pytest.fail.Exception)
    ):
        test(list_log(broken()))
