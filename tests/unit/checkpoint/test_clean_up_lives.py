"""What clean-ups of a random life delete: all that nothing needs, page by page, and nothing else."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.checkpoint.steps import clean_up
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import ABSENT, MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock
from dstl_dagster.timeline import Subsumed
from tests.unit.checkpoint.counting import Counted, Past

LATER = 2.5
"""Seconds after which a mark may be replaced."""


class TickingClock(VirtualClock):
    """Goes on by a second whenever it is looked at, as time does between two requests."""

    def now(self):
        self.advance(1.0)
        return super().now()


def job_on(store, **options):
    """As a process that begins."""
    return CheckpointCoordinator("orders", store, CheckpointOptions(**options), owner="test")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    """A page is three objects, so that a job of a few checkpoints has many."""
    monkeypatch.setattr(clean_up, "_PAGE_OBJECTS", 3)


def wrong_in_a_life(job_of, seed):
    """What goes wrong in a random job: what is lost, or left by a clean-up; or `None`."""
    clock = TickingClock()
    store = Counted(MemoryObjectStore(clock=clock))
    choose = random.Random(seed)
    options = {
        "num_retained": choose.choice([2, 100]),
        "reader_grace": timedelta(seconds=choose.choice([0, 300, 3_000])),
        "snapshot_interval": choose.choice([16, 100]),
    }
    job = job_of(store)
    coordinator = job.coordinator(**options)
    for step in range(24):
        match choose.randrange(7):
            case 0:
                attempt = coordinator.trigger(take_over=True)
                coordinator.record(attempt, [job.changes(attempt)], [job.file(attempt, f"out/x{step}", b"a")])
                if choose.random() < 0.7:
                    coordinator.abort(attempt)
            case 1 if coordinator.list() and choose.random() < 0.5:
                coordinator.restore(choose.choice(coordinator.list()).checkpoint_id)
            case 2:
                clock.advance(400.0)
            case 3 if coordinator.list():
                zombie = choose.choice(coordinator.list()).attempt
                store.put(f"dstl/orders/attempts/{zombie}/changelog/late{step}", b"x", precondition=ABSENT)
            case _:
                attempt = coordinator.trigger(take_over=True)
                job.changes(attempt)  # of a task whose report was lost
                report = job.base(attempt) if choose.random() < 0.2 else job.changes(attempt)
                coordinator.record(attempt, [report])
                coordinator.confirm(attempt)
                if choose.random() < 0.3:
                    job.coordinator(**options).clean_up()
                coordinator.compose_commit()
        if choose.random() < 0.6:
            clock.advance(LATER)
            job.coordinator(**options).clean_up()
            if not coordinator.timeline.tail().slot:
                continue  # which no audit takes for a job
            found = job.coordinator(**options).audit()
            if found.damage:
                return "lost"
            if found.garbage.objects:
                return f"left {found.garbage.deleted}"
    return None


@pytest.mark.parametrize("seed", range(4))
def test_a_clean_up_leaves_what_is_needed_and_nothing_else(job_of, seed):
    """Also what tasks write after their attempt has ended."""
    assert wrong_in_a_life(job_of, seed) is None


def test_a_mark_that_claims_what_came_later_is_caught(job_of, monkeypatch):
    """What a task left since the listing would be spared for ever."""
    right = clean_up._Run.leave_mark

    def late(self):
        self._began = self._began and self._began + timedelta(hours=1)
        right(self)

    monkeypatch.setattr(clean_up._Run, "leave_mark", late)
    assert any(wrong_in_a_life(job_of, seed) for seed in range(6))


def test_many_are_subsumed_a_hundred_a_record(monkeypatch):
    """A snapshot repeats the record for each of them: with all in one, it would grow with their square."""
    assert clean_up._SUBSUMED_AT_ONCE == 100
    monkeypatch.setattr(clean_up, "_SUBSUMED_AT_ONCE", 20)
    store = Counted(MemoryObjectStore(clock=VirtualClock()))
    options = {"num_retained": 10, "reader_grace": timedelta(days=1), "snapshot_interval": 9_999}
    Past(store, past := job_on(store, **options)).add(60)
    assert past.clean_up(dry_run=True).subsumed == tuple(range(1, 51))
    assert past.clean_up().subsumed == tuple(range(1, 51))
    records = [each for each in past.timeline.records() if isinstance(each, Subsumed)]
    assert [len(each.checkpoint_ids) for each in records] == [20, 20, 10]
