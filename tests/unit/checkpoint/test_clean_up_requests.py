"""What step 7 costs: requests by what is new and by what goes, not by what is retained."""

from __future__ import annotations

import dataclasses
import random
from datetime import UTC, datetime, timedelta

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.checkpoint.steps import clean_up, references
from dstl_dagster.checkpoint.steps.clean_up_mark import CleanUpMark
from dstl_dagster.checkpoint.steps.references import References
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import ABSENT, ANY, MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock
from dstl_dagster.timeline import GraceClock
from tests.unit.checkpoint.counting import Counted, Past

NOTHING_FOUND = 9


class TickingClock(VirtualClock):
    """Goes on by a second whenever it is looked at, as time does between two requests."""

    def now(self):
        self.advance(1.0)
        return super().now()


def job_on(store, **options):
    return CheckpointCoordinator("orders", store, CheckpointOptions(**options), owner="test")


@pytest.fixture
def clock():
    return TickingClock()


@pytest.fixture
def store(clock):
    return Counted(MemoryObjectStore(clock=clock))


def readers_find_everything(store, coordinator, grace):
    """Whether all that a subsumed checkpoint in its grace needs is there."""
    clock = GraceClock(store, coordinator.timeline.names, grace)
    readable = clock.readable(coordinator.timeline.tail())
    return all(
        store.stat(name) is not None for entry in readable for name in References(store).needed_by(entry)
    )


@pytest.mark.parametrize(("retained", "graced"), [(10, 90), (100, 0)])
def test_nothing_to_do_costs_nine_requests(store, retained, graced):
    """Whatever is retained or in grace."""
    coordinator = job_on(
        store, num_retained=retained, reader_grace=timedelta(days=1), snapshot_interval=9_999
    )
    past = Past(store, coordinator)
    past.add(retained + graced)
    coordinator.clean_up()
    store.spent()
    report = coordinator.clean_up()
    assert (report.objects, report.subsumed) == (0, ())
    assert store.spent() <= NOTHING_FOUND


def test_one_more_batch_costs_the_same_for_any_past(store):
    """It is judged by its own manifest; what was judged before is not read again."""
    costs = []
    coordinator = job_on(store, num_retained=500, reader_grace=timedelta(days=1), snapshot_interval=9_999)
    past = Past(store, coordinator)
    for more in (10, 200):
        past.add(more)
        coordinator.clean_up()
        past.add(1)
        store.spent()
        coordinator.clean_up()
        costs.append(store.spent())
    assert costs[0] == costs[1] <= 12


def test_the_first_clean_up_reads_each_manifest_once(store):
    """An old job has no mark: what readers may need is read once, concurrently, and never again."""
    coordinator = job_on(store, num_retained=50, reader_grace=timedelta(days=1), snapshot_interval=9_999)
    Past(store, coordinator).add(90)
    store.spent()
    coordinator.clean_up()
    assert store.requests["get"] <= 90 + 8


def test_garbage_goes_a_hundred_a_request(store):
    """What an aborted attempt left, in batches."""
    coordinator = job_on(store)
    attempt = coordinator.trigger()
    for number in range(1_500):
        store.put(f"dstl/orders/attempts/{attempt.attempt}/changelog/{number}", b"x", precondition=ABSENT)
    coordinator.abort(attempt)
    store.spent()
    assert coordinator.clean_up().objects == 1_500
    assert store.requests["delete_all"] == 15
    assert store.spent() <= 15 + NOTHING_FOUND + 4


def test_a_task_that_outlives_its_checkpoint_is_cleaned_up_after(store):
    """Its object is newer than the mark, so that it is judged, though all around it was before."""
    coordinator = job_on(store)
    past = Past(store, coordinator)
    past.add(3)
    coordinator.clean_up()
    attempt = coordinator.latest().attempt
    late = f"dstl/orders/attempts/{attempt}/changelog/orders/dstl/late"
    store.put(late, b"of a task that lost", precondition=ABSENT)
    assert coordinator.clean_up().deleted == (late,)


