"""A clock that jumps: decisions are ordered by slots, and grace is by the server's clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import ABSENT, Generation, LocalObjectStore, MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock

HOUR = timedelta(hours=1)


class JumpingClock(VirtualClock):
    """Its wall clock can be set; the monotonic one keeps running."""

    jump = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.jump


@pytest.fixture(params=["memory", "folder"])
def store_of(request, tmp_path):
    def make(clock):
        if request.param == "memory":
            return MemoryObjectStore(clock=clock)
        return LocalObjectStore(tmp_path, clock=clock, durable=False)

    return make


def test_an_hour_back_changes_no_order(keyed_on, store_of):
    """Checkpoints complete in order, the newest rows win, and a name's generations rise, by any clock."""
    clock = JumpingClock(datetime(2030, 1, 1, 12, tzinfo=UTC))
    keyed = keyed_on(store_of(clock))
    keyed.changes([{"tail": "N1", "flights": 1}])
    last = keyed.store.put("replaced", b"", precondition=ABSENT).generation
    clock.jump = -HOUR
    keyed.changes([{"tail": "N1", "flights": 2}])
    records = list(keyed.coordinator.timeline.records())
    assert [record.slot for record in records] == [1, 2, 3, 4, 5, 6]
    assert keyed.rows() == [{"tail": "N1", "flights": 2}]
    assert keyed.store.put("replaced", b"", precondition=Generation(last)).generation > last
    assert keyed.coordinator.verify().ok


def test_an_hour_back_takes_no_grace_from_readers(keyed_on, store_of):
    """What was subsumed before the jump stays readable, and is deleted when its grace time is over."""
    clock = JumpingClock(datetime(2030, 1, 1, 12, tzinfo=UTC))
    grace = timedelta(minutes=10)
    keyed = keyed_on(store_of(clock), num_retained=1, reader_grace=grace)
    for flights in (1, 2, 3):
        keyed.changes([{"tail": "N1", "flights": flights}])
    checkpoint = keyed.coordinator.get(2)
    manifest = checkpoint.entry.completed.manifest
    keyed.coordinator.clean_up()
    clock.jump = -HOUR
    assert keyed.coordinator.clean_up().objects == 0
    assert keyed.rows(checkpoint) == [{"tail": "N1", "flights": 2}]
    clock.advance((HOUR + grace).total_seconds())
    keyed.coordinator.clean_up()
    assert keyed.store.stat(manifest) is None or manifest in _named_by(keyed)
    assert keyed.coordinator.audit().garbage.objects == 0
    assert keyed.rows() == [{"tail": "N1", "flights": 3}]


@pytest.mark.parametrize("options", [{"min_age": timedelta(days=2)}, {}])
def test_a_machine_whose_clock_is_ahead_ends_nothing(options):
    """Neither a savepoint nor the age of a checkpoint: what is deleted does not come back."""
    clock = JumpingClock(datetime(2030, 1, 1, 12, tzinfo=UTC))
    store, machine = MemoryObjectStore(clock=clock), JumpingClock(clock.now())
    options = CheckpointOptions(num_retained=1, reader_grace=timedelta(0), **options)
    coordinator = CheckpointCoordinator("orders", store, options, clock=machine)
    for number in (1, 2, 3):
        attempt = coordinator.trigger()
        coordinator.record(attempt)
        coordinator.confirm(attempt)
        coordinator.compose_commit()
        if number == 1 and not options.min_age:
            coordinator.savepoint(1, "kept", until=clock.now() + timedelta(days=1))
    machine.jump = timedelta(days=400)
    assert 1 not in coordinator.clean_up(dry_run=True).subsumed
    assert 1 not in coordinator.clean_up().subsumed
    clock.jump = timedelta(days=3)
    assert 1 in coordinator.clean_up().subsumed


def _named_by(keyed):
    """Older manifests that the last checkpoint builds on."""
    return keyed.store.get(keyed.coordinator.latest().entry.completed.manifest).decode()
