"""How many requests a checkpoint waits for, one after another: step by step, and for a stream as a whole.

The table is the one in `docs/checkpoints/how-it-works.md`. A round trip is what `rounds.py` counts as one.
"""

from __future__ import annotations

import dataclasses
import re
import threading
import uuid
from datetime import timedelta
from pathlib import Path

import pytest

from dstl_dagster.checkpoint import Attempt, Batch, Opening
from dstl_dagster.concurrency import both
from dstl_dagster.errors import ConflictError, ErrorKind, FencedError, NotFoundError
from dstl_dagster.storage import ABSENT, ANY, LocalObjectStore, MemoryObjectStore
from dstl_dagster.timeline import Timeline
from tests.unit.checkpoint.counting import Counted
from tests.unit.checkpoint.rounds import Rounds, RoundsStore

YOUNG, OLD = 4, 20
"""Checkpoints before: the timeline of the first job has no snapshot, that of the second has one."""


@pytest.fixture
def store(monkeypatch):
    return RoundsStore(MemoryObjectStore(), Rounds(monkeypatch))


def grown(job, checkpoints, first=0):
    coordinator = job.coordinator()
    for number in range(first, first + checkpoints):
        job.checkpoint(coordinator, number)
    return coordinator


def written(job, attempt, *, operators=2, files=1, components=2):
    """What the tasks of a batch left, as arguments of step 4."""
    return (
        [job.changes(attempt, f"operator-{number}") for number in range(operators)],
        [
            job.file(attempt, f"out/{attempt.attempt}-{number}", *[b"x"] * components)
            for number in range(files)
        ],
    )


def cold_steps(store, job, **sizes):
    """(round trips, requests) of steps 1, 4, 5 and 6, each by a process that has read nothing."""
    *first, opened = store.measured(lambda: job.coordinator().trigger())
    attempt = Attempt.from_json(opened.to_json())
    reports, files = written(job, attempt, **sizes)
    steps = [
        lambda: job.coordinator().record(attempt, reports, files),
        lambda: job.coordinator().confirm(attempt),
        lambda: job.coordinator().compose_commit(attempt.checkpoint_id, attempt=attempt),
    ]
    return [tuple(first), *(store.measured(step)[:2] for step in steps)]


def warm_steps(store, job, coordinator, **sizes):
    """The same by one process that made the checkpoint before."""
    *first, attempt = store.measured(coordinator.trigger)
    reports, files = written(job, attempt, **sizes)
    steps = [
        lambda: coordinator.record(attempt, reports, files),
        lambda: coordinator.confirm(attempt),
        lambda: coordinator.compose_commit(attempt.checkpoint_id),
    ]
    return [tuple(first), *(store.measured(step)[:2] for step in steps)]


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        # 1 trigger, 4 record, 5 confirm, 6 compose-commit: (round trips, requests)
        (0, [(2, 4), (2, 8), (2, 4), (3, 5)]),
        (YOUNG, [(2, 5), (3, 9), (2, 4), (3, 5)]),
        (OLD, [(3, 7), (4, 11), (3, 6), (4, 7)]),
    ],
    ids=["first", "young", "old"],
)
def test_steps_of_processes_that_begin_cold(store, job_of, past, expected):
    """Two operators, one file of two components: five look-ups in step 4, one wave of composes in step 6."""
    job = job_of(store)
    grown(job, past)
    assert cold_steps(store, job) == expected


@pytest.mark.parametrize("past", [1, YOUNG, OLD, 40])
def test_a_stream_takes_six(store, job_of, past):
    """Whatever the past: open; look up beside the tail, and record; confirm; compose, and commit."""
    job = job_of(store)
    coordinator = grown(job, past)
    assert warm_steps(store, job, coordinator) == [(1, 2), (2, 8), (1, 2), (2, 3)]


