"""The wait before an object changes again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import JobNames
from dstl_dagster.format.envelope import decode_document
from dstl_dagster.storage import ABSENT, MemoryObjectStore, StoreCapabilities, let_settle
from dstl_dagster.testing.virtual_clock import VirtualClock
from dstl_dagster.timeline.tail import TailReader

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Limited(MemoryObjectStore):
    """A bucket that takes one change of an object a second."""

    @property
    def capabilities(self) -> StoreCapabilities:
        return replace(super().capabilities, seconds_between_updates=1.0)


@pytest.mark.parametrize(
    ("made_seconds_ago", "wait"), [(-0.5, 1.5), (0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (3600.0, 0.0)]
)
def test_the_wait_is_what_is_left_of_the_interval(made_seconds_ago: float, wait: float) -> None:
    """Below zero: the clock is sent to the second, rounded down, so a stamp may seem to be ahead of it."""
    clock = VirtualClock()
    let_settle(Limited(clock=VirtualClock(NOON)), [NOON - timedelta(seconds=made_seconds_ago)], clock)
    assert clock.monotonic_seconds() == wait


@pytest.mark.parametrize(("kind", "waited"), [(Limited, 0.75), (MemoryObjectStore, 0.0)])
def test_the_newest_object_decides(kind: type[MemoryObjectStore], waited: float) -> None:
    """One wait for all, by the newest stamp, and none where the store has no limit."""
    server, ours = VirtualClock(NOON), VirtualClock()
    store = kind(clock=server)
    made = []
    for name in ("a", "b", "c"):
        made.append(store.put(name, b"", precondition=ABSENT))
        server.advance(0.25)
    let_settle(store, (stat.updated for stat in made), ours)
    assert ours.monotonic_seconds() == waited


def test_nothing_made_is_no_wait() -> None:
    """A clean-up that deletes nothing waits for nothing."""
    clock = VirtualClock()
    let_settle(Limited(clock=VirtualClock()), [], clock)
    assert clock.monotonic_seconds() == 0


def test_an_interval_is_not_negative() -> None:
    """A store that declares nonsense is told so where it declares it."""
    with pytest.raises(InvalidInputError, match="seconds_between_updates"):
        StoreCapabilities(seconds_between_updates=-1.0)


def test_a_hint_stays_behind_rather_than_be_refused() -> None:
    """Snapshots half a second apart move the hint every two seconds; without a limit, each time."""
    for kind, moves in ((Limited, [1, 5, 9]), (MemoryObjectStore, [1, 2, 3, 4, 5, 6, 7, 8, 9])):
        store = kind()
        reader = TailReader(store, JobNames("orders"))
        seen = []
        for slot in range(1, 10):
            reader.write_hint(slot, NOON + timedelta(seconds=slot / 2))
            _, hint = decode_document("hint", 1, store.get("dstl/orders/hint"), "hint")
            if hint["slot"] == slot:
                seen.append(slot)
        assert seen == moves
