"""Where a clean-up of a large job looks: where something changed, and at one more part of all the rest."""

from __future__ import annotations

import dataclasses
import random
import uuid
from datetime import timedelta
from types import MappingProxyType

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator, cleanup, garbage
from dstl_dagster.checkpoint import coordinator as coordinators
from dstl_dagster.checkpoint.references import needed_checkpoints, roots_of
from dstl_dagster.format import JobNames
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import ABSENT, ANY, MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock
from dstl_dagster.timeline import (
    CheckpointEntry,
    CleanUpMark,
    Committed,
    Completed,
    GraceClock,
    Marks,
    Opened,
    Snapshot,
    Subsumed,
    Sweep,
    TimelineView,
    roots_digest,
)
from dstl_dagster.timeline.record_codec import encode_record
from dstl_dagster.timeline.snapshot import view_to_plain
from dstl_dagster.timeline.tail import TailReader
from tests.unit.checkpoint.counting import Counted, Past

NAMES = JobNames("orders", "0123456789abcdef")
LATER = 2.5
"""Seconds after which a mark may be replaced."""
OPTIONS = {"num_retained": 5_000, "reader_grace": timedelta(days=1)}


class TickingClock(VirtualClock):
    """Goes on by a second whenever it is looked at, as time does between two requests."""

    def now(self):
        self.advance(1.0)
        return super().now()


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def store(clock):
    return Counted(MemoryObjectStore(clock=clock))


def job_on(store, **options):
    """As a process that begins."""
    return CheckpointCoordinator("orders", store, CheckpointOptions(**options), owner="test")


def long_history(store, checkpoints, graced):
    """So many checkpoints of two objects each, the older ones in grace; written straight into the store."""
    slot = 3 * checkpoints
    subsumed = Subsumed(slot=slot, checkpoint_ids=(1,))
    entries = {}
    for number in range(1, checkpoints + 1):
        attempt = uuid.uuid4()
        manifest = NAMES.manifest(number, attempt)
        completed = Completed(
            slot=3 * number - 1,
            attempt=attempt,
            checkpoint_id=number,
            parent=number - 1 or None,
            manifest=manifest,
        )
        committed = Committed(slot=3 * number, checkpoint_id=number)
        entries[number] = CheckpointEntry(completed, committed, subsumed if number <= graced else None)
        store.put(f"{NAMES.changelog_base_path(attempt)}/orders/dstl/file", b"x", precondition=ABSENT)
        store.put(manifest, b"never read", precondition=ABSENT)
    view = TimelineView(
        slot=slot,
        checkpoints=MappingProxyType(entries),
        last_completed_id=checkpoints,
        highest_id=checkpoints,
    )
    root = Opened(
        slot=1,
        decision_id=uuid.UUID(int=0x0123456789ABCDEF),
        attempt=uuid.uuid4(),
        checkpoint_id=1,
        parent=None,
        owner="past",
    )
    store.put(NAMES.slot(1), encode_record(root), precondition=ABSENT)
    plain = view_to_plain(view, range(1, graced + 1))
    snapshot = Snapshot(slot=slot + 1, view=plain)
    stamp, _ = (
        store.put(NAMES.slot(record.slot), encode_record(record), precondition=ABSENT).updated
        for record in (subsumed, snapshot)
    )
    TailReader(store, NAMES).write_hint(slot + 1)
    return view, ((slot, stamp),)


def judged(store, view, stamps):
    """The mark of a clean-up that looked at all of it a while ago."""
    needed = needed_checkpoints(view, GraceClock(store, NAMES, timedelta(days=1)))
    roots = roots_digest(entry.completed.manifest for entry in roots_of(needed))
    now = store.server_time()
    mark = CleanUpMark(view.slot + 1, now, 0, roots, stamps, Sweep(now, now))
    Marks(store, NAMES).write(mark, now)


def test_ten_thousand_checkpoints_take_eight_requests(store, clock):
    """Half of them in grace. The tail takes four, then the mark, components, a page of the rest, the mark."""
    history = long_history(store, 10_000, graced=5_000)
    clock.advance(1)
    judged(store, *history)
    clock.advance(LATER)
    store.requests.clear()
    report = job_on(store, **OPTIONS).clean_up()
    assert (report.objects, report.subsumed) == (0, ())
    assert dict(store.requests) == {"get": 2, "list": 2 + 1 + 1 + 1, "put": 1}


@pytest.fixture
def small_pages(monkeypatch):
    """A page is three objects, so that a job of a few checkpoints is a large one."""
    monkeypatch.setattr(cleanup, "_PAGE_OBJECTS", 3)


