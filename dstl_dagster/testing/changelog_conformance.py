"""The contract of every state changelog writer as a test suite: inherit the class, provide a log, run pytest.

Owns the tests, which use `StateChangelogWriter` alone. Does not own how a writer is made, or how its handles
are read: a subclass provides the fixture `log`. What an implementation adds (batches of columns, local
copies, pre-emptive uploads) is its own to test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from dstl_dagster.changelog import MailboxFuture, StateChangelogWriter
from dstl_dagster.errors import ClosedError, InvalidInputError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, SequenceNumber, SnapshotResult

__all__ = ["RANGE", "ChangelogUnderTest", "StateChangelogWriterConformance"]

RANGE = KeyGroupRange.of(2, 5)
"""Of the writer under test."""
_WAIT_SECONDS = 20.0
_META = -1


@dataclass
class ChangelogUnderTest:
    """The parts that a subclass provides.

    Attributes:
        writer: new, of `RANGE`, made by the thread of the test.
        read: the changes of a handle, each as (key group, bytes), metadata (-1) first, then by key group,
            each in append order. It reads what is stored, not what the writer remembers.
    """

    writer: StateChangelogWriter
    read: Callable[[ChangelogStateHandle], list[tuple[int, bytes]]]

    def persisted(self, from_: SequenceNumber, checkpoint_id: int = 1) -> list[tuple[int, bytes]]:
        """Persist, wait, read back."""
        return self.read_of(self.writer.persist(from_, checkpoint_id).result(_WAIT_SECONDS))

    def read_of(self, snapshot: object) -> list[tuple[int, bytes]]:
        """The changes of a snapshot's durable part."""
        handle = getattr(snapshot, "job_manager_owned_snapshot", None)
        assert isinstance(handle, ChangelogStateHandle), "a persist gives a handle, also of nothing"
        return self.read(handle)


