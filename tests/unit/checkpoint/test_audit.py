"""Whether a job is in order."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import FormatError
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import ABSENT, ANY, LocalObjectStore, MemoryObjectStore
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


def test_a_published_file_that_was_cut_is_damage(job):
    """By its length; one that its consumer has taken away is not."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    files = [job.file(attempt, f"out/{name}", b"first", b"second") for name in "ab"]
    coordinator.record(attempt, [], files)
    coordinator.confirm(attempt)
    coordinator.compose_commit()
    job.store.delete("out/a", precondition=ANY)
    assert coordinator.audit().in_order
    job.store.put("out/b", b"first", precondition=ANY)
    (damage,) = coordinator.audit().damage
    assert (damage.object_name, damage.what) == ("out/b", "is published and has 5 bytes, not 11")


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
    assert coordinator.audit().recorded, "step 5 may be on its way, or its record may be lost"
    coordinator.confirm(attempt)
    assert coordinator.audit().uncommitted == (1,)
    assert not coordinator.audit().recorded
    job.store.put("out/a", b"foreign", precondition=ABSENT)
    coordinator.compose_commit()
    audit = coordinator.audit()
    assert not audit.in_order
    assert audit.blocked == {1: ("out/a",)}
    assert (audit.garbage.objects, audit.garbage.dry_run) == (1, True)


@pytest.mark.parametrize("checkpoints", [30, 120])
def test_an_audit_reads_each_manifest_once_and_lists_the_rest(checkpoints):
    """About one request for each checkpoint, and for each list of runs, concurrently."""
    store = Counted(MemoryObjectStore())
    coordinator = CheckpointCoordinator(
        "orders", store, CheckpointOptions(num_retained=checkpoints, snapshot_interval=9_999)
    )
    past = Past(store, coordinator)
    past.add(checkpoints)
    coordinator.clean_up()
    lists = sum(stat.name.endswith("/runs") for stat in store.list("dstl/orders/attempts/"))
    store.spent()
    assert coordinator.audit().in_order
    assert store.spent() <= checkpoints + lists + 24
    gone = [stat.name for stat in store.list("dstl/orders/attempts/") if "/changelog/" in stat.name][:2]
    for name in gone:
        store.delete(name, precondition=ANY)
    assert sorted(each.object_name for each in coordinator.audit().damage) == gone


def changelog_file(job):
    return next(name for name in job.names("dstl/orders/attempts/") if "/changelog/" in name)


@pytest.mark.parametrize("kept", [0, 3])
def test_a_cut_or_emptied_object_is_damage(job, kept):
    """Its length is compared, and nothing is read for it."""
    coordinator = job.coordinator()
    job.checkpoint(coordinator, 1)
    name = changelog_file(job)
    job.store.put(name, job.store.get(name)[:kept], precondition=ANY)
    (damage,) = coordinator.audit().damage
    assert (damage.object_name, damage.what) == (name, f"has {kept} bytes, not 7")


def test_other_bytes_of_the_same_length_are_damage(job):
    """A bucket has the checksum at hand."""
    coordinator = job.coordinator()
    job.checkpoint(coordinator, 1)
    name = changelog_file(job)
    job.store.put(name, b"Changes", precondition=ANY)
    (damage,) = coordinator.audit().damage
    assert damage.what.startswith("has other bytes")


@pytest.mark.parametrize("kept", [0, 3])
def test_a_cut_file_of_a_folder_is_damage(job_on, tmp_path, kept):
    """Also by a process that has not seen it whole."""
    job = job_on(LocalObjectStore(tmp_path / "store", durable=False))
    job.checkpoint(job.coordinator(), 1)
    name = changelog_file(job)
    path = tmp_path / "store" / name
    path.write_bytes(path.read_bytes()[:kept])
    fresh = job_on(LocalObjectStore(tmp_path / "store", durable=False)).coordinator()
    (damage,) = fresh.audit().damage
    assert (damage.object_name, damage.what) == (name, f"has {kept} bytes, not 7")


def test_lost_last_records_are_found(job):
    """Half a backup put back: an older job is not in order, since objects are there that no record names."""
    coordinator = job.coordinator()
    for position in (1, 2):
        job.checkpoint(coordinator, position)
    for name in job.names("dstl/orders/timeline/")[3:]:
        job.store.delete(name, precondition=ANY)
    audit = job.coordinator().audit()
    assert audit.latest == 1
    assert not audit.in_order
    (lost,) = audit.unexplained
    assert str(coordinator.get(2).attempt) in lost


@pytest.mark.parametrize("damaged", [False, True])
def test_a_lost_old_record_is_found(job, damaged):
    """Days run on without it, as a snapshot sums it up; a restore or a clone would not."""
    coordinator = job.coordinator(snapshot_interval=8)
    for position in (1, 2, 3, 4):
        job.checkpoint(coordinator, position)
    assert coordinator.timeline.tail().snapshot_slot
    third = job.names("dstl/orders/timeline/")[2]
    if damaged:
        job.store.put(third, b"x", precondition=ANY)
    else:
        job.store.delete(third, precondition=ANY)
    with pytest.raises(FormatError, match=third if damaged else "slot 3 .* is missing"):
        job.coordinator().audit()


def test_dead_and_open_attempts_are_explained(job):
    """Also those that only the archive knows, and one that opens while the audit runs."""
    coordinator = job.coordinator(snapshot_interval=8)
    for _ in range(12):
        dead = coordinator.trigger()
        job.changes(dead)
        coordinator.abort(dead)
    job.changes(coordinator.trigger())
    assert job.coordinator().audit().unexplained == ()


@pytest.mark.parametrize("saved", [False, True])
def test_damage_that_a_restore_left_behind(job, saved):
    """Nobody goes back to that checkpoint, unless a savepoint keeps it."""
    coordinator = job.coordinator()
    job.checkpoint(coordinator, 1)
    before = set(job.names("dstl/orders/attempts/"))
    job.checkpoint(coordinator, 2)
    (lost,) = (name for name in set(job.names("dstl/orders/attempts/")) - before if "/changelog/" in name)
    if saved:
        coordinator.savepoint(2, "mark")
    job.store.delete(lost, precondition=ANY)
    coordinator.restore(1)
    assert coordinator.audit().in_order != saved
