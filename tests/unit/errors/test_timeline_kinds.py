"""The kinds of the timeline: each from two callers, or from a history, that provoke it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, Timeline
from dstl_dagster.errors import ErrorKind, UnavailableError
from dstl_dagster.format.names import JobNames
from dstl_dagster.storage import MemoryObjectStore
from dstl_dagster.timeline import decisions
from dstl_dagster.timeline.record_codec import encode_record
from dstl_dagster.timeline.records import Opened, Resolution, Snapshot
from dstl_dagster.timeline.view import TimelineView

if TYPE_CHECKING:
    from tests.unit.errors.conftest import Case, Scenario

NAMES = JobNames("orders")


def _opened(number: int = 1) -> Opened:
    return Opened(attempt=uuid.UUID(int=number << 64), checkpoint_id=1, parent=None, owner="test")


def _open_on(view: TimelineView) -> Opened:
    """What trigger decides after finishing earlier decisions, which is left out here."""
    return decisions.to_open(
        view,
        attempt=uuid.UUID(int=1),
        owner="test",
        batch=None,
        expected_parent=None,
        pin_parent=False,
        retracted=0,
    )


def _attempt_open(case: Case) -> None:
    case.coordinator("one").trigger()
    case.coordinator("another").trigger()


def _already_applied(case: Case) -> None:
    case.checkpoint("day-1")
    case.coordinator().trigger(idempotency_key="day-1")


def _already_completed(case: Case) -> None:
    attempt = case.coordinator().trigger()
    case.confirmed(attempt)
    case.coordinator().record(attempt)


def _no_attempt(case: Case) -> None:
    case.checkpoint()
    known = case.coordinator().timeline.tail().timeline_id
    never_opened = Attempt(2, uuid.uuid4(), 1, "orders", timeline=known)
    case.coordinator().record(never_opened)


def _parent_moved(case: Case) -> None:
    case.checkpoint()
    case.coordinator().trigger(expected_parent=None)


def _uncommitted(case: Case) -> None:
    case.confirmed(case.coordinator().trigger())
    _open_on(case.coordinator().timeline.tail())


def _unresolved(case: Case) -> None:
    case.blocked()
    timeline = case.coordinator().timeline
    timeline.decide(lambda view: decisions.to_resolve(view, 1, "out", Resolution.REPLACE))
    decisions.to_resolve(timeline.tail(), 1, "out", Resolution.KEEP)


def _unretracted(case: Case) -> None:
    case.checkpoint()
    case.checkpoint()
    timeline = case.coordinator().timeline
    timeline.decide(lambda view: decisions.to_restore(view, 1, "test"))
    _open_on(timeline.tail())


def _abandoned(case: Case) -> None:
    case.checkpoint()
    case.checkpoint()
    case.coordinator().restore(1)
    case.coordinator().restore(2)


def _checkpoint_gone(case: Case) -> None:
    case.checkpoint()
    case.checkpoint()
    coordinator = case.coordinator(num_retained=1)
    coordinator.clean_up()
    coordinator.restore(1)


def _savepoint_exists(case: Case) -> None:
    case.checkpoint()
    case.checkpoint()
    case.coordinator().savepoint(1, "before")
    case.coordinator().savepoint(2, "before")


def _not_blocked(case: Case) -> None:
    case.blocked()
    case.coordinator().resolve(1, "another", "keep")


def _slot_taken(case: Case) -> None:
    slow, fast = Timeline("orders", case.store), Timeline("orders", case.store)
    slow.tail()
    fast.append(_opened(1))
    slow.append(_opened(2))


class _LosesRequests(MemoryObjectStore):
    """No put reaches the service."""

    def put(self, *args: Any, **kwargs: Any) -> Any:
        raise UnavailableError("the request was lost")


def _contention(case: Case) -> None:
    """Each time this writer has looked, a rival writes first."""
    rival = Timeline("orders", case.store)
    numbers = count(1)

    def rule(_: TimelineView) -> Opened:
        rival.append(_opened(next(numbers)))
        return _opened(next(numbers))

    Timeline("orders", case.store).decide(rule)


def _job_gone(case: Case) -> None:
    coordinator = case.coordinator()
    coordinator.latest()
    case.checkpoint()
    coordinator.latest()
    case.delete(NAMES.root_slot)
    coordinator.trigger()


def _history_hole(case: Case) -> None:
    case.checkpoint()
    timeline = case.coordinator().timeline
    timeline.tail()
    case.delete(timeline.names.slot(2))
    Timeline("orders", case.store).tail()


def _bad_snapshot(case: Case) -> None:
    timeline = case.coordinator().timeline
    case.checkpoint()
    slot = timeline.tail().slot + 1
    names = ("open_attempt", "checkpoints", "last_completed_id", "replaced_id", "highest_id", "abandoned")
    said = dict(zip(names, (None, [], None, None, 0, []), strict=True))
    forged = Snapshot(slot=slot, view={**said, "savepoints": {}, "savepoint_ends": {}, "retractions": []})
    case.replace(timeline.names.slot(slot), encode_record(forged))
    timeline.tail()


def _newer_version(case: Case) -> None:
    later = encode_record(_opened()).replace(b"dstl/record 1 ", b"dstl/record 3 ", 1)
    case.replace(NAMES.slot(1), later)
    case.coordinator().latest()


SCENARIOS: list[tuple[str, Scenario]] = [
    (ErrorKind.ATTEMPT_OPEN, _attempt_open),
    (ErrorKind.ALREADY_APPLIED, _already_applied),
    (ErrorKind.ALREADY_COMPLETED, _already_completed),
    (ErrorKind.NOT_FOUND, _no_attempt),
    (ErrorKind.MOVED, _parent_moved),
    (ErrorKind.UNFINISHED, _uncommitted),
    (ErrorKind.UNFINISHED, _unresolved),
    (ErrorKind.UNFINISHED, _unretracted),
    (ErrorKind.ABANDONED, _abandoned),
    (ErrorKind.NO_CHECKPOINT, lambda case: case.coordinator().get(7)),
    (ErrorKind.CHECKPOINT_GONE, _checkpoint_gone),
    (ErrorKind.CONFLICT, _savepoint_exists),
    (ErrorKind.NOT_FOUND, _not_blocked),
    (ErrorKind.MOVED, _slot_taken),
    (ErrorKind.UNAVAILABLE, lambda _: CheckpointCoordinator("orders", _LosesRequests()).trigger()),
    (ErrorKind.CONTENTION, _contention),
    (ErrorKind.JOB_GONE, _job_gone),
    (ErrorKind.HISTORY_HOLE, _history_hole),
    (ErrorKind.FORMAT, _bad_snapshot),
    (ErrorKind.NEWER_VERSION, _newer_version),
    (ErrorKind.INVALID_INPUT, lambda case: CheckpointCoordinator("../orders", case.store)),
]


@pytest.mark.parametrize(("kind", "scenario"), SCENARIOS)
def test_a_kind_is_raised(kind: str, scenario: Scenario, check_kind: Callable[[str, Scenario], None]) -> None:
    """What the docstring of the kind says happens: this kind, and one of its classes."""
    check_kind(kind, scenario)


def test_no_kind_is_left_out(documented: dict[str, dict[str, set[str]]]) -> None:
    """Every kind of the section has a scenario."""
    assert {kind for kind, _ in SCENARIOS} >= set(documented["Timeline"])
