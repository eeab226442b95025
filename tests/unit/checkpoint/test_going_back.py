"""Restore and savepoints: what is kept, what is abandoned, and whose files are retracted."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from dstl_dagster.checkpoint.steps import unfinished
from dstl_dagster.errors import ConflictError, FencedError, FormatError, InvalidInputError, NotFoundError
from dstl_dagster.storage import ABSENT, ANY
from dstl_dagster.timeline import Opened, Restored, Subsumed

_NO_GRACE = timedelta(0)


def outputs(job) -> list[str]:
    return job.names("out/")


def test_a_restore_resumes_from_an_earlier_checkpoint(job):
    """State and positions are those of the checkpoint, and the next one gets a new id on top of it."""
    coordinator = job.coordinator()
    for position in (1, 2, 3):
        job.checkpoint(coordinator, position)
    restored = coordinator.restore(1)
    assert (restored.checkpoint_id, restored.positions) == (1, {"source": 1})
    assert coordinator.latest().checkpoint_id == 1
    attempt = coordinator.trigger()
    assert (attempt.checkpoint_id, attempt.parent) == (4, 1)


def test_files_of_later_checkpoints_are_retracted(job):
    """Published files of abandoned checkpoints are deleted; those of the kept chain stay."""
    coordinator = job.coordinator()
    for position in (1, 2, 3):
        job.checkpoint(coordinator, position)
    coordinator.restore(1)
    assert outputs(job) == ["out/1.txt"]
    assert [each.checkpoint_id for each in coordinator.list()] == [1]


def test_a_plan_is_what_a_restore_undoes(job):
    """Which checkpoints, batches and files go, what is read, who is ended; nothing is changed by asking."""
    coordinator = job.coordinator()
    for position in (1, 2, 3):
        job.checkpoint(coordinator, position)
    opened = coordinator.trigger()
    before = job.names("")
    plan = job.coordinator().plan_restore(1)
    assert (plan.checkpoint_id, plan.last) == (1, 3)
    assert [each.checkpoint_id for each in plan.left_behind] == [2, 3]
    assert [file.name for file in plan.files] == ["out/2.txt", "out/3.txt"]
    gone = [coordinator.get(number).manifest for number in (2, 3)]
    assert plan.state_bytes == sum(manifest.state_bytes for manifest in gone)
    assert plan.file_bytes == sum(manifest.file_bytes for manifest in gone)
    assert plan.positions == {"source": 1}
    assert plan.open_attempt is not None
    assert plan.open_attempt.attempt == opened.attempt
    assert plan.read_objects == 1
    assert job.names("") == before


def test_a_plan_leaves_out_what_went_before(job):
    """A restore in between abandoned some: the next one does not undo them again."""
    coordinator = job.coordinator()
    for position in (1, 2, 3):
        job.checkpoint(coordinator, position)
    coordinator.restore(2)
    job.checkpoint(coordinator, 3)
    assert [each.checkpoint_id for each in coordinator.plan_restore(1).left_behind] == [2, 4]
    coordinator.restore(1)
    *_, restored = (record for record in coordinator.timeline.records() if record.kind == "restored")
    assert [each.checkpoint_id for each in coordinator.left_behind(restored)] == [2, 4]
    with pytest.raises(ConflictError, match="abandoned"):
        coordinator.plan_restore(2)


def test_a_restore_that_was_confirmed_undoes_nothing_else(job):
    """Another checkpoint completed since the person looked: refused; a repeated request is still answered."""
    coordinator, request = job.coordinator(), uuid.uuid4()
    for position in (1, 2, 3):
        job.checkpoint(coordinator, position)
    with pytest.raises(ConflictError, match="last checkpoint is now 3") as caught:
        coordinator.restore(1, expected_last=2)
    assert caught.value.kind == "moved"
    coordinator.restore(1, request_id=request, expected_last=3)
    coordinator.restore(1, request_id=request, expected_last=3)
    assert [record.kind for record in coordinator.timeline.records()].count("restored") == 1


def test_a_half_deleted_checkpoint_is_subsumed_and_not_damaged(job):
    """A killed clean-up leaves a manifest whose changelog files are gone: the restore reports why."""
    coordinator = job.coordinator()
    for position in (1, 2):
        job.checkpoint(coordinator, position)
    coordinator.timeline.append(Subsumed(checkpoint_ids=(1,)))
    (name,) = (name for name in job.names("dstl/") if "/changelog/" in name and _written_by(job, 1) in name)
    job.store.delete(name, precondition=ANY)
    with pytest.raises(NotFoundError, match="subsumed in slot") as caught:
        job.coordinator().restore(1)
    assert caught.value.kind == "checkpoint_gone"


def _written_by(job, checkpoint_id: int) -> str:
    entry = job.coordinator().timeline.tail().checkpoints[checkpoint_id]
    return str(entry.completed.attempt)


def test_a_file_that_was_replaced_is_not_retracted(job):
    """Only an object that carries the checkpoint's own fingerprint is deleted."""
    coordinator = job.coordinator()
    for position in (1, 2):
        job.checkpoint(coordinator, position)
    job.store.put("out/2.txt", b"a person's", precondition=ANY)
    coordinator.restore(1)
    assert job.store.get("out/2.txt") == b"a person's"


