"""What a timeline's records add up to: the value, and queries on it.

Owns the queries. Does not own replaying (`replay`), which record may come next (`decisions`), or reading
and writing records (`timeline`).

What a snapshot record leaves out (ended attempts, applied batches, answered requests) is in the archive,
which the view consults by itself. Only facts are archived, so an answer cannot change.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol

from dstl_dagster.format import NOT_STORED, Stored
from dstl_dagster.format.names import attempt_half
from dstl_dagster.timeline.records import BatchKey, Committed, Completed, Opened, Resolved, Subsumed


class Ending(StrEnum):
    """How an attempt ended, permanently. All but `SUBSUMED` happen before step 5."""

    ABORTED = "aborted"  # by its owner
    FENCED = "fenced"  # taken over
    RESTORED = "restored"  # ended by a restore
    SUBSUMED = "subsumed"  # it completed a checkpoint, which was subsumed later


@dataclass(frozen=True)
class Fate(Stored):
    """How an attempt ended, by the record in `slot`. `note` is for people."""

    attempt: uuid.UUID
    checkpoint_id: int
    ending: Ending
    slot: int
    note: str = ""

    @classmethod
    def of_subsumed(cls, completed: Completed, record: Subsumed) -> Fate:
        """Of the attempt that completed a checkpoint which this record subsumes."""
        return cls(completed.attempt, completed.checkpoint_id, Ending.SUBSUMED, record.slot)


@dataclass(frozen=True)
class CheckpointEntry:
    """One completed checkpoint's records. `committed` is the newest of its `committed` records."""

    completed: Completed
    committed: Committed | None = None
    subsumed: Subsumed | None = None
    resolved: tuple[Resolved, ...] = ()

    @property
    def checkpoint_id(self) -> int:
        return self.completed.checkpoint_id

    @property
    def unfinished_resolutions(self) -> tuple[Resolved, ...]:
        """Resolutions of blocked files that no later `committed` record includes, oldest first."""
        if self.committed is None:
            return ()
        return tuple(resolved for resolved in self.resolved if resolved.slot > self.committed.slot)


@dataclass(frozen=True)
class Retraction:
    """The range that a restore abandoned: checkpoints `first_id` to `last_id`, both inclusive.

    Their `completed` records are between `after_slot` and `restored_slot`, the restore's own, both exclusive.
    """

    first_id: int
    last_id: int
    after_slot: int
    restored_slot: int


class ArchivedFacts(Protocol):
    """Looks up the facts that snapshots leave out."""

    def checkpoints_of_key(self, key: str | BatchKey) -> list[int]:
        """Every checkpoint that ever held this batch, or one of this name; ascending."""
        ...

    def fate_of_half(self, half: int) -> Fate | None:
        """How the attempt with these upper 64 bits ended; `None` if it is not archived."""
        ...

    def slot_of_request(self, decision_id: uuid.UUID) -> int | None:
        """The slot of the record that answered a caller's request; `None` if it is not archived."""
        ...