def settled(store, clock, checkpoints=12):
    """A large job that was cleaned up, and its options."""
    options = {"num_retained": 100, "reader_grace": timedelta(days=1), "snapshot_interval": 9_999}
    Past(store, past := job_on(store, **options)).add(checkpoints)
    for _ in range(2):
        clock.advance(LATER)
        past.clean_up()
    return options


def mark_of(store):
    (stat,) = store.list("dstl/orders/clean-up/")
    mark = CleanUpMark.of(int(stat.name.rpartition("/")[2]), stat)
    assert mark is not None
    return mark


def zombies_object(store, coordinator, checkpoint_id):
    attempt = coordinator.get(checkpoint_id).attempt
    name = f"dstl/orders/attempts/{attempt}/changelog/orders/dstl/late"
    store.put(name, b"of a task that lost", precondition=ABSENT)
    return name


def test_what_an_abort_left_goes_at_once(store, clock, small_pages):
    """In a large job too, wherever its names are among the others: its own folder is listed."""
    options = settled(store, clock)
    coordinator = job_on(store, **options)
    left = []
    for _ in range(3):
        attempt = coordinator.trigger()
        left.append(f"dstl/orders/attempts/{attempt.attempt}/changelog/orders/dstl/a")
        left.append(NAMES.manifest(attempt.checkpoint_id, attempt.attempt))
        for name in left[-2:]:
            store.put(name, b"x", precondition=ABSENT)
        coordinator.abort(attempt)
    clock.advance(LATER)
    assert sorted(job_on(store, **options).clean_up().deleted) == sorted(left)


def test_what_a_task_leaves_later_is_found_by_the_sweep(store, clock, small_pages):
    """By the time that each page was looked at once more; and `whole` looks at all of them at once."""
    options = settled(store, clock)
    name = zombies_object(store, job_on(store, **options), 5)
    clock.advance(LATER)
    assert job_on(store, **options).clean_up(dry_run=True).deleted == (name,)
    pages = 1 + 2 * 12 // 2
    deleted = []
    for _ in range(pages):
        clock.advance(LATER)
        deleted += job_on(store, **options).clean_up().deleted
    assert deleted == [name]
    zombies_object(store, job_on(store, **options), 5)
    clock.advance(LATER)
    assert job_on(store, **options).clean_up(whole=True).deleted == (name,)


def test_a_sweep_that_is_done_begins_anew(store, clock, small_pages):
    """What is stamped before it began has been looked at; what is judged again meanwhile costs no more."""
    options = settled(store, clock)
    began = mark_of(store).sweep.began
    places = []
    while mark_of(store).began < began or len(places) < 3:
        clock.advance(LATER)
        store.requests.clear()
        job_on(store, **options).clean_up()
        assert store.requests["get"] == 1 + 0  # the hint; no manifest
        places.append(mark_of(store).sweep.after)
        assert len(places) < 30
    assert places[-1] == ""
    assert sorted(set(places[:-1])) == places[:-1]


def test_a_grace_that_ends_is_looked_for_everywhere(store, clock, job_of, small_pages):
    """And a retained checkpoint less: what it releases may lie anywhere."""
    options = {"num_retained": 6, "reader_grace": timedelta(minutes=10)}
    job = job_of(store)
    coordinator = job.coordinator(**options)
    for number in range(9):
        attempt = coordinator.trigger()
        coordinator.record(attempt, [job.base(attempt) if number == 3 else job.changes(attempt)])
        coordinator.confirm(attempt)
        coordinator.compose_commit()
    coordinator.clean_up()
    clock.advance(300)
    coordinator.clean_up()
    assert mark_of(store).sweep is not None
    clock.advance(700)
    report = coordinator.clean_up()
    assert set(report.reasons) == {"of a subsumed checkpoint"}
    assert coordinator.audit().garbage.objects == 0


def test_a_mark_without_a_sweep_is_of_a_job_that_is_listed_whole(store, clock, small_pages):
    """As earlier releases left it. And an early release finds `began` in the new one as it expects it."""
    options = settled(store, clock)
    name = zombies_object(store, job_on(store, **options), 3)
    (stat,) = store.list("dstl/orders/clean-up/")
    old = {key: text for key, text in stat.metadata.items() if key != "sweep"}
    store.put(stat.name, b"", precondition=ANY, metadata=old)
    clock.advance(LATER)
    assert job_on(store, **options).clean_up().deleted == (name,)


@pytest.mark.parametrize("sweep", ["", "soon", "2030-01-01T00:00:00 2030-01-01T00:00:00 ", "a b c d"])
def test_a_sweep_that_is_none_is_no_mark(store, clock, small_pages, sweep):
    settled(store, clock)
    (stat,) = store.list("dstl/orders/clean-up/")
    store.put(stat.name, b"", precondition=ANY, metadata={**stat.metadata, "sweep": sweep})
    (stat,) = store.list("dstl/orders/clean-up/")
    assert CleanUpMark.of(99, stat) is None