@pytest.mark.parametrize("damage", [{}, {"began": "soon", "over": "0", "roots": ""}, {"began": "2020-01-01"}])
def test_a_mark_that_is_none_is_ignored(store, damage):
    """Then everything is judged, and a new mark is left."""
    coordinator = job_on(store)
    Past(store, coordinator).add(3)
    store.put("dstl/orders/clean-up/00000000000000000001", b"", precondition=ANY, metadata=damage)
    store.put("dstl/orders/clean-up/readme", b"", precondition=ANY)
    assert coordinator.clean_up().objects == 0
    marks = [stat for stat in store.list("dstl/orders/clean-up/") if CleanUpMark.of(1, stat)]
    assert len(marks) == 1


def wrong_in_a_random_life(store, clock, job_of, seed):
    """What an audit finds after the clean-ups of a random job: nothing, if the mark's rules hold."""
    choose = random.Random(seed)
    options = {
        "num_retained": 2,
        "reader_grace": timedelta(seconds=choose.choice([0, 300, 3_000])),
        "snapshot_interval": choose.choice([8, 100]),
    }
    job = job_of(store)
    coordinator = job.coordinator(**options)
    for step in range(30):
        match choose.randrange(8):
            case 0:
                attempt = coordinator.trigger(take_over=True)
                coordinator.record(attempt, [job.changes(attempt)], [job.file(attempt, f"out/x{step}", b"a")])
                coordinator.abort(attempt)
            case 1 if coordinator.list():
                coordinator.restore(choose.choice(coordinator.list()).checkpoint_id)
            case 2 if coordinator.list():
                coordinator.savepoint(choose.choice(coordinator.list()).checkpoint_id, f"s{step}")
            case 3:
                clock.advance(400.0)
            case 4 if coordinator.list():
                zombie = choose.choice(coordinator.list()).attempt
                store.put(f"dstl/orders/attempts/{zombie}/changelog/late{step}", b"x", precondition=ABSENT)
            case _:
                attempt = coordinator.trigger(take_over=True)
                job.changes(attempt)  # of a task whose report was lost
                report = job.base(attempt) if choose.random() < 0.3 else job.changes(attempt)
                coordinator.record(attempt, [report], [job.file(attempt, f"out/{step}", b"a")])
                coordinator.confirm(attempt)
                if choose.random() < 0.3:
                    job.coordinator(**options).clean_up()
                coordinator.compose_commit()
        if choose.random() < 0.6:
            fresh = job.coordinator(**options)
            fresh.clean_up()
            assert len(list(store.list("dstl/orders/clean-up/"))) == 1
            found = job.coordinator(**options).audit()  # which judges all, mark or not
            if found.damage or not readers_find_everything(store, coordinator, options["reader_grace"]):
                return "lost"
            if found.garbage is None or found.garbage.objects:
                return "left"
    return None


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_left_or_lost_for_having_a_mark(store, clock, job_of, seed):
    """Each clean-up finds all that one without a mark finds, and no more goes."""
    assert wrong_in_a_random_life(store, clock, job_of, seed) is None


VARIANTS = {
    "later objects count as judged": {"began": datetime(9999, 1, 1, tzinfo=UTC)},
    "an expired grace releases nothing": {"over_slot": 10**9},
    "later checkpoints count as judged": {"slot": 10**9},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_mark_that_claims_too_much_is_caught(store, clock, job_of, monkeypatch, name):
    """The random life can fail: with a mark that settles more than was judged, something is left."""
    right = CleanUpMark.of
    monkeypatch.setattr(
        CleanUpMark,
        "of",
        lambda slot, stat: (mark := right(slot, stat)) and dataclasses.replace(mark, **VARIANTS[name]),
    )
    seeds = (0, 1, 4)
    assert any(
        wrong_in_a_random_life(Counted(MemoryObjectStore(clock=clock)), clock, job_of, seed) for seed in seeds
    )


def test_roots_that_are_not_compared_are_caught(store, clock, job_of, monkeypatch):
    """What a base has released would never go."""
    monkeypatch.setattr(clean_up, "roots_digest", lambda manifests: "the same")
    assert any(
        wrong_in_a_random_life(Counted(MemoryObjectStore(clock=clock)), clock, job_of, seed) == "left"
        for seed in (2, 4)
    )


def test_an_arbitrary_root_is_caught(store, clock, job_of, monkeypatch):
    """The newest checkpoint alone does not stand for what older ones, and their readers, need."""
    monkeypatch.setattr(references, "roots_of", lambda needed: needed[-1:])
    assert any(
        wrong_in_a_random_life(Counted(MemoryObjectStore(clock=clock)), clock, job_of, seed) == "lost"
        for seed in range(6)
    )