class EmptyArchive:
    """The archive of a timeline without snapshots."""

    def checkpoints_of_key(self, key: str | BatchKey) -> list[int]:
        del key
        return []

    def fate_of_half(self, half: int) -> Fate | None:
        del half
        return None

    def slot_of_request(self, decision_id: uuid.UUID) -> int | None:
        del decision_id
        return None


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class TimelineView:
    """All records up to and including `slot` (0: none), replayed.

    Attributes:
        slot: the last record's slot.
        timeline_id: 16 hex digits, which no other timeline has; empty before the first record.
        snapshot_slot: the newest snapshot record's slot; 0 if there is none.
        open_attempt: the attempt that is open, if any.
        checkpoints: completed checkpoints by id, ascending: all since the newest snapshot, and older ones
            that were not subsumed by then, or could still be read.
        last_completed_id: the checkpoint that the next one builds on; `None` before the first.
        replaced_id: of a job that begins anew, the checkpoint that readers see until one completes.
        highest_id: the highest id of all checkpoints ever completed; 0 before the first.
        abandoned: ranges of checkpoint ids (both ends inclusive, ascending) that restores abandoned.
        savepoints: checkpoint ids by name.
        savepoint_ends: when step 7 releases a savepoint, by name; those that end are in it alone.
        retractions: those of restores after which no attempt was opened: they may be unfinished.
        ended, keys, requests: only since the newest snapshot; use `fate`, `applied_in`, `answer` instead.
    """

    slot: int = field(default=0, metadata=NOT_STORED)
    timeline_id: str = field(default="", metadata=NOT_STORED)
    snapshot_slot: int = field(default=0, metadata=NOT_STORED)
    open_attempt: Opened | None = None
    checkpoints: Mapping[int, CheckpointEntry] = field(default_factory=_nothing, metadata=NOT_STORED)
    last_completed_id: int | None = None
    replaced_id: int | None = None
    highest_id: int = 0
    abandoned: tuple[tuple[int, int], ...] = ()
    savepoints: Mapping[str, int] = field(default_factory=_nothing)
    savepoint_ends: Mapping[str, datetime] = field(default_factory=_nothing)
    retractions: tuple[Retraction, ...] = ()
    ended: Mapping[uuid.UUID, Fate] = field(default_factory=_nothing, metadata=NOT_STORED)
    keys: Mapping[BatchKey, tuple[int, ...]] = field(default_factory=_nothing, metadata=NOT_STORED)
    requests: Mapping[uuid.UUID, int] = field(default_factory=_nothing, metadata=NOT_STORED)
    archive: ArchivedFacts = field(
        default_factory=EmptyArchive, compare=False, repr=False, metadata=NOT_STORED
    )

    @property
    def last_completed(self) -> CheckpointEntry | None:
        """The checkpoint that the next one builds on."""
        return None if self.last_completed_id is None else self.checkpoints[self.last_completed_id]

    @property
    def shown_id(self) -> int | None:
        """The checkpoint that readers see."""
        return self.last_completed_id or self.replaced_id

    @property
    def next_checkpoint_id(self) -> int:
        """Ids are never reused, not even after a restore."""
        return self.highest_id + 1

    @property
    def uncommitted(self) -> list[CheckpointEntry]:
        """Completed checkpoints whose files are not all published yet, oldest first.

        Only the last completed one can be: no attempt opens before its parent is committed.
        """
        last = self.last_completed
        return [last] if last is not None and last.committed is None else []

    @property
    def unfinished_resolutions(self) -> list[Resolved]:
        """Those of checkpoints that are not abandoned, oldest first."""
        return [resolved for entry in self.retained for resolved in entry.unfinished_resolutions]

    @property
    def unfinished(self) -> list[int]:
        """The checkpoints that step 6 has something to do for, ascending."""
        resolved = {each.checkpoint_id for each in self.unfinished_resolutions}
        return sorted(resolved | {entry.checkpoint_id for entry in self.uncommitted})

    @property
    def kept(self) -> list[CheckpointEntry]:
        """Checkpoints that are not subsumed, abandoned ones included; oldest first."""
        return [entry for entry in self.checkpoints.values() if entry.subsumed is None]

    @property
    def retained(self) -> list[CheckpointEntry]:
        """Checkpoints that can be restored to, oldest first."""
        return [entry for entry in self.kept if not self.is_abandoned(entry.checkpoint_id)]

    def in_snapshot(self, slot: int, readable: Collection[int] = ()) -> TimelineView:
        """What a snapshot record in this slot keeps of it. `readable`: ids of subsumed checkpoints to keep.

        So a snapshot's size follows what is retained, not the job's age: all else is archived first. Of
        subsumed checkpoints it keeps those that may still have readers: clean-up must know what they need.
        """
        kept = {
            number: entry
            for number, entry in self.checkpoints.items()
            if entry.subsumed is None or number in readable
        }
        nothing = _nothing()
        return replace(
            self,
            slot=slot,
            snapshot_slot=slot,
            checkpoints=MappingProxyType(kept),
            ended=nothing,
            keys=nothing,
            requests=nothing,
        )

    def is_abandoned(self, checkpoint_id: int) -> bool:
        """Whether a restore abandoned this checkpoint."""
        return any(first <= checkpoint_id <= last for first, last in self.abandoned)

    def completed_by(self, attempt: uuid.UUID, checkpoint_id: int) -> CheckpointEntry | None:
        """The checkpoint with this id, if this attempt completed it."""
        entry = self.checkpoints.get(checkpoint_id)
        return entry if entry is not None and entry.completed.attempt == attempt else None

    def applied_in(self, key: str | BatchKey) -> int | None:
        """The checkpoint of the current chain that holds this batch, or `None`. May read the archive.

        A text is a name: of the batches of any source that have it, the one that was applied last counts.
        """
        if isinstance(key, BatchKey):
            key = key.each[0]
        # Newest first: a batch of an abandoned checkpoint may have been applied again since.
        for checkpoint_id in reversed(self.checkpoints_since_snapshot(key)):
            if not self.is_abandoned(checkpoint_id):
                return checkpoint_id
        if self.snapshot_slot == 0:
            return None
        archived = self.archive.checkpoints_of_key(key)
        return next((each for each in reversed(archived) if not self.is_abandoned(each)), None)

    def checkpoints_since_snapshot(self, key: str | BatchKey) -> list[int]:
        """Every checkpoint since the newest snapshot that held this batch, or one of this name; ascending."""
        if isinstance(key, BatchKey):
            return [*self.keys.get(key, ())]
        return sorted(each for known, ids in self.keys.items() if known.key == key for each in ids)

    def fate(self, attempt: uuid.UUID) -> Fate | None:
        """How the attempt ended; `None` while it is open, retained, or unknown. May read the archive."""
        found = self.ended.get(attempt)
        if found is None and self.snapshot_slot:
            archived = self.archive.fate_of_half(attempt_half(attempt))
            found = archived if archived is not None and archived.attempt == attempt else None
        return found

    def answer(self, decision_id: uuid.UUID) -> int | None:
        """The slot of the record that answered a caller's request, or `None`. May read the archive."""
        found = self.requests.get(decision_id)
        if found is None and self.snapshot_slot:
            found = self.archive.slot_of_request(decision_id)
        return found