def test_the_table_in_the_docs_is_measured(store, job_of):
    """Row by row, as in `docs/checkpoints/how-it-works.md`."""
    page = (Path(__file__).parents[3] / "docs" / "checkpoints" / "how-it-works.md").read_text(
        encoding="utf-8"
    )
    rows = re.findall(r"^\| (?:begins cold|made the last).*?((?:\| \d+ \(\d+\) ){4})\|$", page, re.MULTILINE)
    table = [
        [(int(rounds), int(requests)) for rounds, requests in re.findall(r"(\d+) \((\d+)\)", row)]
        for row in rows
    ]
    job, measured = job_of(store), []
    for more in (0, YOUNG, OLD - 4):
        grown(job, more, first=100 * more)
        measured.append(cold_steps(store, job))
    coordinator = grown(job, 1)
    assert [*measured, warm_steps(store, job, coordinator)] == table


@pytest.mark.parametrize(
    ("sizes", "cold", "warm"),
    [
        # Of a process that begins cold and of a stream: round trips of steps 1, 4, 5 and 6.
        ({"operators": 0, "files": 0}, [2, 3, 2, 2], [1, 2, 1, 1]),
        ({"operators": 8, "files": 0}, [2, 3, 2, 2], [1, 2, 1, 1]),
        ({"operators": 0, "files": 8, "components": 1}, [2, 3, 2, 3], [1, 3, 1, 2]),
        # Two waves of composes, the first of one and of nine; the final name is not looked up before.
        ({"operators": 1, "files": 1, "components": 40}, [2, 3, 2, 2 + 2], [1, 2, 1, 1 + 2]),
        ({"operators": 0, "files": 1, "components": 300}, [2, 3, 2, 2 + 3], [1, 2, 1, 1 + 3]),
    ],
    ids=["nothing", "eight operators", "eight files", "forty components", "many components"],
)
def test_what_is_alike_is_one_round_trip(store, job_of, sizes, cold, warm):
    """Eight look-ups and composes at once, as `commit_threads` says; many components by one listing."""
    job = job_of(store)
    coordinator = grown(job, YOUNG)
    assert [rounds for rounds, _ in warm_steps(store, job, coordinator, **sizes)] == warm
    assert [rounds for rounds, _ in cold_steps(store, job, **sizes)] == cold


def test_a_batch_of_a_stream_takes_six_too(store, job_of):
    """Its parent is the checkpoint that it made last: nothing of it is read again."""
    job = job_of(store)
    coordinator = grown(job, YOUNG)
    opening, _, batch = store.measured(lambda: Batch.open(coordinator, Opening("9")))
    reports, files = written(job, batch.attempt)
    for report in (*reports, *files):
        batch.add(report)
    completing, _, checkpoint = store.measured(batch.complete)
    assert (opening, completing) == (1, 5)
    assert checkpoint.committed


def test_a_process_that_knows_only_the_id_reads_the_manifest_after_the_timeline(store, job_of):
    """One round trip more than with the attempt."""
    job = job_of(store)
    coordinator = grown(job, YOUNG)
    attempt = coordinator.trigger()
    coordinator.record(attempt, *written(job, attempt))
    coordinator.confirm(attempt)
    assert store.measured(lambda: job.coordinator().compose_commit(attempt.checkpoint_id))[:2] == (4, 7)


def test_a_folder_gets_no_thread_for_it(tmp_path: Path):
    """What is asked for at once on a bucket is two system calls here, one after the other."""
    useful = LocalObjectStore(tmp_path, durable=False).capabilities.lookup_threads(8)
    threads = both(threading.current_thread, threading.current_thread, useful)
    assert set(threads) == {threading.current_thread()}


