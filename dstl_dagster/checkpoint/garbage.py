"""Step 7, the plan: which objects of a job nothing needs any more. Pure, but for archive look-ups.

Owns the rules of garbage. Does not own listing and deleting (`cleanup`), or which checkpoints are subsumed
(`decisions.to_subsume`).

An object's name carries its attempt (`format.names`), and the timeline records how that attempt ended:

    open                                        keep
    aborted, fenced, ended by a restore         garbage
    completed: not committed, or with
      a blocked file                            keep
    completed: referenced                       keep
    completed: unreferenced                     garbage (components of published files, reports)
    completed and subsumed: still referenced    keep
    completed and subsumed: unreferenced        garbage, once the grace time for readers is over
    not on the timeline                         not ours: keep

Age alone is never a reason.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dstl_dagster.format import JobNames
from dstl_dagster.format.names import attempt_half, attempt_of_component
from dstl_dagster.storage import ObjectStat
from dstl_dagster.timeline import CheckpointEntry, Ending, Fate, TimelineView

__all__ = ["AttemptFates", "Garbage", "plan_garbage"]


@dataclass(frozen=True)
class Garbage:
    """One object to delete, and why."""

    stat: ObjectStat
    reason: str


class AttemptFates:
    """How each attempt ended, by its UUID or by the half of it that component names carry."""

    def __init__(self, view: TimelineView) -> None:
        self._view = view
        self._completed = {entry.completed.attempt: entry for entry in view.kept}
        known: list[uuid.UUID] = [*view.ended, *self._completed]
        if view.open_attempt is not None:
            known.append(view.open_attempt.attempt)
        self._by_half = {attempt_half(attempt): attempt for attempt in known}

    def by_half(self, half: int | None) -> uuid.UUID | None:
        """The attempt of this job with these upper 64 bits. May read the archive."""
        if half is None:
            return None
        known = self._by_half.get(half)
        if known is None and self._view.snapshot_slot:
            archived = self._view.archive.fate_of_half(half)
            known = None if archived is None else archived.attempt
        return known

    def ended(self, attempt: uuid.UUID) -> Fate | None:
        """How the attempt ended for good. May read the archive."""
        return None if attempt in self._completed else self._view.fate(attempt)

    def kept(self, attempt: uuid.UUID) -> CheckpointEntry | None:
        """The checkpoint of this attempt, unless it is subsumed."""
        return self._completed.get(attempt)


def plan_garbage(
    names: JobNames,
    listed: Iterable[ObjectStat],
    view: TimelineView,
    referenced: frozenset[str],
    *,
    grace_is_over: Callable[[int], bool],
) -> Iterator[Garbage]:
    """The garbage among `listed`, which must have been listed before `view` was read.

    `referenced`: the names that kept checkpoints need. Objects of a checkpoint subsumed in some slot are
    garbage only if `grace_is_over(slot)`. A manifest must be deleted after what it names: list them last.
    """
    fates = AttemptFates(view)
    for stat in listed:
        attempt = _attempt_of(names, stat.name, fates)
        if attempt is None or stat.name in referenced:
            continue
        reason = _why_garbage(attempt, fates, grace_is_over)
        if reason is None:
            continue
        if stat.name.startswith(names.manifests_prefix) and fates.kept(attempt) is not None:
            continue
        yield Garbage(stat, reason)


def _attempt_of(names: JobNames, name: str, fates: AttemptFates) -> uuid.UUID | None:
    if name.startswith(names.attempts_prefix):
        return names.attempt_of_folder(name)
    if name.startswith(names.manifests_prefix):
        return names.attempt_of_manifest(name)
    return fates.by_half(attempt_of_component(name))


def _why_garbage(attempt: uuid.UUID, fates: AttemptFates, grace_is_over: Callable[[int], bool]) -> str | None:
    fate = fates.ended(attempt)
    if fate is not None:
        if fate.ending is not Ending.SUBSUMED:
            return "left by a dead attempt"
        return "of a subsumed checkpoint" if grace_is_over(fate.slot) else None
    entry = fates.kept(attempt)
    if entry is None or entry.committed is None or entry.committed.blocked or entry.unfinished_resolutions:
        return None
    return "no longer needed by its checkpoint"
