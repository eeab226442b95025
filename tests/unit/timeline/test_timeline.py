"""The race for a slot, lost answers, and impossible histories."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from datetime import UTC, datetime

import pytest

from dstl_dagster.checkpoint import Timeline
from dstl_dagster.errors import ConflictError, FormatError, UnavailableError
from dstl_dagster.format.names import JobNames
from dstl_dagster.storage import ANY, MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock
from dstl_dagster.timeline import Aborted, Committed, Opened
from dstl_dagster.timeline.record_codec import decode_record, encode_record

NAMES = JobNames("orders")


def opened(number: int = 1) -> Opened:
    return Opened(attempt=uuid.UUID(int=number << 64), checkpoint_id=1, parent=None, owner="test")


class LosesAnswers(MemoryObjectStore):
    """Fails the next put as unavailable, before or after it takes effect."""

    lose: str | None = None

    def put(self, name, payload, **arguments):
        how, self.lose = self.lose, None
        if how == "before":
            raise UnavailableError("the request was lost")
        stat = super().put(name, payload, **arguments)
        if how == "after":
            raise UnavailableError("the answer was lost")
        return stat


class RetriesBlindly(MemoryObjectStore):
    """A client that resends a create that has taken effect, and gets a 412."""

    def put(self, name, payload, **arguments):
        super().put(name, payload, **arguments)
        return super().put(name, payload, **arguments)


def test_records_come_back_in_order():
    """Slots count from 1, and reading starts after the given slot."""
    timeline = Timeline("orders", MemoryObjectStore())
    for number in (1, 2, 3):
        timeline.append(opened(number))
    assert [record.slot for record in timeline.records()] == [1, 2, 3]
    assert [record.slot for record in timeline.records(after_slot=2)] == [3]
    assert timeline.tail().slot == 3


def test_a_taken_slot_is_a_conflict():
    """A writer that loses the slot writes nothing and gets a conflict."""
    store = MemoryObjectStore()
    slow, fast = Timeline("orders", store), Timeline("orders", store)
    slow.tail()
    fast.append(opened(1))
    with pytest.raises(ConflictError) as refused:
        slow.append(opened(2))
    assert refused.value.kind == "moved"
    assert len(list(fast.records())) == 1


def test_own_record_behind_a_412_is_success():
    """A client that retries its own create gets a 412; the decision id in the slot shows that we won."""
    timeline = Timeline("orders", RetriesBlindly())
    assert timeline.append(opened()).slot == 1
    assert timeline.tail().slot == 1


def test_own_record_behind_a_lost_answer_is_success():
    """The answer is lost after the effect: the slot is read back, and it is ours."""
    store = LosesAnswers()
    timeline = Timeline("orders", store)
    store.lose = "after"
    assert timeline.append(opened()).slot == 1


def test_a_lost_request_is_reported_as_unknown():
    """The slot is still empty, but the write may take effect late: not a success, and safe to retry."""
    store = LosesAnswers()
    timeline = Timeline("orders", store)
    store.lose = "before"
    with pytest.raises(UnavailableError, match="run the step again"):
        timeline.append(opened())
    assert timeline.append(opened()).slot == 1


def test_a_decision_is_taken_again_from_the_new_tail():
    """When a rival takes the slot the rule sees the rival's record before it decides again."""
    store = MemoryObjectStore()
    timeline, rival = Timeline("orders", store), Timeline("orders", store)
    seen = []

    def rule(view):
        seen.append(view.slot)
        if len(seen) == 1:
            rival.append(opened(9))
        return None if view.open_attempt is not None else opened(1)

    assert timeline.decide(rule) is None
    assert seen == [0, 1]


def test_one_of_many_threads_wins_each_slot():
    """Rivals that append at once fill consecutive slots, one record each."""
    store = MemoryObjectStore()
    winners = []

    def work(number):
        record = Timeline("orders", store).decide(lambda _view: opened(number))
        winners.append(record.slot)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(winners) == list(range(1, 9))


def test_a_deleted_slot_is_found_on_the_first_read():
    """A history with a hole is never continued: the missing slot would be decided twice."""
    store = MemoryObjectStore()
    timeline = Timeline("orders", store)
    for number in (1, 2, 3):
        timeline.append(opened(number))
    store.delete(timeline.names.slot(2), precondition=ANY)
    with pytest.raises(FormatError, match=r"slot 2 .* is missing"):
        Timeline("orders", store).tail()


def test_a_record_in_the_wrong_slot_is_refused():
    """A copied record does not become a decision."""
    store = MemoryObjectStore()
    timeline = Timeline("orders", store)
    timeline.append(opened())
    store.put(timeline.names.slot(2), store.get(timeline.names.slot(1)), precondition=ANY)
    with pytest.raises(FormatError, match="record of slot 1"):
        Timeline("orders", store).tail()


def test_a_record_about_an_unknown_checkpoint_is_refused():
    """`committed` without `completed` cannot be a history that we wrote."""
    store = MemoryObjectStore()
    with pytest.raises(FormatError, match="which no earlier record completed"):
        Timeline("orders", store).append(Committed(checkpoint_id=4))
    assert list(store.list()) == []


@pytest.mark.parametrize("cut", [0, 1, 10, 40, -1])
def test_truncated_records_are_format_errors(cut):
    """A record truncated anywhere is refused by name, never read as a shorter one."""
    payload = encode_record(Aborted(slot=1, attempt=uuid.UUID(int=1), checkpoint_id=1, reason="why"))
    with pytest.raises(FormatError, match="slot-1"):
        decode_record(payload[:cut], 1, "slot-1")


def test_a_newer_record_is_refused_as_newer():
    """What a later release wrote is not guessed at."""
    payload = encode_record(opened()).replace(b"dstl/record 1 ", b"dstl/record 3 ", 1)
    with pytest.raises(FormatError, match="Upgrade") as refused:
        decode_record(payload, 0, "slot")
    assert refused.value.kind == "newer_version"


def test_a_record_that_is_already_there_is_the_one_that_counts():
    """A repeat by another process, with the same decision id but later: both go on with what the slot says.

    Otherwise the later one's view differs from the records, and its next snapshot is refused by all.
    """
    store = MemoryObjectStore()
    early, late = (
        Timeline("orders", store, clock=VirtualClock(datetime(2030, 1, 1, hour, tzinfo=UTC)))
        for hour in (1, 2)
    )
    late.tail()
    decision = dataclasses.replace(opened(), decision_id=uuid.UUID(int=7))
    written = early.append(decision)
    assert late.append(decision) == written
    assert late.seen() == early.seen() == Timeline("orders", store).tail()