def test_a_sweep_survives_any_name(clock):
    now = clock.now().replace(microsecond=7)
    sweep = Sweep(now, now, "dstl/orders/attempts/ä b\t%20")
    assert str(sweep).isascii()
    assert Sweep.of(str(sweep)) == sweep


def wrong_in_a_large_life(store, clock, job_of, seed):
    """What goes wrong in a random job of small pages: what is lost, left, or never found; or `None`."""
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
            job.coordinator(**options).clean_up()
            found = job.coordinator(**options).audit()
            if found.damage:
                return "lost"
            if any("/late" not in name for name in found.garbage.deleted):
                return "left"
    for _ in range(200):
        clock.advance(LATER)
        job.coordinator(**options).clean_up()
    return "never found" if job.coordinator(**options).audit().garbage.objects else None


@pytest.mark.parametrize("seed", [0, 3])
def test_only_what_tasks_leave_later_waits_for_the_sweep(job_of, small_pages, seed):
    clock = TickingClock()
    assert wrong_in_a_large_life(Counted(MemoryObjectStore(clock=clock)), clock, job_of, seed) is None


def _no_folders(scope):
    return scope and dataclasses.replace(scope, folders=())


def _no_manifests(scope):
    return scope and dataclasses.replace(scope, manifests_from=None)


BROKEN_SCOPES = {
    "does not list what was published or died": (_no_folders, "left"),
    "does not list manifests of the dead": (_no_manifests, "left"),
}


def caught(job_of, expected, seeds=range(3)):
    for seed in seeds:
        clock = TickingClock()
        if wrong_in_a_large_life(Counted(MemoryObjectStore(clock=clock)), clock, job_of, seed) == expected:
            return True
    return False


@pytest.mark.parametrize("name", BROKEN_SCOPES)
def test_a_scope_that_leaves_something_out_is_caught(job_of, monkeypatch, small_pages, name):
    change, expected = BROKEN_SCOPES[name]
    right = garbage.scope_of
    monkeypatch.setattr(cleanup, "scope_of", lambda *given, **how: change(right(*given, **how)))
    assert caught(job_of, expected)


def test_a_scope_that_overlooks_the_end_of_a_grace_is_caught(job_of, monkeypatch, small_pages):
    """What it released would wait for the sweep."""
    right = garbage.scope_of

    def blind(view, mark, **how):
        how["over_slot"] = how["over_slot"] if mark is None else mark.over_slot
        how["roots"] = how["roots"] if mark is None else mark.roots
        return right(view, mark, **how)

    monkeypatch.setattr(cleanup, "scope_of", blind)
    assert caught(job_of, "left")


@pytest.mark.parametrize(
    ("changes", "is_whole"),
    [
        ({}, False),
        ({"roots": ""}, True),  # they changed while that clean-up ran
        ({"over_slot": 1}, True),
        ({"sweep": None}, True),
        ({"slot": 5}, True),  # before the view's snapshot
    ],
    ids=["nothing", "roots", "grace", "no sweep", "snapshot"],
)
def test_where_to_look_is_a_pure_plan(clock, changes, is_whole):
    now = clock.now()
    mark = dataclasses.replace(CleanUpMark(9, now, 0, "these", (), Sweep(now, now, "x")), **changes)
    scope = garbage.scope_of(TimelineView(slot=12, snapshot_slot=6), mark, roots="these", over_slot=0)
    assert scope == (None if is_whole else garbage.Scope((), None, "x"))


def test_a_sweep_that_claims_what_it_has_not_seen_is_caught(job_of, monkeypatch, small_pages):
    """With each run's time for that of the last look at everything, what came late is spared for good."""
    right = cleanup._Run._of_part
    monkeypatch.setattr(
        cleanup._Run,
        "_of_part",
        lambda self, mark, *swept: dataclasses.replace(right(self, mark, *swept), began=mark.began),
    )
    assert caught(job_of, "never found")


def test_many_are_subsumed_a_hundred_a_record(store, monkeypatch):
    """A snapshot repeats the record for each of them: with all in one, it would grow with their square."""
    assert coordinators._SUBSUMED_AT_ONCE == 100
    monkeypatch.setattr(coordinators, "_SUBSUMED_AT_ONCE", 20)
    options = {"num_retained": 10, "reader_grace": timedelta(days=1), "snapshot_interval": 9_999}
    Past(store, past := job_on(store, **options)).add(60)
    assert past.clean_up(dry_run=True).subsumed == tuple(range(1, 51))
    assert past.clean_up().subsumed == tuple(range(1, 51))
    records = [each for each in past.timeline.records() if isinstance(each, Subsumed)]
    assert [len(each.checkpoint_ids) for each in records] == [20, 20, 10]
