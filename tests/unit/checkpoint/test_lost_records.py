"""The last records of a timeline are missing, as after half a restored backup: whoever looks says so."""

from __future__ import annotations

import pytest

from dstl_dagster.errors import FormatError
from dstl_dagster.jobs import drop_job
from dstl_dagster.storage import ANY, LocalObjectStore, MemoryObjectStore, WrapperStore
from dstl_dagster.testing.virtual_clock import VirtualClock


class Meanwhile(WrapperStore):
    """Calls `others` once, right before manifests are listed: after the records are read, with one thread."""

    others = None

    def list(self, prefix="", *, start_offset=None):
        if "manifests" in prefix and self.others is not None:
            others, self.others = self.others, None
            others()
        return self.inner.list(prefix, start_offset=start_offset)


@pytest.mark.parametrize("folder", [False, True], ids=["bucket", "folder"])
@pytest.mark.parametrize("snapshot_interval", [8, 32])
@pytest.mark.parametrize("kept", [0, 4, 18], ids=lambda kept: f"{kept} records left")
def test_whoever_looks_first_finds_lost_last_records(job_on, tmp_path, folder, kept, snapshot_interval):
    """A reader, a trigger and a clean-up in a fresh process; each again, since an error is not forgotten."""
    job = job_on(LocalObjectStore(tmp_path, durable=False) if folder else MemoryObjectStore())
    coordinator = job.coordinator(snapshot_interval=snapshot_interval)
    for position in range(8):
        job.checkpoint(coordinator, position)
    for name in job.names("dstl/orders/timeline/")[kept:]:
        job.store.delete(name, precondition=ANY)
    before = list(job.store.list(""))
    fresh = job.coordinator()
    for step in (
        fresh.latest,
        fresh.list,
        lambda: fresh.at("latest"),
        lambda: fresh.applied("day"),
        fresh.trigger,
        fresh.open,
        fresh.plan,
        fresh.clean_up,
        lambda: fresh.restore(1),
    ):
        with pytest.raises(FormatError, match="the last records of job 'orders' are missing") as caught:
            step()
        assert caught.value.kind == "history_hole"
    assert [*job.store.list("")] == before
    if not kept:
        drop_job(job.store, "orders", owner="test", clock=VirtualClock())
        job.checkpoint(job.coordinator(), 9)


@pytest.mark.parametrize("later", [1, 12])
def test_a_job_that_runs_meanwhile_has_lost_nothing(job_on, later):
    """Between the records that are read and the manifests that are listed, others complete checkpoints."""
    job = job_on(Meanwhile(MemoryObjectStore()))
    coordinator = job.coordinator(snapshot_interval=8)
    job.checkpoint(coordinator, 0)
    job.store.others = lambda: [job.checkpoint(coordinator, position) for position in range(1, 1 + later)]
    assert job.coordinator(commit_threads=1).latest().checkpoint_id == 1 + later


def test_a_job_that_begins_meanwhile_has_lost_nothing(job_on):
    """No record was there yet, and then there is a manifest."""
    job = job_on(Meanwhile(MemoryObjectStore()))
    job.store.others = lambda: job.checkpoint(job.coordinator(), 0)
    assert job.coordinator(commit_threads=1).latest().checkpoint_id == 1


@pytest.mark.parametrize("folder", [False, True], ids=["bucket", "folder"])
def test_a_hint_ahead_of_all_records(job_on, tmp_path, folder):
    """Readers, audit and trigger refuse to go on at the older job, and say what is missing. Where a person
    knows that the records are lost, and deletes what the errors name, the job goes on from where they end.
    """
    job = job_on(LocalObjectStore(tmp_path, durable=False) if folder else MemoryObjectStore())
    coordinator = job.coordinator(snapshot_interval=8)
    for position in range(6):
        job.checkpoint(coordinator, position)
    for name in job.names("dstl/orders/timeline/")[5:]:
        job.store.delete(name, precondition=ANY)
    fresh = job.coordinator()
    for step in (fresh.latest, fresh.audit, fresh.trigger, fresh.list):
        with pytest.raises(
            FormatError, match="the last records of job 'orders' are missing: slot 5"
        ) as caught:
            step()
        assert caught.value.kind == "history_hole"
    job.store.delete("dstl/orders/hint", precondition=ANY)
    while unexplained := job.coordinator().audit().unexplained:
        for name in unexplained:
            job.store.delete(name, precondition=ANY)
    assert job.coordinator().latest().checkpoint_id == 2
    assert job.checkpoint(job.coordinator(), 7).checkpoint_id == 3