def test_a_folder_sends_fewer_requests_too(tmp_path: Path, job_of):
    """No listing of first slots beside the hint, and no more than a bucket's stream. A first look lists slots
    and manifests.
    """
    counted = Counted(LocalObjectStore(tmp_path, durable=False))
    job = job_of(counted)
    coordinator = grown(job, YOUNG)
    counted.spent()
    attempt = coordinator.trigger()
    assert counted.spent() == 2
    reports, files = written(job, attempt, files=0)
    counted.spent()
    coordinator.record(attempt, reports, files)
    assert counted.spent() == 5
    coordinator.confirm(attempt)
    coordinator.compose_commit(attempt.checkpoint_id)
    assert counted.spent() == 4
    job.coordinator().timeline.tail()
    assert counted.requests["list"] == 2


def test_a_record_costs_a_folder_no_second_copy(tmp_path: Path, job_of):
    job = job_of(LocalObjectStore(tmp_path, durable=False))
    grown(job, 1)
    assert [stat.metadata for stat in job.store.list("dstl/orders/timeline/")] == [{}] * 3


# -- what was seen is acted on, and never believed


def test_a_stale_stream_opens_on_the_new_tail(store, job_of):
    """Another process has made a checkpoint since: the slot is taken, and the parent is the new one."""
    job = job_of(store)
    coordinator = grown(job, YOUNG)
    job.checkpoint(job.coordinator(), 99)
    assert coordinator.trigger().parent == YOUNG + 1


def test_a_check_on_a_stale_parent_is_repeated(store, job_of):
    """What it raised of the parent last seen is not raised to the caller."""
    job = job_of(store)
    coordinator = grown(job, YOUNG)
    job.checkpoint(job.coordinator(), 99)
    seen = []

    def check(parent):
        seen.append(parent.checkpoint_id)
        if parent.checkpoint_id != YOUNG + 1:
            raise ConflictError("not on this one")

    assert coordinator.open(Opening(check=check))[1].checkpoint_id == YOUNG + 1
    assert seen == [YOUNG, YOUNG + 1]


def test_a_refusal_is_of_the_tail(store, job_of):
    """What was seen has another owner's attempt open; by now it is aborted."""
    job = job_of(store)
    coordinator = grown(job, YOUNG)
    rival = job.coordinator("rival")
    theirs = rival.trigger()
    with pytest.raises(ConflictError) as refused:
        coordinator.trigger()
    assert refused.value.kind == ErrorKind.ATTEMPT_OPEN
    rival.abort(theirs)
    assert coordinator.trigger().checkpoint_id == YOUNG + 1


def test_a_confirm_that_was_fenced_since_is_told(store, job_of):
    """The attempt was open when last seen."""
    job = job_of(store)
    coordinator = grown(job, YOUNG)
    attempt = coordinator.trigger()
    coordinator.record(attempt, *written(job, attempt))
    job.coordinator("rival").trigger(take_over=True)
    with pytest.raises(FencedError):
        coordinator.confirm(attempt)


def test_a_repeated_confirm_of_an_abandoned_checkpoint_is_told(store, job_of):
    """It was complete when last seen, and a restore has abandoned it since."""
    job = job_of(store)
    coordinator = grown(job, YOUNG)
    attempt = coordinator.trigger()
    coordinator.record(attempt, *written(job, attempt))
    coordinator.confirm(attempt)
    job.coordinator("other").restore(YOUNG)
    with pytest.raises(FencedError, match="abandoned"):
        coordinator.confirm(attempt)


def test_a_commit_of_what_was_committed_when_last_seen_looks_again(store, job_of):
    """A person has resolved a blocked file since: there is something to do."""
    job = job_of(store)
    coordinator = grown(job, 1)
    attempt = coordinator.trigger()
    coordinator.record(attempt, [], [job.file(attempt, "out/a", b"ours")])
    coordinator.confirm(attempt)
    job.store.put("out/a", b"theirs", precondition=ABSENT)
    (blocked,) = coordinator.compose_commit(attempt.checkpoint_id)
    assert blocked.blocked
    other = job.coordinator("other")
    other.resolve(attempt.checkpoint_id, "out/a", "replace")
    (done,) = coordinator.compose_commit(attempt.checkpoint_id)
    assert not done.blocked
    assert job.store.get("out/a") == b"ours"