def test_an_abandoned_checkpoint_is_never_published(job):
    """A checkpoint abandoned between steps 5 and 6 loses its components, and is never committed."""
    coordinator = job.coordinator()
    job.checkpoint(coordinator, 1)
    attempt = coordinator.trigger()
    coordinator.record(attempt, [], [job.file(attempt, "out/2.txt", b"x", b"y")])
    coordinator.confirm(attempt)
    coordinator.restore(1)
    assert outputs(job) == ["out/1.txt"]
    assert job.names(".inprogress/") == []
    with pytest.raises(ConflictError) as refused:
        coordinator.compose_commit(2)
    assert refused.value.kind == "abandoned"
    with pytest.raises(FencedError):
        coordinator.confirm(attempt)


def test_a_clean_up_passes_damage_that_was_left_behind(job):
    """Also of the oldest checkpoint left but for the savepoint, whose manifest says what all need."""
    coordinator = job.coordinator(num_retained=2, reader_grace=_NO_GRACE)
    job.checkpoint(coordinator, 1)
    coordinator.savepoint(1, "before")
    for position in (2, 3, 4):
        job.checkpoint(coordinator, position)
        coordinator.clean_up()
    oldest = coordinator.timeline.tail().checkpoints[3].completed.manifest
    job.store.put(oldest, b"not a manifest", precondition=ANY)
    with pytest.raises(FormatError, match="Nothing more is deleted"):
        coordinator.clean_up()
    coordinator.restore(1)
    coordinator.clean_up()
    assert coordinator.audit().garbage is not None
    for position in (2, 3):
        job.checkpoint(coordinator, position)
        coordinator.clean_up()
    assert oldest not in job.names("dstl/")
    assert coordinator.audit().in_order


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("damage", [None, b"", b"not a manifest"])
def test_a_restore_leaves_a_damaged_manifest_behind(job, damage, published):
    """Planned, done, and nothing of it left, though only its record can be read; the job goes on."""
    coordinator = job.coordinator()
    for position in (1, 2):
        job.checkpoint(coordinator, position)
    attempt = coordinator.trigger(idempotency_key="third")
    coordinator.record(attempt, [], [job.file(attempt, "out/3.txt", b"x", b"y")])
    coordinator.confirm(attempt)
    if published:
        coordinator.compose_commit()
    manifest = coordinator.timeline.tail().checkpoints[3].completed.manifest
    if damage is None:
        job.store.delete(manifest, precondition=ANY)
    else:
        job.store.put(manifest, damage, precondition=ANY)
    coordinator = job.coordinator(reader_grace=_NO_GRACE)
    plan = coordinator.plan_restore(2)
    assert (plan.batches, [file.name for file in plan.files], plan.manifests) == (
        ("third",),
        ["out/3.txt"],
        {},
    )
    coordinator.restore(2)
    assert outputs(job) == ["out/1.txt", "out/2.txt"]
    assert job.names(".inprogress/") == []
    coordinator.clean_up()
    job.checkpoint(coordinator, 3)
    coordinator.clean_up()
    assert coordinator.audit().in_order
    assert outputs(job) == ["out/1.txt", "out/2.txt", "out/3.txt"]
    assert manifest not in job.names("dstl/")


def test_files_of_cleaned_up_checkpoints_are_retracted_too(job):
    """A savepoint outlives later checkpoints: their manifests are gone; records still name their files."""
    coordinator = job.coordinator(num_retained=1, reader_grace=_NO_GRACE)
    job.checkpoint(coordinator, 1)
    coordinator.savepoint(1, "before")
    for position in (2, 3, 4):
        attempt = coordinator.trigger()
        coordinator.record(attempt, [], [job.file(attempt, f"out/{position}.txt", b"x")])
        coordinator.confirm(attempt)
        coordinator.compose_commit()
        coordinator.clean_up()
    assert len(job.names("dstl/orders/manifests/")) == 2
    coordinator.restore(1)
    assert outputs(job) == ["out/1.txt"]


