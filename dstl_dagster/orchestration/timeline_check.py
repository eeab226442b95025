"""Whether a store holds what this Dagster instance was shown of a job: if not, no run begins there.

A volume that is not mounted, a wrong variable, an emptied bucket, an older copy: each looks like a job
without checkpoints, or with other ones, and its next run would begin a second history in silence.

Owns the comparison, and the sentence. Does not own what is shown where a run goes on (`steps.show_again`).

The instance's own events are the memory: the newest one of the job's checkpoints names its timeline and its
slot there. So an instance that never showed the job compares nothing, and one that was wiped begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ConflictError, ErrorKind
from dstl_dagster.orchestration.keys import (
    TAG_ATTEMPT,
    TAG_CHECKPOINT,
    TAG_JOB,
    TAG_RESTORED,
    TAG_SLOT,
    TAG_START_OVER,
    TAG_TIMELINE,
    TAG_VERSION,
    JobAssets,
)
from dstl_dagster.orchestration.owners import OwnerRuns
from dstl_dagster.timeline import Completed, Restored, TimelineRecord

NEWEST_EVENTS = 25
_BESIDE = ", "


@dataclass(frozen=True)
class Comparison:
    """The contents of a store for a job, beside what this instance was shown of it.

    Attributes:
        known: the instance was shown the job.
        difference: what the store has in place of that; `None` if it has it, or nothing was shown.
        started_over: a run that is tagged to start over is at work there, or made what was never shown.
    """

    coordinator: CheckpointCoordinator
    known: bool
    difference: str | None = None
    started_over: bool = False

    @property
    def away(self) -> str | None:
        """Why nothing may begin there, and what to do about it, in one sentence; `None` if it may."""
        if self.difference is None or self.started_over:
            return None
        return self.sentence(self.difference)

    def sentence(self, difference: str) -> str:
        """The same, for a difference that another caller found."""
        return (
            f"the store {self.coordinator.store.uri} is not the one that this Dagster instance knows of job "
            f"{self.coordinator.job!r}: {difference}. Nothing was changed. Mount the right store, correct "
            "the URI, or restore the store from its newest backup; if the job is to start over there on "
            f"purpose, launch one run with the tag `{TAG_START_OVER}: true`"
        )


@dataclass(frozen=True)
class Shown:
    """A checkpoint that an event shows. `job`: `None` where the asset says it. `restored`: the slot of the
    restore to it, or 0.
    """

    job: str | None
    timeline_id: str
    checkpoint_id: int
    slot: int
    attempt: str
    restored: int = 0


def shown_in(made: dg.AssetMaterialization | dg.AssetObservation | None) -> list[Shown]:
    """The checkpoints of an event, by our tags or by `shown_metadata`; none of an event of something else."""
    tags, said = ({}, {}) if made is None else (made.tags or {}, made.metadata)
    if TAG_TIMELINE in tags:
        number, slot, restored = (int(tags.get(each, 0)) for each in (TAG_CHECKPOINT, TAG_SLOT, TAG_RESTORED))
        return [Shown(tags.get(TAG_JOB), tags[TAG_TIMELINE], number, slot, tags[TAG_ATTEMPT], restored)]
    texts = [str(said[each].value).split(_BESIDE) if each in said else [] for each in (TAG_JOB, TAG_TIMELINE)]
    found = []
    for job, text in zip(*texts, strict=False):
        timeline_id, number, slot, attempt = text.split()
        found.append(Shown(job, timeline_id, int(number), int(slot), attempt))
    return found


def shown_metadata(
    coordinator: CheckpointCoordinator, completed: Completed, beside: Mapping[str, Any]
) -> Mapping[str, str]:
    """For an event whose tags are Dagster's: which checkpoint it shows. `beside`: what it says already, of
    other checkpoints that its step made.
    """
    timeline = coordinator.timeline.seen().timeline_id
    said = f"{timeline} {completed.checkpoint_id} {completed.slot} {completed.attempt}"
    return {
        name: text if name not in beside else f"{getattr(beside[name], 'value', beside[name])}{_BESIDE}{text}"
        for name, text in ((TAG_JOB, coordinator.job), (TAG_TIMELINE, said))
    }


def require_shown_timeline(
    run: dg.DagsterRun, instance: dg.DagsterInstance, coordinator: CheckpointCoordinator, *keys: dg.AssetKey
) -> Comparison:
    """Compare, and raise ConflictError (kind `timeline_replaced`) where the store does not hold what this
    instance was shown of the job, unless the run is tagged `dstl/start_over: true`.
    """
    found = compare_timeline(instance, coordinator, *keys)
    if found.away is not None and not _may_start_over(run, instance):
        raise ConflictError(found.away, kind=ErrorKind.TIMELINE_REPLACED)
    return found


def _may_start_over(run: dg.DagsterRun, instance: dg.DagsterInstance) -> bool:
    """By its tag, unless Dagster has copied that from a run which has started over."""
    if run.tags.get(TAG_START_OVER) != "true":
        return False
    parent = None if run.parent_run_id is None else instance.get_run_by_id(run.parent_run_id)
    return parent is None or not parent.is_success or parent.tags.get(TAG_START_OVER) != "true"


def compare_timeline(
    instance: dg.DagsterInstance, coordinator: CheckpointCoordinator, *keys: dg.AssetKey, followed_to: int = 0
) -> Comparison:
    """Compare. At most two requests while there is no difference, and none for a view that was read before.

    Args:
        keys: of the assets that show the job's checkpoints, by `shown_metadata` or where definitions have
            another key than ours for them.
        followed_to: the slot up to which the store is known to have what it had (inclusive).
    """
    showing = {*keys, JobAssets.defined(coordinator.job).checkpoints_key}
    shown = _newest(instance, showing, coordinator.job)
    if shown is None:
        return Comparison(coordinator, known=False)
    difference = _difference(coordinator, shown, followed_to)
    started_over = difference is not None and _is_started_over(instance, coordinator, showing)
    return Comparison(coordinator, True, difference, started_over)


def _newest(instance: dg.DagsterInstance, keys: Iterable[dg.AssetKey], job: str) -> Shown | None:
    """The checkpoint of the job that the newest event shows."""
    found: dict[int, Shown] = {}
    for key in keys:
        for record in instance.fetch_materializations(key, limit=NEWEST_EVENTS).records:
            shown = [each for each in shown_in(record.asset_materialization) if each.job in (job, None)]
            if shown:
                found[record.storage_id] = shown[-1]
                break
    return found[max(found)] if found else None


def _difference(coordinator: CheckpointCoordinator, shown: Shown, followed_to: int) -> str | None:
    timeline = coordinator.timeline
    if not timeline.names.timeline:
        next(timeline.records(), None)
    now = timeline.names.timeline
    if not now:
        return "it has no checkpoint of that job"
    if now != shown.timeline_id:
        return f"it has the timeline {now} of it, not {shown.timeline_id}"
    slot, restored = shown.slot, shown.restored
    if max(slot, restored) <= followed_to:
        return None
    found = _completed_at(coordinator, slot)
    same = isinstance(found, Completed) and str(found.attempt) == shown.attempt
    if same and restored:
        slot, found = restored, next(timeline.records(restored - 1), None)
        same = isinstance(found, Restored)
    if same:
        return None
    if found is None:
        return f"its timeline ends before slot {slot}, as in an older backup"
    return f"its timeline has another record in slot {slot}, as in a copy that went on by itself"


def _completed_at(coordinator: CheckpointCoordinator, slot: int) -> TimelineRecord | None:
    timeline = coordinator.timeline
    known = timeline.seen().checkpoints.values() if timeline.was_read else ()
    seen = next((each.completed for each in known if each.completed.slot == slot), None)
    return seen or next(timeline.records(slot - 1), None)


def _is_started_over(
    instance: dg.DagsterInstance, coordinator: CheckpointCoordinator, showing: Iterable[dg.AssetKey]
) -> bool:
    """A run that was tagged so is at work there, or made the last checkpoint, which was never shown."""
    timeline, owners = coordinator.timeline, OwnerRuns(instance)
    view = timeline.seen()
    if view.open_attempt is not None:
        owner = view.open_attempt.owner
        return owners.are_alive(owner) and owners.are_tagged(owner, TAG_START_OVER)
    if view.last_completed is None:
        return False
    completed = view.last_completed.completed
    version = {TAG_VERSION: str(completed.attempt)}
    if any(instance.get_event_tags_for_asset(key, version) for key in showing):
        return False  # something else was shown since
    return owners.are_tagged(completed.owner, TAG_START_OVER)
