"""Snapshots, hint and archive: a long history is as cheap to read as a short one, with the same view."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from dstl_dagster.checkpoint import Timeline
from dstl_dagster.errors import ConflictError, FencedError, FormatError, NotFoundError, UnavailableError
from dstl_dagster.format.names import JobNames, attempt_half
from dstl_dagster.storage import ABSENT, ANY
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.timeline import Opened, Snapshot, Subsumed, TimelineView
from dstl_dagster.timeline.archive import Archive
from dstl_dagster.timeline.record_codec import encode_record, view_from_plain, view_to_plain
from dstl_dagster.timeline.replay import next_view

NAMES = JobNames("orders")
EVERY = {"snapshot_interval": 8, "reader_grace": timedelta(0), "commit_threads": 1}


def long_history(job, count: int = 40):
    """Batches with keys, an abort each fifth time, and clean-ups."""
    coordinator = job.coordinator(num_retained=2, **EVERY)
    first = coordinator.timeline.tail().highest_id
    for number in range(first, first + count):
        if number % 5 == 0:
            coordinator.abort(coordinator.trigger())
        attempt = coordinator.trigger(idempotency_key=f"batch-{number}")
        coordinator.record(attempt, positions={"source": number})
        coordinator.confirm(attempt)
        coordinator.compose_commit()
        coordinator.clean_up()
    return coordinator


def folded_from_the_start(timeline: Timeline):
    """The view without any snapshot: what the records alone add up to."""
    view = TimelineView()
    for record in timeline.records():
        # Snapshots are left out, so their slots have to be skipped.
        skipped = isinstance(record, Snapshot)
        view = replace(view, slot=record.slot - (not skipped))
        view = view if skipped else next_view(view, record)
    return view


def test_snapshots_do_not_change_the_view(job):
    """Retained checkpoints, ids and applied batches are the same as by folding every record."""
    coordinator = long_history(job)
    whole = folded_from_the_start(coordinator.timeline)
    read = Timeline("orders", job.store).tail()
    assert read.snapshot_slot > 100
    assert [entry.completed for entry in read.retained] == [entry.completed for entry in whole.retained]
    assert (read.slot, read.last_completed_id, read.highest_id) == (whole.slot, 40, 40)
    for number in range(40):
        assert read.applied_in(f"batch-{number}") == number + 1 == whole.applied_in(f"batch-{number}")
    assert read.applied_in("batch-40") is None


def test_a_reader_from_before_a_snapshot_agrees_with_it(job):
    """In whatever order savepoints were created: JSON sorts their names."""
    writer, reader = job.coordinator(num_retained=5, **EVERY), job.coordinator(num_retained=5, **EVERY)
    job.checkpoint(writer, 1)
    for name in ("zebra", "ant"):
        writer.savepoint(1, name)
    assert reader.timeline.tail().snapshot_slot == 0
    for position in range(2, 6):
        job.checkpoint(writer, position)
    view = reader.timeline.tail()
    assert view.snapshot_slot > 0
    assert view.savepoints == {"zebra": 1, "ant": 1}


def test_reading_the_tail_does_not_cost_more_with_age(job):
    """A reader that knows nothing makes as many requests after 40 checkpoints as after 400."""
    costs = []
    for count in (40, 360):
        long_history(job, count)
        watched = FaultStore(job.store)
        Timeline("orders", watched, threads=1).tail()
        costs.append(len(watched.requests))
    assert max(costs) <= 16 + 5, costs


def test_a_decision_does_not_cost_more_with_age(job):
    """A whole checkpoint makes the same requests, give or take a snapshot, however old the job is."""
    costs = []
    for _ in range(3):
        long_history(job, 60)
        watched = FaultStore(job.store)
        long_history(type(job)(watched), 20)
        costs.append(Counter(request.method for request in watched.requests))
    for method in costs[0]:
        assert abs(costs[0][method] - costs[2][method]) <= 20, (method, costs)


@pytest.mark.parametrize("hint", [None, b"", b"dstl/hint 1 999", 1, 3], ids=str)
def test_a_hint_is_never_trusted(job, hint):
    """Missing, torn, or pointing to a slot without a snapshot: the tail is found all the same."""
    coordinator = long_history(job)
    expected = coordinator.timeline.tail()
    if hint is None or isinstance(hint, bytes):
        job.store.delete(NAMES.hint, precondition=ANY)
    if isinstance(hint, bytes):
        job.store.put(NAMES.hint, hint, precondition=ANY)
    elif hint is not None:
        coordinator.timeline._tail_reader.write_hint(hint)
    found = Timeline("orders", job.store).tail()
    assert (found.slot, found.snapshot_slot) == (expected.slot, expected.snapshot_slot)


def test_without_a_hint_a_long_tail_is_found_by_probing(job):
    """With more records than one page of a listing, not all of them are listed or read."""
    coordinator = job.coordinator(snapshot_interval=2_000, commit_threads=1)
    for _ in range(600):
        coordinator.abort(coordinator.trigger())
    coordinator = job.coordinator(snapshot_interval=8, commit_threads=1)
    coordinator.abort(coordinator.trigger())
    job.store.delete(NAMES.hint, precondition=ANY)
    watched = FaultStore(job.store)
    found = Timeline("orders", watched, threads=1).tail()
    assert found.slot == coordinator.timeline.tail().slot > 1_200
    assert len(watched.requests) < 100


def test_what_is_archived_still_counts(job):
    """A zombie of an attempt that ended long ago is refused; a batch applied long ago is not repeated."""
    coordinator = job.coordinator(num_retained=1, **EVERY)
    dead = coordinator.trigger()
    coordinator.abort(dead, "given up")
    old = job.checkpoint(coordinator, 0, key="first")
    request = uuid.uuid4()
    coordinator.savepoint(1, "mark", request_id=request)
    coordinator.release("mark")
    long_history(job, 20)
    fresh = job.coordinator(num_retained=1, **EVERY)
    with pytest.raises(FencedError, match="given up"):
        fresh.confirm(dead)
    with pytest.raises(FencedError):
        fresh.require_open(dead)
    with pytest.raises(ConflictError) as applied:
        fresh.trigger(idempotency_key="first")
    assert applied.value.kind == "already_applied"
    with pytest.raises(ConflictError) as completed:
        fresh.require_open(old)
    assert completed.value.kind == "already_completed"
    fresh.savepoint(fresh.latest().checkpoint_id, "mark", request_id=request)
    assert fresh.timeline.tail().savepoints == {}, "the request was answered long ago"
    with pytest.raises(NotFoundError) as gone:
        fresh.get(1)
    assert gone.value.kind == "checkpoint_gone"


def test_what_a_zombie_writes_after_a_snapshot_is_garbage(job):
    """The attempt is no longer in the snapshot: clean-up finds how it ended in the archive."""
    coordinator = job.coordinator(num_retained=1, **EVERY)
    dead = coordinator.trigger()
    coordinator.abort(dead)
    long_history(job, 20)
    job.changes(dead)
    job.file(dead, "out/late", b"late")
    report = job.coordinator(num_retained=2, **EVERY).clean_up()
    assert report.reasons == {"left by a dead attempt": 2}
    assert job.names(".inprogress/") == []


def test_a_snapshot_waits_for_the_archive(job, monkeypatch):
    """If archiving fails, no snapshot is written, and the decision stands."""

    def fails(*_arguments):
        raise UnavailableError("no storage now")

    monkeypatch.setattr(Archive, "write", fails)
    coordinator = long_history(job, 10)
    assert not any(isinstance(record, Snapshot) for record in coordinator.timeline.records())
    assert coordinator.latest().checkpoint_id == 10


def test_what_stops_snapshots_is_a_warning(job, caplog):
    """Each batch goes on, and each read gets longer."""
    coordinator = job.coordinator(**EVERY)
    attempt = coordinator.trigger()
    foreign = NAMES.archived_attempt(attempt_half(attempt.attempt))
    job.store.put(foreign, b"notes", precondition=ABSENT)
    coordinator.abort(attempt)
    found = long_history(job, 5).timeline.tail()
    assert (found.snapshot_slot, found.last_completed_id) == (0, 5)
    warned = {each.getMessage() for each in caplog.records if each.levelname == "WARNING"}
    assert any(f"foreign object {foreign} in the archive: move it away" in each for each in warned)
    job.store.delete(foreign, precondition=ANY)
    assert long_history(job, 1).timeline.tail().snapshot_slot > 0


def test_a_wrong_snapshot_is_refused(job):
    """A reader that has read the records before it does not trust it."""
    coordinator = job.coordinator(snapshot_interval=100)
    job.checkpoint(coordinator, 1)
    tail = coordinator.timeline.tail()
    view = {
        "open_attempt": None,
        "checkpoints": [],
        "last_completed_id": None,
        "replaced_id": None,
        "highest_id": 0,
        "abandoned": [],
        "savepoints": {},
        "savepoint_ends": {},
        "retractions": [],
    }
    forged = Snapshot(slot=tail.slot + 1, view=view)
    job.store.put(coordinator.timeline.names.slot(forged.slot), encode_record(forged), precondition=ABSENT)
    with pytest.raises(FormatError, match="not what the records before it add up to"):
        coordinator.timeline.tail()


@pytest.mark.parametrize("field", ["checkpoints", "open_attempt", "abandoned"])
def test_a_snapshot_that_is_not_as_documented_is_a_format_error(job, field):
    """Whatever is in its place, a FormatError names the slot."""
    coordinator = long_history(job, 10)
    snapshot = next(record for record in coordinator.timeline.records() if isinstance(record, Snapshot))
    for wrong in ([{}], "text", 7):
        broken = Snapshot(slot=snapshot.slot, view={**snapshot.view, field: wrong})
        with pytest.raises(FormatError, match=f"slot {snapshot.slot}"):
            next_view(TimelineView(), broken)


def test_readers_of_a_subsumed_checkpoint_keep_their_grace_across_snapshots(job):
    """A chain that is being read stays intact for the grace time, even after a base has replaced it."""
    coordinator = job.coordinator(num_retained=1, snapshot_interval=8, commit_threads=1)
    for position in range(3):
        job.checkpoint(coordinator, position)
    read = coordinator.get(3)
    names = {
        stream.name
        for handle in read.manifest.operators["totals"].handles
        for stream, _ in handle.handles_and_offsets
    }
    for _ in range(5):
        attempt = coordinator.trigger()
        coordinator.record(attempt, [job.base(attempt)])
        coordinator.confirm(attempt)
        coordinator.compose_commit()
        coordinator.clean_up()
    assert coordinator.timeline.tail().snapshot_slot > 0
    assert names <= set(job.names())
    job.coordinator(num_retained=1, reader_grace=timedelta(0)).clean_up()
    assert not names & set(job.names())


def test_an_opened_attempt_survives_a_snapshot(job):
    """The attempt that was open when the snapshot was written is still open after it."""
    coordinator = job.coordinator(**EVERY)
    for _ in range(3):
        coordinator.abort(coordinator.trigger())
    attempt = coordinator.trigger()
    coordinator.timeline._add_snapshot_if_due(Subsumed(checkpoint_ids=()))
    records = list(coordinator.timeline.records())
    assert isinstance(records[-1], Opened | Snapshot)
    fresh = job.coordinator(**EVERY)
    fresh.record(attempt)
    assert fresh.confirm(attempt).checkpoint_id == 1


@pytest.mark.parametrize("wrong", [{}, ""])
def test_a_snapshot_lists_its_checkpoints(wrong):
    """Something else without items is not read as a job that has none."""
    plain = view_to_plain(TimelineView())
    assert view_from_plain(plain, 5).checkpoints == {}
    with pytest.raises(FormatError):
        view_from_plain({**plain, "checkpoints": wrong}, 5)
