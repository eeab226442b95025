"""What a clean-up that finds nothing costs, to the request, whatever is behind it."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import datetime, timedelta

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.checkpoint.steps import clean_up
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import ABSENT, MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock
from dstl_dagster.timeline import Snapshot
from tests.unit.checkpoint import counting
from tests.unit.checkpoint.counting import Counted, Past

LATER = 2.5
"""Seconds after which a mark may be replaced."""


class WholeSeconds(Counted):
    """Tells the time as a bucket does, whose clock is a response's `Date`: rounded down to the second."""

    def server_time(self) -> datetime | None:
        now = super().server_time()
        return None if now is None else now.replace(microsecond=0)


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def store(clock):
    clock.advance(0.5)
    return WholeSeconds(MemoryObjectStore(clock=clock))


def job_on(store, **options):
    """As a process that begins."""
    return CheckpointCoordinator("orders", store, CheckpointOptions(**options), owner="test")


def nothing_found(store, **options):
    """The requests of a clean-up that finds nothing to do, each kind."""
    store.requests.clear()
    report = job_on(store, **options).clean_up()
    assert (report.objects, report.subsumed) == (0, ())
    return dict(store.requests)


def quick_batches(store, job_of, count):
    """All within the second in which the last of them is cleaned up after."""
    job = job_of(store)
    coordinator = job.coordinator(num_retained=10)
    for number in range(1, count + 1):
        job.checkpoint(coordinator, number)
        if number % 10 == 0:
            coordinator.clean_up()


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        # The tail of a job without a snapshot, or with one, and the manifests; the mark and three places; the
        # oldest slot whose grace may be over.
        (10, {"list": 1 + 1 + 4, "get": 1}),
        (40, {"list": 2 + 1 + 4, "get": 2, "stat": 1}),
        (100, {"list": 2 + 1 + 4, "get": 2, "stat": 1}),
    ],
)
def test_ten_requests_whatever_is_behind(store, clock, job_of, count, expected):
    """No manifest and no archive is looked at that an earlier run has looked at."""
    quick_batches(store, job_of, count)
    for _ in range(2):
        clock.advance(LATER)
        job_on(store, num_retained=10).clean_up()
    for _ in range(3):
        clock.advance(LATER)
        assert nothing_found(store, num_retained=10) == expected
    assert sum(expected.values()) <= 10


def test_a_very_long_job_costs_one_more_for_each_page(store, clock, monkeypatch):
    """A thousand objects a request, and nothing else grows."""
    monkeypatch.setattr(counting, "PAGE", 100)  # for 1,000, which take the test ten times as long
    monkeypatch.setattr(clean_up, "_PAGE_OBJECTS", 100)
    options = {"num_retained": 10, "reader_grace": timedelta(days=1)}
    Past(store, job_on(store, **options)).add(250)
    for _ in range(2):
        clock.advance(LATER)
        job_on(store, **options).clean_up()
    further_pages = 2 + 2 * 2  # of attempts, and of manifests, which the first look lists too
    for _ in range(2):
        clock.advance(2 * LATER)
        assert nothing_found(store, **options) == {"list": 2 + 1 + 4 + further_pages, "get": 2, "stat": 1}


def test_an_audit_reads_each_manifest_once(store, clock, job_of):
    """And nothing of the archive: how the attempts of readable checkpoints ended, their own records say.

    Of all records the first eight one by one, then a listing that has them, but for snapshots.
    """
    quick_batches(store, job_of, 40)
    clock.advance(LATER)
    store.requests.clear()
    assert job_on(store, num_retained=10).audit().in_order
    spent = store.spent()
    # The ten that are kept name all that they need, in two lists of runs.
    manifests, tail, places, files, attempts = 10 + 2, 2 + 2, 3, 1, 2
    published = 10  # each is asked for its length
    snapshots = sum(isinstance(each, Snapshot) for each in job_on(store).timeline.records(8))
    records = 8 + 1 + snapshots + 2  # the last two look behind the end
    # Twice it looks whether the tail has moved, by two requests, and once how far grace is over.
    found = manifests + tail + places + files + attempts + published + records + 2 * 2 + 1
    assert spent == found


def test_another_jobs_components_are_asked_for_once(store, clock, job_of):
    """The archive does not know their attempts. Each is asked for once, however many components it has."""
    job = job_of(store)
    coordinator = job.coordinator(num_retained=10)
    for number in range(20):
        job.checkpoint(coordinator, number)
    for _ in range(3):
        attempt = uuid.uuid4()
        for number in range(5):
            component = uuid.UUID(int=(attempt.int >> 64 << 64) | number)
            store.put(f".inprogress/memory/theirs/{component}", b"x", precondition=ABSENT)
    asked = Counter()
    store.get = lambda name, **how: asked.update([name]) or Counted.get(store, name, **how)
    clock.advance(LATER)
    assert job_on(store, num_retained=10).clean_up().objects == 0
    assert [count for name, count in asked.items() if "/archive/" in name] == [1, 1, 1]
