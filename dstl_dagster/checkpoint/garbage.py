"""Step 7, the plan: which objects of a job nothing needs any more. Pure.

Owns the rules of garbage. Does not own listing and deleting (`cleanup`), nor which checkpoints are given
up (`decisions.to_subsume`).

An object's name tells whose it is (`format.names`), and the timeline tells what became of that attempt:

    open                                        keep
    aborted or fenced                           garbage
    completed, not committed, or with a file
      that is blocked                           keep
    completed, its object referenced by a
      retained checkpoint                       keep
    completed, retained, unreferenced           garbage (components of published files, reports)
    completed, subsumed, unreferenced           garbage, once the grace time for readers is over
    not on the timeline                         not ours: keep, and say so

Age alone is never a reason.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dstl_dagster.checkpoint.view import CheckpointEntry, TimelineView
from dstl_dagster.format.names import JobNames, attempt_of_component
from dstl_dagster.storage import ObjectStat

__all__ = ["AttemptFates", "Garbage", "plan_garbage"]


@dataclass(frozen=True)
class Garbage:
    """One object to delete, and why."""

    stat: ObjectStat
    reason: str


class AttemptFates:
    """Looks up, for an attempt's name or the half of it that a component carries, what became of it."""

    def __init__(self, view: TimelineView) -> None:
        self._view = view
        self._completed = {entry.completed.attempt: entry for entry in view.checkpoints.values()}
        known: list[uuid.UUID] = [*view.dead, *self._completed]
        if view.open_attempt is not None:
            known.append(view.open_attempt.attempt)
        self._by_half = {attempt.int >> 64: attempt for attempt in known}

    def by_half(self, half: int | None) -> uuid.UUID | None:
        """The attempt of this job whose upper 64 bits these are."""
        return None if half is None else self._by_half.get(half)

    def is_dead(self, attempt: uuid.UUID) -> bool:
        return attempt in self._view.dead

    def completed(self, attempt: uuid.UUID) -> CheckpointEntry | None:
        return self._completed.get(attempt)


def plan_garbage(
    names: JobNames,
    listed: Iterable[ObjectStat],
    view: TimelineView,
    referenced: frozenset[str],
    *,
    grace_is_over: Callable[[CheckpointEntry], bool],
) -> Iterator[Garbage]:
    """The garbage among `listed`, which must have been listed before `view` was read.

    `referenced` are the names that retained checkpoints need. Of a subsumed checkpoint something goes
    only if `grace_is_over`. A manifest must be deleted after what it names: list manifests last.
    """
    fates = AttemptFates(view)
    for stat in listed:
        attempt = _attempt_of(names, stat.name, fates)
        if attempt is None or stat.name in referenced:
            continue
        reason = _why_garbage(attempt, fates, grace_is_over)
        if reason is None:
            continue
        if stat.name.startswith(names.manifests_prefix) and not _manifest_may_go(attempt, fates):
            continue
        yield Garbage(stat, reason)


def _attempt_of(names: JobNames, name: str, fates: AttemptFates) -> uuid.UUID | None:
    if name.startswith(names.attempts_prefix):
        return names.attempt_of_folder(name)
    if name.startswith(names.manifests_prefix):
        return names.attempt_of_manifest(name)
    return fates.by_half(attempt_of_component(name))


def _why_garbage(
    attempt: uuid.UUID, fates: AttemptFates, grace_is_over: Callable[[CheckpointEntry], bool]
) -> str | None:
    if fates.is_dead(attempt):
        return "left by a dead attempt"
    entry = fates.completed(attempt)
    if entry is None or entry.committed is None or entry.committed.blocked:
        return None
    if entry.subsumed is None:
        return "no longer needed by its checkpoint"
    return "of a subsumed checkpoint" if grace_is_over(entry) else None


def _manifest_may_go(attempt: uuid.UUID, fates: AttemptFates) -> bool:
    entry = fates.completed(attempt)
    return entry is None or entry.subsumed is not None
