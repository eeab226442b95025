"""The simulation can fail: protocols whose decisions lack one rule are caught.

Each variant replaces one piece of the protocol by a wrong one, for one test; the product has no switches for
this. Its replay is a scripted history, one of its points or duels, or `rivals <seed>`. The replay ends well
with the protocol as it is, and wrong with the variant.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.checkpoint.job import Job
from dstl_dagster.checkpoint.steps import compose_commit, trigger
from dstl_dagster.errors import ConflictError
from dstl_dagster.recoverable import commit
from dstl_dagster.storage import ANY
from dstl_dagster.timeline import (
    Aborted,
    Completed,
    Opened,
    Savepoint,
    Snapshot,
    Subsumed,
    Timeline,
    TimelineView,
    decisions,
)
from dstl_dagster.timeline.archive import Archive
from dstl_dagster.timeline.record_codec import view_to_plain
from dstl_dagster.timeline.tail import TailReader
from tests.simulated.campaign import replayed

Variant = Callable[[pytest.MonkeyPatch], None]
VARIANTS: dict[str, tuple[Variant, str, str]] = {}


def caught_by(replay: str, why: str) -> Callable[[Variant], Variant]:
    """Register a variant, the replay that catches it, and a part of what the replay then reports."""

    def add(variant: Variant) -> Variant:
        VARIANTS[variant.__name__.replace("_", " ")] = (variant, replay, why)
        return variant

    return add


# -- the race for a slot


def _decide_once(kind: type) -> Callable[..., Any]:
    """`Timeline.decide` that, for records of this kind, does not evaluate its rule again after a 412."""
    original = Timeline.decide

    def decide(
        self: Timeline,
        rule: Callable[[TimelineView], Any],
        *,
        request_id: uuid.UUID | None = None,
        from_seen: bool = False,
        note: Any = None,
    ) -> Any:
        view = self.seen() if from_seen else self.tail()
        record = None if request_id is not None and view.answer(request_id) is not None else rule(view)
        if not isinstance(record, kind):
            return original(
                self, lambda view: rule(view), request_id=request_id, from_seen=from_seen, note=note
            )
        record = dataclasses.replace(record, decision_id=request_id or self._new_id())
        while True:
            try:
                return self.append(record)
            except ConflictError:
                self.tail()

    return decide


@caught_by("restore:11:2:pause", "(completed): the attempt is not the open one")
def confirm_does_not_decide_again_after_412(monkeypatch):
    monkeypatch.setattr(Timeline, "decide", _decide_once(Completed))


@caught_by("base:1:4:pause", "(opened): the highest id is 2")
def trigger_does_not_decide_again_after_412(monkeypatch):
    monkeypatch.setattr(Timeline, "decide", _decide_once(Opened))


@caught_by("savepoint and clean up:9:3:1:1", "(savepoint): keeps a checkpoint that is subsumed")
def savepoint_does_not_contend(monkeypatch):
    monkeypatch.setattr(Timeline, "decide", _decide_once(Savepoint))


@caught_by("bucket:17:4:pause", "(subsumed): 3 is not kept")
def clean_up_does_not_decide_again_after_412(monkeypatch):
    monkeypatch.setattr(Timeline, "decide", _decide_once(Subsumed))


# -- owner


@caught_by("take-over", "(opened): another attempt is open")
def take_over_without_fence(monkeypatch):
    original = decisions.to_open
    monkeypatch.setattr(decisions, "to_fence", lambda view, owner, take_over: None)
    monkeypatch.setattr(
        decisions,
        "to_open",
        lambda view, **said: original(dataclasses.replace(view, open_attempt=None), **said),
    )


@caught_by("take-over:0:4:crash_before", "cannot be done: checkpoint 1 is being made by attempt")
def owner_may_not_fence_its_own_attempt(monkeypatch):
    original = decisions.to_fence
    monkeypatch.setattr(decisions, "to_fence", lambda view, owner, take_over: original(view, "", take_over))


@caught_by("blocked-replace:7:25:pause", "(completed): the attempt is not the open one")
def fenced_attempt_completes(monkeypatch):
    def to_complete(view: TimelineView, attempt: Any, *, files: Any, **said: Any) -> Any:
        if view.completed_by(attempt.attempt, attempt.checkpoint_id) is not None:
            return None
        return Completed(
            attempt=attempt.attempt, checkpoint_id=attempt.checkpoint_id, parent=attempt.parent,
            files=tuple(files), batch=attempt.batch, **said,
        )  # fmt: skip

    monkeypatch.setattr(decisions, "to_complete", to_complete)


@caught_by("confirm and abort", "(aborted): the attempt is not the open one")
def abort_trusts_a_raised_error(monkeypatch):
    def to_abort(view: TimelineView, attempt: Any, reason: str) -> Any:
        if view.fate(attempt.attempt) is not None:
            return None
        return Aborted(attempt=attempt.attempt, checkpoint_id=attempt.checkpoint_id, reason=reason)

    monkeypatch.setattr(decisions, "to_abort", to_abort)


@caught_by("ops:5:3:long_pause", "(opened): the batch is applied")
def batch_is_applied_again(monkeypatch):
    original = CheckpointCoordinator.trigger

    def trigger(self: CheckpointCoordinator, take_over: bool = False, **said: Any) -> Any:
        said.pop("expected_parent", None)  # the callers' own guard
        return original(self, take_over, **said)

    monkeypatch.setattr(CheckpointCoordinator, "trigger", trigger)
    monkeypatch.setattr(decisions, "refuse_applied", lambda view, key: None)


# -- blocked


@caught_by("blocked-keep", "checkpoint 2 of job 'sim' was deleted")
def blocked_checkpoint_is_subsumed(monkeypatch):
    original = decisions.to_subsume

    def to_subsume(view: TimelineView, keep: int, _: Any = None) -> Any:
        unblocked = {
            each: dataclasses.replace(
                entry,
                resolved=(),
                committed=None
                if entry.committed is None
                else dataclasses.replace(entry.committed, blocked=()),
            )
            for each, entry in view.checkpoints.items()
        }
        return original(dataclasses.replace(view, checkpoints=unblocked), keep)

    monkeypatch.setattr(decisions, "to_subsume", to_subsume)


@caught_by("blocked-replace", "was deleted without a resolution")
def foreign_object_is_touched_before_resolved(monkeypatch):
    original = CheckpointCoordinator.resolve

    def resolve_(self: CheckpointCoordinator, checkpoint_id: int, name: str, word: str, **how: Any) -> Any:
        if word == "replace":
            self.store.delete(name, precondition=ANY)
        return original(self, checkpoint_id, name, word, **how)

    monkeypatch.setattr(CheckpointCoordinator, "resolve", resolve_)


@caught_by("blocked-replace:8:4:pause", "out/1/b of checkpoint 1 is None")
def replace_deletes_whatever_is_there(monkeypatch):
    monkeypatch.setattr(compose_commit, "Generation", lambda generation: ANY)


@caught_by("resolve and restore:10:6:0:1", "(restored): resolutions of [1] are unfinished")
def unfinished_resolution_stops_nothing(monkeypatch):
    monkeypatch.setattr(decisions, "refuse_unresolved", lambda view: None)
    monkeypatch.setattr(TimelineView, "unfinished_resolutions", property(lambda view: []))


# -- restore


@caught_by("blocked-restore", "of an abandoned checkpoint is still there")
def restore_leaves_the_sources_of_later_checkpoints(monkeypatch):
    monkeypatch.setattr(commit.FileCommit, "retract", lambda self: self._delete_final())


@caught_by("compose-commit and append after a restore:7:5:23:1", "of an abandoned checkpoint is still there")
def restore_retracts_finals_before_sources(monkeypatch):
    def retract(self: Any) -> bool:
        deleted = self._delete_final()
        self.discard()
        return bool(deleted)

    monkeypatch.setattr(commit.FileCommit, "retract", retract)


@caught_by("blocked-restore", "was deleted without a resolution")
def restore_retracts_a_foreign_object(monkeypatch):
    monkeypatch.setattr(commit.FileCommit, "_delete_final", lambda self: _delete_any_final(self))


def _delete_any_final(running: Any) -> bool:
    return bool(running._final_store.delete(running._final_name, precondition=ANY))


@caught_by("compose-commit and append after a restore:7:16:29:1", "already exists")
def trigger_does_not_repeat_the_retraction(monkeypatch):
    def finish(job: Job) -> int:
        compose_commit.compose_commit(job, None, None, None)
        return max((each.restored_slot for each in job.timeline.tail().retractions), default=0)

    monkeypatch.setattr(trigger, "finish", finish)


@caught_by("restore and restore:3:9:40:1", "restores to a checkpoint that is not retained")
def restore_goes_to_an_abandoned_branch(monkeypatch):
    monkeypatch.setattr(decisions, "refuse_abandoned", lambda view, checkpoint_id, what: None)


@caught_by("restore-twice", "is not retracted yet")
def abandoned_is_subsumed_before_it_is_retracted(monkeypatch):
    original = decisions.to_subsume
    monkeypatch.setattr(
        decisions,
        "to_subsume",
        lambda view, keep, _=None: original(dataclasses.replace(view, retractions=()), keep),
    )


# -- snapshots


@caught_by("anew", "is what readers see")
def what_readers_see_is_subsumed(monkeypatch):
    monkeypatch.setattr(TimelineView, "shown_id", property(lambda view: view.last_completed_id))


@caught_by("ops", "batch 3 is in no checkpoint")
def snapshot_drops_a_batch(monkeypatch):
    original = Archive._documents

    def documents(self: Archive, view: TimelineView) -> Iterator[Any]:
        return original(self, dataclasses.replace(view, keys={}))

    monkeypatch.setattr(Archive, "_documents", documents)


@caught_by("ops", "is in no archive")
def snapshot_before_the_archive(monkeypatch):
    def add(self: Timeline, appended: Any) -> None:
        view = self.seen()
        if view.slot - view.snapshot_slot < self._snapshot_interval:
            return
        snapshot = self.append(Snapshot(view=view_to_plain(view, self._still_readable(view))))
        self._archive.write(view)
        self._tail_reader.write_hint(snapshot.slot)

    monkeypatch.setattr(Timeline, "_add_snapshot_if_due", add)


@caught_by("ops", "is not on the timeline")
def reader_trusts_the_hint(monkeypatch):
    original = TailReader.records

    def records(self: TailReader, begin: Any = None) -> Any:
        hinted = begin if begin is not None and begin.slot else self._hinted()
        if not hinted:
            return original(self)
        self.names = dataclasses.replace(self.names, timeline=hinted.timeline)
        return [self.read(hinted.slot)]

    monkeypatch.setattr(TailReader, "records", records)


@pytest.mark.parametrize("replay", sorted({replay for _variant, replay, _why in VARIANTS.values()}))
def test_the_protocol_as_it_is_ends_well(replay):
    assert replayed(replay) == []


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_variant_is_caught(monkeypatch, name):
    variant, replay, why = VARIANTS[name]
    variant(monkeypatch)
    assert any(why in line for line in replayed(replay))
