"""The seven steps: each takes effect once, whichever process runs it and however often."""

from __future__ import annotations

import pytest

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator
from dstl_dagster.errors import ConflictError, FencedError, FormatError, InvalidInputError, NotFoundError
from dstl_dagster.recoverable import FileCommit
from dstl_dagster.storage import ABSENT, ANY, WrapperStore


def test_nothing_is_visible_before_the_commit_point(job):
    """Until step 5 readers see no checkpoint, and until step 6 no file."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    coordinator.record(attempt, [job.changes(attempt)], [job.file(attempt, "out/a", b"x")], {"source": 1})
    assert coordinator.latest() is None
    assert job.store.stat("out/a") is None
    coordinator.confirm(attempt)
    assert coordinator.latest().checkpoint_id == 1
    assert job.store.stat("out/a") is None
    coordinator.compose_commit()
    assert job.store.get("out/a") == b"x"


def test_checkpoint_holds_what_was_recorded(job):
    """State handles, positions and files of a checkpoint are those that were recorded."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger(idempotency_key="day-1")
    changes = job.changes(attempt)
    coordinator.record(attempt, [changes], [job.file(attempt, "out/a", b"x", b"y")], {"source": {"day": 1}})
    checkpoint = coordinator.confirm(attempt)
    assert checkpoint.positions == {"source": {"day": 1}}
    assert checkpoint.idempotency_key == "day-1"
    assert checkpoint.manifest.operators.get("totals").handles == changes.handles
    assert [file.object_name for file in checkpoint.manifest.files] == ["out/a"]
    assert checkpoint.manifest.changes == 1


def test_plain_handles_and_recoverables_are_taken_too(job):
    """Handle lists by operator and bare commit recoverables work as well as reports."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    file = job.file(attempt, "out/a", b"x", b"y")
    coordinator.record(attempt, {"totals": job.changes(attempt).handles}, [file.recoverable], {})
    coordinator.confirm(attempt)
    coordinator.compose_commit(1)
    assert job.store.get("out/a") == b"xy"


def test_state_of_a_later_checkpoint_begins_with_the_earlier_changes(job):
    """Handles are returned oldest first, across checkpoints that did not touch the operator."""
    coordinator = job.coordinator()
    reports = []
    for operator in ("totals", "other", "totals"):
        attempt = coordinator.trigger()
        reports.append(job.changes(attempt, operator))
        coordinator.record(attempt, [reports[-1]])
        coordinator.confirm(attempt)
        coordinator.compose_commit()
    state = coordinator.latest().manifest.operators.get("totals")
    assert state.handles == reports[0].handles + reports[2].handles
    assert coordinator.get(1).manifest.operators.get("other") is None


def test_every_step_may_run_again(job):
    """Record, confirm and compose-commit run twice leave the timeline and the objects as they were."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    report = ([job.changes(attempt)], [job.file(attempt, "out/a", b"x")], {"source": 1})
    coordinator.record(attempt, *report)
    coordinator.record(attempt, *report)
    coordinator.confirm(attempt)
    job.coordinator("somebody else").confirm(attempt)
    coordinator.compose_commit(1)
    before = [(stat.name, stat.generation) for stat in job.store.list()]
    job.coordinator("somebody else").compose_commit(1)
    assert [(stat.name, stat.generation) for stat in job.store.list()] == before
    kinds = [record.kind for record in coordinator.timeline.records()]
    assert kinds == ["opened", "completed", "committed"]


def test_a_file_taken_away_does_not_come_back(job):
    """After a consumer moved a published file away, repeating step 6 does not publish it again."""
    coordinator = job.coordinator()
    job.checkpoint(coordinator, 1)
    job.store.delete("out/1.txt", precondition=ANY)
    coordinator.compose_commit(1)
    assert job.store.stat("out/1.txt") is None