class StateChangelogWriterConformance:
    """Inherit, and provide the fixture `log`."""

    @pytest.fixture
    def log(self) -> ChangelogUnderTest:
        """A new log."""
        raise NotImplementedError("a subclass provides the log")

    # -- appending

    def test_what_was_appended_is_read_back(self, log: ChangelogUnderTest) -> None:
        """Metadata first, then by key group, in append order; an empty change is one too."""
        log.writer.append(3, b"a")
        log.writer.append(2, b"b")
        log.writer.append_meta(b"schema")
        log.writer.append(3, b"")
        got = log.persisted(log.writer.initial_sequence_number())
        assert got == [(_META, b"schema"), (2, b"b"), (3, b"a"), (3, b"")]

    @pytest.mark.parametrize("key_group", [1, 6, _META])
    def test_a_foreign_key_group_is_refused(self, log: ChangelogUnderTest, key_group: int) -> None:
        """With a ValueError, and nothing is appended."""
        with pytest.raises(ValueError, match=str(key_group)):
            log.writer.append(key_group, b"x")
        assert log.persisted(log.writer.initial_sequence_number()) == []

    # -- positions

    def test_positions_count_what_was_appended(self, log: ChangelogUnderTest) -> None:
        """One more for all that was appended since, the same again for nothing."""
        first = log.writer.initial_sequence_number()
        assert log.writer.next_sequence_number() == first
        log.writer.append(2, b"a")
        log.writer.append(2, b"b")
        second = log.writer.next_sequence_number()
        assert second == log.writer.next_sequence_number() == first.next()
        assert log.writer.initial_sequence_number() == first

    def test_a_persist_rolls_over(self, log: ChangelogUnderTest) -> None:
        """A later append has a position of its own."""
        log.writer.append(2, b"a")
        log.writer.persist(log.writer.initial_sequence_number(), 1).result(_WAIT_SECONDS)
        after = log.writer.next_sequence_number()
        log.writer.append(2, b"b")
        assert log.persisted(after, 2) == [(2, b"b")]

    def test_a_persist_begins_where_it_is_told(self, log: ChangelogUnderTest) -> None:
        """At `from_`, inclusive; everything before stays out, everything after is in."""
        parts = []
        for number in range(3):
            parts.append(log.writer.next_sequence_number())
            log.writer.append(2, b"%d" % number)
        assert log.persisted(parts[1]) == [(2, b"1"), (2, b"2")]
        assert log.persisted(parts[0], 2) == [(2, b"0"), (2, b"1"), (2, b"2")]

    def test_a_persist_of_nothing_has_an_empty_handle(self, log: ChangelogUnderTest) -> None:
        """From the end of the log: durable at once, and readable."""
        log.writer.append(2, b"a")
        assert log.persisted(log.writer.next_sequence_number()) == []

    def test_a_persist_beyond_the_end_is_refused(self, log: ChangelogUnderTest) -> None:
        """Those changes do not exist yet."""
        with pytest.raises(InvalidInputError):
            log.writer.persist(log.writer.next_sequence_number().next(), 1)

    # -- futures

    def test_persists_overlap(self, log: ChangelogUnderTest) -> None:
        """Each future has what its own call covered, in any order of waiting."""
        first = log.writer.initial_sequence_number()
        log.writer.append(2, b"a")
        one = log.writer.persist(first, 1)
        log.writer.append(2, b"b")
        both = log.writer.persist(first, 2)
        assert log.read_of(both.result(_WAIT_SECONDS)) == [(2, b"a"), (2, b"b")]
        assert log.read_of(one.result(_WAIT_SECONDS)) == [(2, b"a")]

    def test_a_step_may_append_and_persist(self, log: ChangelogUnderTest) -> None:
        """Seed 001's chain: more is written in the step that follows a persist."""
        log.writer.append(2, b"a")

        def more(_: object) -> MailboxFuture[SnapshotResult]:
            from_ = log.writer.next_sequence_number()
            log.writer.append(2, b"b")
            return log.writer.persist(from_, 2)

        chained = log.writer.persist(log.writer.initial_sequence_number(), 1).then_compose(more)
        assert log.read_of(chained.result(_WAIT_SECONDS)) == [(2, b"b")]

    def test_a_persist_is_awaited(self, log: ChangelogUnderTest) -> None:
        """In an event loop of the writer's thread."""

        async def job() -> object:
            log.writer.append(2, b"a")
            return await asyncio.wait_for(log.writer.persist(SequenceNumber.of(0), 1), _WAIT_SECONDS)

        assert log.read_of(asyncio.run(job())) == [(2, b"a")]

    # -- the life of a checkpoint

    def test_a_reset_loses_nothing(self, log: ChangelogUnderTest) -> None:
        """After an aborted checkpoint the next one has the same changes."""
        first = log.writer.initial_sequence_number()
        log.writer.append(2, b"a")
        log.persisted(first)
        log.writer.reset(first, log.writer.next_sequence_number(), 1)
        assert log.persisted(first, 2) == [(2, b"a")]

    def test_what_is_confirmed_outlives_the_writer(self, log: ChangelogUnderTest) -> None:
        """The checkpoint owns it: neither a truncation nor the end of the writer takes it away."""
        first = log.writer.initial_sequence_number()
        log.writer.append(2, b"a")
        snapshot = log.writer.persist(first, 1).result(_WAIT_SECONDS)
        to = log.writer.next_sequence_number()
        log.writer.confirm(first, to, 1)
        log.writer.truncate(to)
        log.writer.truncate_and_close(to)
        assert log.read_of(snapshot) == [(2, b"a")]

    def test_confirm_wants_a_range_of_the_log(self, log: ChangelogUnderTest) -> None:
        """Neither backwards nor beyond the end."""
        first = log.writer.initial_sequence_number()
        log.writer.append(2, b"a")
        end = log.writer.next_sequence_number()
        for from_, to in ((end, first), (first, end.next())):
            with pytest.raises(InvalidInputError):
                log.writer.confirm(from_, to, 1)

    def test_what_is_truncated_is_gone(self, log: ChangelogUnderTest) -> None:
        """A persist from below is refused, one from there on has the rest; there is no way back."""
        first = log.writer.initial_sequence_number()
        log.writer.append(2, b"a")
        middle = log.writer.next_sequence_number()
        log.writer.append(2, b"b")
        log.writer.truncate(middle)
        with pytest.raises(InvalidInputError):
            log.writer.persist(first, 1)
        with pytest.raises(InvalidInputError):
            log.writer.truncate(first)
        assert log.persisted(middle) == [(2, b"b")]

    def test_only_what_has_a_position_is_truncated(self, log: ChangelogUnderTest) -> None:
        """Changes since the last roll-over have none."""
        log.writer.append(2, b"a")
        with pytest.raises(InvalidInputError):
            log.writer.truncate(log.writer.initial_sequence_number().next())

    # -- the end

    def test_a_closed_writer_says_so(self, log: ChangelogUnderTest) -> None:
        """Every call but close: as ClosedError, which is a ValueError and an OSError."""
        writer, at = log.writer, log.writer.initial_sequence_number()
        with writer as entered:
            assert entered is writer
        writer.close()
        calls: list[Callable[[], object]] = [
            lambda: writer.append(2, b"x"),
            lambda: writer.append_meta(b"x"),
            writer.initial_sequence_number,
            writer.next_sequence_number,
            lambda: writer.persist(at, 1),
            lambda: writer.truncate(at),
            lambda: writer.confirm(at, at, 1),
            lambda: writer.reset(at, at, 1),
            lambda: writer.truncate_and_close(at),
        ]
        for call in calls:
            with pytest.raises(ClosedError) as caught:
                call()
            assert isinstance(caught.value, ValueError)
            assert isinstance(caught.value, OSError)

    def test_no_future_is_left_pending(self, log: ChangelogUnderTest) -> None:
        """At close each is done: with its result where it was durable, else with ClosedError."""
        log.writer.append(2, b"a")
        future = log.writer.persist(log.writer.initial_sequence_number(), 1)
        log.writer.close()
        error = future.exception(0)
        assert error is None or isinstance(error, ClosedError)
        if error is None:
            assert log.read_of(future.result(0)) == [(2, b"a")]

    def test_what_was_durable_stays_after_close(self, log: ChangelogUnderTest) -> None:
        """A checkpoint may hold it, confirmed or not."""
        log.writer.append(2, b"a")
        snapshot = log.writer.persist(log.writer.initial_sequence_number(), 1).result(_WAIT_SECONDS)
        log.writer.close()
        assert log.read_of(snapshot) == [(2, b"a")]
