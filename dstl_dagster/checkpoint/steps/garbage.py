"""Step 7, the plan: which objects of a job nothing needs any more. Pure, but for archive look-ups.

Owns the rules of garbage. Does not own listing and deleting (`clean_up`), or which checkpoints are subsumed
(`decisions.to_subsume`).

An object's name carries its attempt (`format.names`), and the timeline records how that attempt ended:

    open                                        keep
    aborted, fenced, ended by a restore         garbage
    completed: not committed, with a blocked
      file, or left behind by a restore         keep
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

from dstl_dagster.checkpoint.steps.clean_up_mark import CleanUpMark
from dstl_dagster.format import JobNames
from dstl_dagster.format.names import attempt_half, attempt_of_component
from dstl_dagster.storage import ObjectStat
from dstl_dagster.timeline import CheckpointEntry, Ending, Fate, TimelineView


@dataclass(frozen=True)
class Garbage:
    """One object to delete, and why."""

    stat: ObjectStat
    reason: str


class AttemptFates:
    """How each attempt ended, by its UUID or by the half of it that component names carry.

    The archive is asked once for each, also where it does not know: most components may be another job's.
    """

    def __init__(self, view: TimelineView) -> None:
        self.view = view
        self._completed = {entry.completed.attempt: entry for entry in view.kept}
        # A snapshot leaves out how attempts ended, not the checkpoints that may still have readers.
        self._subsumed = {
            entry.completed.attempt: Fate.of_subsumed(entry.completed, entry.subsumed)
            for entry in view.checkpoints.values()
            if entry.subsumed is not None
        }
        known: list[uuid.UUID] = [*view.ended, *self._completed, *self._subsumed]
        if view.open_attempt is not None:
            known.append(view.open_attempt.attempt)
        self._by_half = {attempt_half(attempt): attempt for attempt in known}
        self._archived: dict[int, Fate | None] = {}

    def unknown_half(self, half: int | None) -> bool:
        """Whether only the archive can know the attempt with these upper 64 bits."""
        return half is not None and half not in self._by_half and bool(self.view.snapshot_slot)

    def by_half(self, half: int | None) -> uuid.UUID | None:
        """The attempt of this job with these upper 64 bits. May read the archive."""
        if half is None:
            return None
        known = self._by_half.get(half)
        if known is None and self.unknown_half(half):
            archived = self.archived(half)
            known = None if archived is None else archived.attempt
        return known

    def ended(self, attempt: uuid.UUID) -> Fate | None:
        """The permanent end of the attempt. May read the archive."""
        if attempt in self._completed:
            return None
        found = self.ended_lately(attempt)
        if found is None and self.view.snapshot_slot:
            archived = self.archived(attempt_half(attempt))
            found = archived if archived is not None and archived.attempt == attempt else None
        return found

    def archived(self, half: int) -> Fate | None:
        """How the attempt with these upper 64 bits ended, by the archive. May be called from any thread."""
        if half not in self._archived:
            self._archived[half] = self.view.archive.fate_of_half(half)
        return self._archived[half]

    def ended_lately(self, attempt: uuid.UUID) -> Fate | None:
        """The same, by the view alone."""
        return self._subsumed.get(attempt) or self.view.ended.get(attempt)

    def kept(self, attempt: uuid.UUID) -> CheckpointEntry | None:
        """The checkpoint of this attempt, unless it is subsumed."""
        return self._completed.get(attempt)


def plan_garbage(
    names: JobNames,
    listed: Iterable[ObjectStat],
    fates: AttemptFates,
    *,
    grace_is_over: Callable[[int], bool],
) -> Iterator[Garbage]:
    """Those of `listed` that are garbage unless a checkpoint needs them (see `deciding`).

    It must have been listed before the view of `fates` was read. Objects of a checkpoint subsumed in some
    slot are garbage only if `grace_is_over(slot)`. A manifest must be deleted after what it names: list them
    last.
    """
    for stat in listed:
        attempt = _attempt_of(names, stat.name, fates)
        if attempt is None:
            continue
        reason = _why_garbage(attempt, fates, grace_is_over)
        if reason is None:
            continue
        if stat.name.startswith(names.manifests_prefix) and fates.kept(attempt) is not None:
            continue
        yield Garbage(stat, reason)


def unsettled(
    names: JobNames, listed: Iterable[ObjectStat], fates: AttemptFates, mark: CleanUpMark | None, roots: str
) -> Iterator[ObjectStat]:
    """The objects that the clean-up of this mark has not judged permanently. Reads no archive.

    `roots`: those of the view, as `CleanUpMark.roots`.
    """
    for stat in listed:
        if mark is None or stat.updated >= mark.began:
            yield stat
            continue
        half = _half_of(names, stat.name)
        if fates.unknown_half(half):
            # It had ended by the snapshot. If it is dead, nothing of it was left; else no grace was.
            settled = fates.view.snapshot_slot <= mark.slot and roots == mark.roots
        else:
            attempt = fates.by_half(half)
            settled = attempt is not None and _is_settled(attempt, fates, mark, roots)
        if not settled:
            yield stat


def _is_settled(attempt: uuid.UUID, fates: AttemptFates, mark: CleanUpMark, roots: str) -> bool:
    entry = fates.kept(attempt)
    if entry is not None:
        return entry.committed is not None and entry.committed.slot <= mark.slot
    fate = fates.ended_lately(attempt)
    if fate is None or fate.ending is not Ending.SUBSUMED:
        return False
    return fate.slot <= mark.over_slot and roots == mark.roots


@dataclass(frozen=True)
class Deciding:
    """What decides whether suspects are garbage: their own manifests, and with `older` the roots."""

    own: tuple[CheckpointEntry, ...]
    older: bool


def deciding(names: JobNames, suspects: Iterable[Garbage], fates: AttemptFates) -> Deciding:
    """For suspects that `plan_garbage` found without regard to references. May read the archive."""
    own: dict[int, CheckpointEntry] = {}
    older = False
    for each in suspects:
        attempt = _attempt_of(names, each.stat.name, fates)
        entry = None if attempt is None else fates.kept(attempt)
        if entry is not None:
            own[entry.checkpoint_id] = entry
        elif attempt is not None:
            fate = fates.ended(attempt)
            older = older or (fate is not None and fate.ending is Ending.SUBSUMED)
    return Deciding(tuple(own.values()), older)


def halves_to_look_up(names: JobNames, listed: Iterable[ObjectStat], fates: AttemptFates) -> set[int]:
    """The attempts on this page, by their upper 64 bits, that only the archive can know."""
    halves = {_half_of(names, stat.name) for stat in listed}
    return {half for half in halves if half is not None and fates.unknown_half(half)}


def _half_of(names: JobNames, name: str) -> int | None:
    if not name.startswith(names.root):
        return attempt_of_component(name)
    attempt = names.attempt_of(name)
    return None if attempt is None else attempt_half(attempt)


def _attempt_of(names: JobNames, name: str, fates: AttemptFates) -> uuid.UUID | None:
    if name.startswith(names.root):
        return names.attempt_of(name)
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
    if fates.view.is_abandoned(entry.checkpoint_id):
        return None  # its manifest may be damaged, and soon it is subsumed
    return "no longer needed by its checkpoint"