@pytest.mark.parametrize("parts", [(), (b"x",)], ids=["empty", "one part"])
def test_a_twin_of_step_6_that_comes_late_brings_nothing_back(job, parts):
    """A consumer took the file between the twin's look at the timeline and its write; an empty file too."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    coordinator.record(attempt, [], [job.file(attempt, "out/a", *parts)])
    coordinator.confirm(attempt)

    class Late(WrapperStore):
        def compose(self, sources, target, **how):
            coordinator.compose_commit(1)
            job.store.delete(target, precondition=ANY)
            return super().compose(sources, target, **how)

    CheckpointCoordinator(coordinator.job, Late(job.store), owner="twin").compose_commit(1)
    assert job.store.stat("out/a") is None
    assert [stat.name for stat in job.store.list("out/")] == []
    # The name is free for whoever writes it next.
    later = coordinator.trigger()
    coordinator.record(later, [], [job.file(later, "out/a", b"next")])
    coordinator.confirm(later)
    coordinator.compose_commit(2)
    assert job.store.get("out/a") == b"next"


def test_an_empty_file_has_a_component_of_its_attempt(job):
    """Step 4 makes it, once however often it runs; so the empty files of two attempts are told apart."""
    coordinator = job.coordinator()
    made = []
    for _ in range(2):
        attempt = coordinator.trigger(take_over=True)
        empty = job.file(attempt, "out/a")
        assert empty.components == ()
        for files in ([empty], [empty]):
            (file,) = coordinator.record(attempt, [], files).files
            made.append(file)
    assert len({file.components for file in made}) == 2
    first, second = made[0], made[-1]
    assert job.names(".inprogress/") == sorted(
        component.object_name for file in (first, second) for component in file.components
    )
    coordinator.confirm(attempt)
    coordinator.compose_commit()
    assert job.store.get("out/a") == b""
    # The dead attempt's files go, late as its retraction may come; the other's stays.
    assert not FileCommit(job.store, first.recoverable, first.components).retract()
    assert [*job.names(".inprogress/"), *job.names("out/")] == ["out/a"]


def test_a_second_attempt_is_refused_while_one_is_open(job):
    """Only one attempt is open at a time; the refusal names its owner and what to do."""
    job.coordinator("first").trigger()
    with pytest.raises(ConflictError, match=r"'first'.*take_over=True") as refused:
        job.coordinator("second").trigger()
    assert refused.value.kind == "attempt_open"


def test_a_take_over_ends_the_other_attempt(job):
    """After a take-over the old attempt cannot record or confirm, and leaves nothing visible."""
    old = job.coordinator("old")
    zombie = old.trigger()
    old.record(zombie, [job.changes(zombie)], [job.file(zombie, "out/a", b"zombie")])
    fresh = job.coordinator("new")
    attempt = fresh.trigger(take_over=True)
    for step in (lambda: old.record(zombie), lambda: old.confirm(zombie)):
        with pytest.raises(FencedError, match="taken over by 'new'"):
            step()
    fresh.record(attempt, [], [job.file(attempt, "out/a", b"new")])
    fresh.confirm(attempt)
    fresh.compose_commit()
    assert job.store.get("out/a") == b"new"


def test_an_owner_may_end_its_own_attempt(job):
    """An owner that crashed and came back opens a new attempt without asking to take over."""
    first = job.coordinator("run-1").trigger()
    second = job.coordinator("run-1").trigger()
    assert (second.checkpoint_id, second.parent) == (first.checkpoint_id, None)
    assert second.attempt != first.attempt


def test_an_aborted_attempt_cannot_confirm(job):
    """An abort wins over a later confirm, and a confirm over a later abort."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    coordinator.record(attempt)
    coordinator.abort(attempt, "changed my mind")
    coordinator.abort(attempt)
    with pytest.raises(FencedError, match="changed my mind"):
        coordinator.confirm(attempt)
    other = coordinator.trigger()
    coordinator.record(other)
    coordinator.confirm(other)
    with pytest.raises(ConflictError) as refused:
        coordinator.abort(other)
    assert refused.value.kind == "already_completed"


def test_a_batch_is_applied_once(job):
    """A key that a completed checkpoint holds is refused, naming that checkpoint."""
    coordinator = job.coordinator()
    job.checkpoint(coordinator, 1, key="2013-01-01")
    assert coordinator.applied("2013-01-01") == 1
    with pytest.raises(ConflictError, match="already in checkpoint 1") as refused:
        coordinator.trigger(idempotency_key="2013-01-01")
    assert refused.value.kind == "already_applied"


