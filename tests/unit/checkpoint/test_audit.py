"""Whether a job is in order."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import ABSENT, ANY, MemoryObjectStore
from tests.unit.checkpoint.counting import Counted, Past


def test_a_healthy_job_is_in_order(job):
    """Checkpoints, savepoints and the open attempt are reported; nothing is damaged, nothing is garbage."""
    coordinator = job.coordinator()
    for position in (1, 2):
        job.checkpoint(coordinator, position)
    coordinator.savepoint(1, "mark")
    coordinator.trigger()
    audit = coordinator.audit()
    assert audit.in_order
    assert (audit.latest, audit.retained, audit.savepoints) == (2, (1, 2), {"mark": 1})
    assert audit.open_attempt.owner == "test"
    assert audit.garbage.objects == 0


def test_a_missing_object_is_damage(job):
    """A changelog file that was deleted by hand is named, once, for the oldest checkpoint that needs it."""
    coordinator = job.coordinator()
    for position in (1, 2):
        job.checkpoint(coordinator, position)
    (first, *_) = [name for name in job.names("dstl/orders/attempts/") if "/changelog/" in name]
    job.store.delete(first, precondition=ANY)
    (damage,) = coordinator.audit().damage
    assert (damage.object_name, damage.what) == (first, "is missing")


def test_an_unreadable_manifest_is_damage_and_the_rest_is_reported(job):
    """A truncated manifest: the audit names it, and continues with the other checkpoints."""
    coordinator = job.coordinator()
    for position in (1, 2):
        job.checkpoint(coordinator, position)
    manifest = coordinator.get(2).entry.completed.manifest
    payload = job.store.get(manifest)
    job.store.put(manifest, payload[: len(payload) // 2], precondition=ANY)
    damage = job.coordinator().audit().damage
    assert [each.object_name for each in damage] == [manifest]
    assert damage[0].checkpoint_id == 2


def test_what_waits_is_reported(job):
    """Blocked files and unpublished checkpoints by id; garbage counted without deleting it."""
    coordinator = job.coordinator(reader_grace=timedelta(0))
    dead = coordinator.trigger()
    job.changes(dead)
    coordinator.abort(dead)
    attempt = coordinator.trigger()
    coordinator.record(attempt, [], [job.file(attempt, "out/a", b"x")])
    coordinator.confirm(attempt)
    assert coordinator.audit().uncommitted == (1,)
    job.store.put("out/a", b"foreign", precondition=ABSENT)
    coordinator.compose_commit()
    audit = coordinator.audit()
    assert not audit.in_order
    assert audit.blocked == {1: ("out/a",)}
    assert (audit.garbage.objects, audit.garbage.dry_run) == (1, True)


@pytest.mark.parametrize("checkpoints", [30, 120])
def test_an_audit_reads_each_manifest_once_and_lists_the_rest(checkpoints):
    """About one request for each checkpoint, concurrently, whatever each of them builds on."""
    store = Counted(MemoryObjectStore())
    coordinator = CheckpointCoordinator(
        "orders", store, CheckpointOptions(num_retained=checkpoints, snapshot_interval=9_999)
    )
    past = Past(store, coordinator)
    past.add(checkpoints)
    coordinator.clean_up()
    store.spent()
    assert coordinator.audit().in_order
    assert store.spent() <= checkpoints + 12
    lost = store.list("dstl/orders/attempts/")
    gone = [next(lost).name, next(lost).name]
    for name in gone:
        store.delete(name, precondition=ANY)
    assert sorted(each.object_name for each in coordinator.audit().damage) == gone