def test_a_late_commit_of_an_abandoned_checkpoint_publishes_nothing(store, job_of):
    """Not abandoned when last seen: its sources are gone by now, so that nothing can be composed."""
    job = job_of(store)
    coordinator = grown(job, 1)
    attempt = coordinator.trigger()
    coordinator.record(attempt, [], [job.file(attempt, "out/a", b"ours")])
    coordinator.confirm(attempt)
    job.coordinator("other").restore(1)
    with pytest.raises(ConflictError) as refused:
        coordinator.compose_commit(attempt.checkpoint_id)
    assert refused.value.kind == ErrorKind.ABANDONED
    assert job.names("out/a") == []


def test_a_late_commit_of_a_cleaned_up_checkpoint_is_told(store, job_of):
    """Complete and not committed when last seen: by now it is published, subsumed and gone."""
    job = job_of(store)
    coordinator = grown(job, 1)
    attempt = coordinator.trigger()
    coordinator.record(attempt, [], [])
    coordinator.confirm(attempt)
    other = job.coordinator("other", num_retained=1, reader_grace=timedelta(0))
    job.checkpoint(other, 7)
    other.clean_up()
    coordinator._job.recorded = None
    with pytest.raises(NotFoundError) as refused:
        coordinator.compose_commit(attempt.checkpoint_id)
    assert refused.value.kind == ErrorKind.CHECKPOINT_GONE


# -- where reading starts


@pytest.mark.parametrize("slot", [0, 5, 10_000])
def test_a_wrong_start_is_no_harm(store, job_of, slot):
    """Neither a slot without a snapshot, nor one that is not there, nor none: the tail is the same."""
    job = job_of(store)
    expected = grown(job, OLD).timeline.tail()
    timeline = Timeline("orders", store)
    named = Attempt(1, uuid.UUID(int=1), None, timeline=expected.timeline_id, snapshot_slot=slot)
    timeline.start_at(named)
    assert dataclasses.replace(timeline.tail(), keys={}, ended={}, requests={}, snapshot_slot=0) == (
        dataclasses.replace(expected, keys={}, ended={}, requests={}, snapshot_slot=0)
    )


def test_an_edited_copy_of_a_record_is_not_believed(store, job_of):
    """The bytes count; a copy that does not match its checksum is passed over."""
    job = job_of(store)
    grown(job, 2)
    (name,) = job.names("dstl/orders/timeline/00000000000000000004")
    copy = dict(store.stat(name).metadata)
    copy["dstl-record"] = copy["dstl-record"].replace("opened", "fenced")
    payload = store.get(name)
    store.delete(name, precondition=ANY)
    store.put(name, payload, precondition=ABSENT, metadata=copy)
    assert job.coordinator().timeline.tail().last_completed_id == 2


@pytest.mark.parametrize("owner", ["x" * 8_000, "Jürgen", "a\nb"], ids=["long", "not ASCII", "two lines"])
def test_what_metadata_may_not_hold_is_read_from_the_object(store, job_of, owner):
    """A record that is too long for a copy, or has letters that not every way to write metadata takes."""
    attempt = job_of(store).coordinator(owner).trigger()
    found = job_of(store).coordinator().timeline.tail().open_attempt
    assert (found.attempt, found.owner) == (attempt.attempt, owner)


def test_records_without_a_copy_are_read(store, job_of, monkeypatch):
    """Long ones: the first says which timeline it is, then all are read at once, whatever their number."""
    monkeypatch.setattr("dstl_dagster.timeline.timeline.copy_in_metadata", lambda _: {})
    job = job_of(store)
    grown(job, 2)
    rounds, requests, view = store.measured(lambda: job.coordinator().timeline.tail())
    assert (rounds, requests, view.last_completed_id) == (3, 3 + 1 + 6, 2)