def test_trigger_publishes_what_an_earlier_checkpoint_left(job):
    """A job killed between steps 5 and 6 has its files rolled forward by the next trigger."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    coordinator.record(attempt, [], [job.file(attempt, "out/a", b"x")])
    coordinator.confirm(attempt)
    job.coordinator("next").trigger()
    assert job.store.get("out/a") == b"x"


def test_trigger_can_be_pinned_to_a_parent(job):
    """If what was checked before the trigger no longer holds, the attempt does not open."""
    coordinator = job.coordinator()
    job.checkpoint(coordinator, 1)
    with pytest.raises(ConflictError) as refused:
        coordinator.trigger(expected_parent=None)
    assert refused.value.kind == "moved"
    assert coordinator.trigger(expected_parent=1).parent == 1


def test_a_missing_changelog_file_stops_step_4(job):
    """A report that names a missing object produces no manifest."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    report = job.changes(attempt)
    job.store.delete(report.handles[0].handles_and_offsets[0][0].name, precondition=ANY)
    with pytest.raises(NotFoundError, match="is missing"):
        coordinator.record(attempt, [report])
    with pytest.raises(NotFoundError, match="never recorded"):
        coordinator.confirm(attempt)


def test_an_overwritten_object_stops_step_4(job):
    """An object whose bytes differ from what the task reported is not recorded."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    report = job.changes(attempt)
    job.store.put(report.handles[0].handles_and_offsets[0][0].name, b"foreign", precondition=ANY)
    with pytest.raises(ConflictError, match="another writer replaced it"):
        coordinator.record(attempt, [report])


def test_an_existing_target_stops_step_4(job):
    """A final name that is taken is detected before the commit point, with what to do, in Dagster too."""
    coordinator = job.coordinator()
    job.store.put("out/a", b"foreign", precondition=ABSENT)
    attempt = coordinator.trigger()
    with pytest.raises(ConflictError, match=r"already exists.* move it away .*re-execute"):
        coordinator.record(attempt, [], [job.file(attempt, "out/a", b"x")])


def test_a_foreign_object_blocks_one_file_and_no_other(job):
    """A target taken after step 4 is left alone and listed; the other files are published."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    coordinator.record(attempt, [], [job.file(attempt, "out/a", b"x"), job.file(attempt, "out/b", b"y")])
    job.store.put("out/a", b"foreign", precondition=ABSENT)
    coordinator.confirm(attempt)
    (checkpoint,) = coordinator.compose_commit()
    assert [file.name for file in checkpoint.blocked] == ["out/a"]
    assert job.store.get("out/a") == b"foreign"
    assert job.store.get("out/b") == b"y"


def test_an_operator_keeps_its_keys(job):
    """Key columns and the number of key groups are frozen when the operator first writes."""
    coordinator = job.coordinator()
    job.checkpoint(coordinator, 1)
    attempt = coordinator.trigger()
    report = job.changes(attempt)
    changed = type(report)(report.operator, report.handles, ("other",), 128)
    with pytest.raises(InvalidInputError, match="frozen"):
        coordinator.record(attempt, [changed])


def test_an_attempt_of_another_job_is_unknown(job):
    """A reference that belongs to another job or store is refused by name."""
    stranger = Attempt(1, job.coordinator().trigger().attempt, None, job="other")
    with pytest.raises(NotFoundError, match="wrong job or wrong store"):
        job.coordinator().abort(type(stranger)(1, type(stranger.attempt)(int=7), None, job="orders"))


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "x" * 101, "\u00e9", ".hidden"])
def test_odd_job_names_are_refused(job, name):
    """A job's name cannot escape its folder or be hidden."""
    from dstl_dagster.checkpoint import CheckpointCoordinator

    with pytest.raises(InvalidInputError, match="cannot be used"):
        CheckpointCoordinator(name, job.store)


def test_a_corrupt_manifest_is_named(job):
    """A flipped bit in a manifest is a FormatError that names the object, never wrong content."""
    coordinator = job.coordinator()
    job.checkpoint(coordinator, 1)
    name = coordinator.latest().entry.completed.manifest
    payload = bytearray(job.store.get(name))
    payload[-5] ^= 1
    job.store.put(name, payload, precondition=ANY)
    with pytest.raises(FormatError, match=name):
        coordinator.latest()
