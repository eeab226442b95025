"""A process that outlives its job is refused, and harms no later job of that name."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ErrorKind, FormatError, NotFoundError
from dstl_dagster.jobs import drop_job
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import ANY, LocalObjectStore, MemoryObjectStore
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.testing.virtual_clock import VirtualClock


@pytest.fixture(params=["bucket", "folder"])
def job(request, job_on, tmp_path):
    folder = request.param == "folder"
    return job_on(LocalObjectStore(tmp_path, durable=False) if folder else MemoryObjectStore())


def gone(job, how: str) -> None:
    """The job is dropped, or its objects are deleted without the product."""
    if how == "dropped":
        drop_job(job.store, "orders", owner="person", force=True, clock=VirtualClock())
        return
    for name in job.names("dstl/"):
        job.store.delete(name, precondition=ANY)


def begin_again(job, checkpoints: int) -> CheckpointCoordinator:
    """Another job of that name, with an attempt open."""
    coordinator = job.coordinator("new")
    for position in range(100, 100 + checkpoints):
        job.checkpoint(coordinator, position)
    if checkpoints:
        coordinator.trigger()
    return coordinator


@pytest.mark.parametrize("checkpoints", [0, 1, 5], ids=lambda count: f"{count} since")
@pytest.mark.parametrize("how", ["dropped", "emptied"])
def test_a_process_that_kept_its_coordinator_is_refused(job, how, checkpoints):
    """Whatever it calls, also a late confirm of what it had recorded: `job_gone`, and nothing is written."""
    old = job.coordinator("old")
    job.checkpoint(old, 0)
    attempt = old.trigger()
    old.record(attempt, [job.changes(attempt)])
    gone(job, how)
    begin_again(job, checkpoints)
    before = [(stat.name, stat.generation) for stat in job.store.list("")]
    for call in (
        lambda: old.confirm(attempt),
        lambda: old.abort(attempt),
        lambda: old.compose_commit(1),
        old.trigger,
        lambda: old.restore(1),
        old.clean_up,
        old.latest,
    ):
        with pytest.raises(NotFoundError, match="is gone") as refused:
            call()
        assert refused.value.kind == ErrorKind.JOB_GONE
    assert [(stat.name, stat.generation) for stat in job.store.list("")] == before


@pytest.mark.parametrize("checkpoints", [0, 1, 5], ids=lambda count: f"{count} since")
@pytest.mark.parametrize("how", ["dropped", "emptied"])
def test_a_later_step_in_another_process_is_refused(job, how, checkpoints):
    """It has the attempt alone, as a later op of a run: that says which job it was of."""
    attempt = job.coordinator("old").trigger()
    gone(job, how)
    begin_again(job, checkpoints)
    for step in (CheckpointCoordinator.confirm, CheckpointCoordinator.record, CheckpointCoordinator.abort):
        with pytest.raises(NotFoundError, match="of a job 'orders' that is gone") as refused:
            step(job.coordinator("old"), attempt)
        assert refused.value.kind == ErrorKind.JOB_GONE


def test_what_a_task_of_a_dropped_job_writes_is_no_lost_record(job):
    """Files and a manifest that come after the drop: the new job is in order, and goes on."""
    old = job.coordinator("old")
    job.checkpoint(old, 0)
    attempt = old.trigger()
    old.record(attempt, [job.changes(attempt)], [job.file(attempt, "out/a", b"x")])
    manifest = next(name for name in job.names("dstl/orders/manifests/") if str(attempt.attempt) in name)
    payload = job.store.get(manifest)
    gone(job, "dropped")
    begin_again(job, 1)
    job.changes(attempt)
    job.store.put(manifest, payload, precondition=ANY)
    assert job.coordinator().latest().checkpoint_id == 1
    audit = job.coordinator().audit()
    assert audit.unexplained == ()
    assert audit.in_order


def test_a_job_that_lost_its_first_record_alone(job):
    """As by a lifecycle rule, which deletes the oldest object first: the error says what is missing."""
    coordinator = job.coordinator(snapshot_interval=8)
    for position in range(4):
        job.checkpoint(coordinator, position)
    assert coordinator.timeline.tail().snapshot_slot
    job.store.delete(coordinator.timeline.names.root_slot, precondition=ANY)
    for each in (coordinator, job.coordinator("another")):
        with pytest.raises(NotFoundError, match=r"first record of .* restore it from a backup") as refused:
            each.trigger()
        assert refused.value.kind == ErrorKind.JOB_GONE


def test_lost_records_of_the_job_itself_are_still_told(job):
    """The same objects, of this timeline: the records that named their attempt are missing."""
    coordinator = job.coordinator()
    job.checkpoint(coordinator, 0)
    attempt = coordinator.trigger()
    coordinator.record(attempt, [job.changes(attempt)])
    job.store.delete(job.names("dstl/orders/timeline/")[-1], precondition=ANY)
    with pytest.raises(FormatError, match="the last records of job 'orders' are missing"):
        job.coordinator().trigger()
    assert not job.coordinator().audit().in_order


@pytest.mark.parametrize("how", ["dropped", "emptied"])
def test_a_job_that_goes_before_any_request_of_step_4_leaves_no_trace(how, job_on):
    """A manifest that a process writes then would say for ever that the job has lost its records."""
    for at in itertools.count():
        job, seen = job_on(MemoryObjectStore()), itertools.count()

        def before_request(job=job, seen=seen, at=at):
            if next(seen) == at:
                gone(job, how)

        job.checkpoint(job.coordinator(), 0)
        attempt = job.coordinator().trigger()
        changes = job.changes(attempt)
        store = FaultStore(job.store, before_request=before_request)
        old = CheckpointCoordinator("orders", store, CheckpointOptions(commit_threads=1))
        with suppress(NotFoundError):  # job_gone
            old.record(attempt, [changes])
        if len(store.requests) <= at:
            break
        job.checkpoint(job.coordinator(), 100)
        assert job.coordinator().latest().positions == {"source": 100}, at
    assert at > 4