def test_a_restore_ends_the_open_attempt(job):
    """Whoever owns it: it can no longer record or confirm."""
    coordinator, rival = job.coordinator(), job.coordinator("rival")
    job.checkpoint(coordinator, 1)
    attempt = rival.trigger()
    rival.record(attempt)
    coordinator.restore(1)
    with pytest.raises(FencedError, match="ended by a restore"):
        rival.confirm(attempt)


def test_abandoned_batches_may_be_applied_again(job):
    """An idempotency key counts on the current chain only, even after it was applied twice."""
    coordinator = job.coordinator()
    for position in (1, 2):
        job.checkpoint(coordinator, position, key=f"batch-{position}")
    coordinator.restore(1)
    assert coordinator.applied("batch-1") == 1
    assert coordinator.applied("batch-2") is None
    job.checkpoint(coordinator, 2, key="batch-2")
    assert coordinator.applied("batch-2") == 3
    coordinator.restore(1)
    assert coordinator.applied("batch-2") is None


def test_a_repeated_restore_happens_once(job):
    """With the caller's request id, a retried step does not discard checkpoints completed since."""
    coordinator = job.coordinator()
    for position in (1, 2):
        job.checkpoint(coordinator, position)
    request = uuid.uuid4()
    coordinator.restore(1, request_id=request)
    job.checkpoint(coordinator, 3)
    job.coordinator().restore(1, request_id=request)
    assert coordinator.latest().checkpoint_id == 3
    assert [record.kind for record in coordinator.timeline.records()].count("restored") == 1


def test_a_restore_killed_before_its_retraction_is_finished_by_the_next_trigger(job, monkeypatch):
    """The record is written first; the next trigger retracts the files before it opens anything."""
    coordinator = job.coordinator()
    for position in (1, 2):
        job.checkpoint(coordinator, position)
    with monkeypatch.context() as broken:
        broken.setattr(unfinished, "_abandoned", _killed)
        with pytest.raises(KeyboardInterrupt):
            coordinator.restore(1)
    assert outputs(job) == ["out/1.txt", "out/2.txt"]
    other = job.coordinator("other")
    other.trigger()
    assert outputs(job) == ["out/1.txt"]
    kinds = [type(record) for record in other.timeline.records()][-2:]
    assert kinds == [Restored, Opened]


def test_an_abandoned_checkpoint_cannot_be_restored_to(job):
    """The job does not return to an abandoned branch, whose files are gone."""
    coordinator = job.coordinator()
    for position in (1, 2):
        job.checkpoint(coordinator, position)
    coordinator.savepoint(2, "wrong-turn")
    coordinator.restore(1)
    assert coordinator.get(2).abandoned
    with pytest.raises(ConflictError) as refused:
        coordinator.restore(2)
    assert refused.value.kind == "abandoned"


def test_a_savepoint_on_an_abandoned_branch_stays_readable(job):
    """Clean-up subsumes abandoned checkpoints at once, but not those that a savepoint keeps."""
    coordinator = job.coordinator(reader_grace=_NO_GRACE)
    for position in (1, 2, 3):
        job.checkpoint(coordinator, position)
    coordinator.savepoint(2, "wrong-turn")
    coordinator.restore(1)
    job.checkpoint(coordinator, 4)
    assert coordinator.clean_up().subsumed == (3,)
    state = coordinator.get(2).manifest.operators.get("totals")
    assert all(
        job.store.stat(stream.name) for handle in state.handles for stream, _ in handle.handles_and_offsets
    )
    assert coordinator.release("wrong-turn")
    assert coordinator.clean_up().subsumed == (2,)
    assert len(job.names("dstl/orders/manifests/")) == 2


def test_retention_skips_savepoints(job):
    """A checkpoint that a savepoint keeps is not subsumed and loses no files."""
    coordinator = job.coordinator(num_retained=1, reader_grace=_NO_GRACE)
    job.checkpoint(coordinator, 1)
    kept = coordinator.savepoint(1, "release-1")
    assert kept.savepoints == ("release-1",)
    for position in (2, 3):
        job.checkpoint(coordinator, position)
    assert coordinator.clean_up().subsumed == (2,)
    assert [each.checkpoint_id for each in coordinator.list()] == [1, 3]
    assert coordinator.release("release-1")
    assert not coordinator.release("release-1")
    assert coordinator.clean_up().subsumed == (1,)


def test_a_savepoint_name_keeps_one_checkpoint(job):
    """A repeat changes nothing; another checkpoint under the same name is refused; names are validated."""
    coordinator = job.coordinator()
    for position in (1, 2):
        job.checkpoint(coordinator, position)
    coordinator.savepoint(1, "mark")
    slot = coordinator.timeline.tail().slot
    coordinator.savepoint(1, "mark")
    assert coordinator.timeline.tail().slot == slot
    with pytest.raises(ConflictError) as refused:
        coordinator.savepoint(2, "mark")
    assert refused.value.kind == "conflict"
    with pytest.raises(InvalidInputError):
        coordinator.savepoint(2, "../mark")


def test_a_savepoint_cannot_keep_a_subsumed_checkpoint(job):
    """After `subsumed`, objects may be gone: the savepoint is refused."""
    coordinator = job.coordinator(num_retained=1)
    for position in (1, 2):
        job.checkpoint(coordinator, position)
    coordinator.clean_up()
    with pytest.raises(NotFoundError) as gone:
        coordinator.savepoint(1, "too-late")
    assert gone.value.kind == "checkpoint_gone"
    with pytest.raises(NotFoundError) as never:
        coordinator.savepoint(7, "too-early")
    assert never.value.kind == "no_checkpoint"


def blocked(job, coordinator):
    """A checkpoint with two files, one of which a foreign object blocks."""
    attempt = coordinator.trigger()
    files = [job.file(attempt, f"out/{name}", b"our ", name.encode()) for name in "ab"]
    coordinator.record(attempt, [], files)
    coordinator.confirm(attempt)
    job.store.put("out/a", b"foreign", precondition=ABSENT)
    (checkpoint,) = coordinator.compose_commit()
    assert [file.name for file in checkpoint.blocked] == ["out/a"]
    assert job.store.get("out/b") == b"our b"
    return checkpoint


@pytest.mark.parametrize(("resolution", "left"), [("keep", b"foreign"), ("replace", b"our a")])
def test_a_blocked_file_is_resolved(job, resolution, left):
    """Keep: the foreign object stays and ours is discarded. Replace: ours is published. Nothing is left."""
    coordinator = job.coordinator()
    blocked(job, coordinator)
    checkpoint = coordinator.resolve(1, "out/a", resolution)
    assert checkpoint.blocked == ()
    assert job.store.get("out/a") == left
    assert ("out/a" in checkpoint.entry.committed.published) == (resolution == "replace")
    assert job.names(".inprogress/") == []


def test_only_the_object_that_blocked_the_file_is_replaced(job):
    """Another foreign object in its place, written after step 6 ran: blocked again, nothing deleted."""
    coordinator = job.coordinator()
    blocked(job, coordinator)
    job.store.put("out/a", b"newer", precondition=ANY)
    checkpoint = coordinator.resolve(1, "out/a", "replace")
    assert [file.name for file in checkpoint.blocked] == ["out/a"]
    assert job.store.get("out/a") == b"newer"
    assert coordinator.resolve(1, "out/a", "replace").blocked == ()
    assert job.store.get("out/a") == b"our a"


def test_a_resolution_killed_half_way_is_finished_by_the_next_trigger(job, monkeypatch):
    """The `resolved` record is written first; trigger carries it out before it opens an attempt."""
    coordinator = job.coordinator()
    blocked(job, coordinator)
    with monkeypatch.context() as broken:
        broken.setattr("dstl_dagster.checkpoint.steps.compose_commit._finish_resolutions", _killed)
        with pytest.raises(KeyboardInterrupt):
            coordinator.resolve(1, "out/a", "replace")
    assert job.store.get("out/a") == b"foreign"
    job.coordinator("other").trigger()
    assert job.store.get("out/a") == b"our a"


def test_resolving_a_file_that_is_not_blocked_is_refused(job):
    """The error lists the blocked files; an unknown resolution is refused too."""
    coordinator = job.coordinator()
    blocked(job, coordinator)
    with pytest.raises(NotFoundError, match="out/a"):
        coordinator.resolve(1, "out/b", "keep")
    with pytest.raises(InvalidInputError, match="keep or replace"):
        coordinator.resolve(1, "out/a", "delete")


def test_a_blocked_checkpoint_is_not_subsumed(job):
    """Its components are the only copy of the blocked file; once resolved it is subsumed like any other."""
    coordinator = job.coordinator(num_retained=1, reader_grace=_NO_GRACE)
    blocked(job, coordinator)
    job.checkpoint(coordinator, 2)
    assert coordinator.clean_up().subsumed == ()
    coordinator.resolve(1, "out/a", "keep")
    assert coordinator.clean_up().subsumed == (1,)


def _killed(*_arguments, **_options):
    raise KeyboardInterrupt
