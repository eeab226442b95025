"""What a timeline says when all its records are read in order. A pure fold, and the questions to it.

Owns the meaning of a sequence of records. Does not own which record may come next (`decisions`), nor
reading and writing them (`timeline`).
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dstl_dagster.checkpoint.records import (
    Aborted,
    Committed,
    Completed,
    Fenced,
    Opened,
    Subsumed,
    TimelineRecord,
)
from dstl_dagster.errors import FormatError

__all__ = ["CheckpointEntry", "TimelineView", "ViewBuilder"]


@dataclass(frozen=True)
class CheckpointEntry:
    """One completed checkpoint, as far as the timeline tells."""

    completed: Completed
    committed: Committed | None = None
    subsumed: Subsumed | None = None

    @property
    def checkpoint_id(self) -> int:
        return self.completed.checkpoint_id


@dataclass(frozen=True)
class TimelineView:
    """All records up to and including `slot` (0: none), folded.

    Attributes:
        slot: the last record's place.
        open_attempt: the attempt that is alive, if one is.
        dead: every attempt that was aborted or fenced, and by which record.
        checkpoints: completed checkpoints by id, ascending.
        applied: the checkpoint that holds the batch of an idempotency key.
        last_completed_id: the checkpoint that completed last; `None` before the first.
    """

    slot: int = 0
    open_attempt: Opened | None = None
    dead: Mapping[uuid.UUID, Aborted | Fenced] = field(default_factory=lambda: MappingProxyType({}))
    checkpoints: Mapping[int, CheckpointEntry] = field(default_factory=lambda: MappingProxyType({}))
    applied: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    last_completed_id: int | None = None

    @property
    def last_completed(self) -> CheckpointEntry | None:
        """The checkpoint that the next one builds on."""
        return None if self.last_completed_id is None else self.checkpoints[self.last_completed_id]

    @property
    def next_checkpoint_id(self) -> int:
        last = self.last_completed
        return 1 if last is None else last.checkpoint_id + 1

    @property
    def uncommitted(self) -> list[CheckpointEntry]:
        """Completed checkpoints whose files are not all published yet, oldest first.

        Only the last completed one can be: none begins before the one before it is committed.
        """
        last = self.last_completed
        return [last] if last is not None and last.committed is None else []

    @property
    def retained(self) -> list[CheckpointEntry]:
        """Checkpoints that can be restored to, oldest first."""
        return [entry for entry in self.checkpoints.values() if entry.subsumed is None]

    def completed_by(self, attempt: uuid.UUID, checkpoint_id: int) -> CheckpointEntry | None:
        """The checkpoint of that id, if it was this attempt that completed it."""
        entry = self.checkpoints.get(checkpoint_id)
        return entry if entry is not None and entry.completed.attempt == attempt else None


class ViewBuilder:
    """Folds records one after another. Mutable inside, so that n records cost O(n); `view` is frozen."""

    def __init__(self) -> None:
        self._slot = 0
        self._open: Opened | None = None
        self._dead: dict[uuid.UUID, Aborted | Fenced] = {}
        self._checkpoints: dict[int, CheckpointEntry] = {}
        self._applied: dict[str, int] = {}
        self._last_completed_id: int | None = None
        self._view: TimelineView | None = None

    @property
    def slot(self) -> int:
        return self._slot

    def view(self) -> TimelineView:
        """A snapshot: later records do not show in it."""
        if self._view is None:
            self._view = TimelineView(
                slot=self._slot,
                open_attempt=self._open,
                dead=MappingProxyType(dict(self._dead)),
                checkpoints=MappingProxyType(dict(self._checkpoints)),
                applied=MappingProxyType(dict(self._applied)),
                last_completed_id=self._last_completed_id,
            )
        return self._view

    def check(self, record: TimelineRecord) -> None:
        """Raises: FormatError where the record cannot follow those before it (a forged or lost slot)."""
        if record.slot != self._slot + 1:
            raise FormatError(f"record of slot {record.slot} cannot follow slot {self._slot}")
        spoken_of: tuple[int, ...] = ()
        if isinstance(record, Committed):
            spoken_of = (record.checkpoint_id,)
        elif isinstance(record, Subsumed):
            spoken_of = record.checkpoint_ids
        for checkpoint_id in spoken_of:
            if checkpoint_id not in self._checkpoints:
                raise FormatError(
                    f"slot {record.slot} ({record.kind}) speaks of checkpoint {checkpoint_id}, "
                    "which no earlier record completed"
                )

    def add(self, record: TimelineRecord) -> None:
        """Raises: FormatError as `check` does."""
        self.check(record)
        match record:
            case Opened():
                self._open = record
            case Aborted() | Fenced():
                self._dead[record.attempt] = record
                if self._open is not None and self._open.attempt == record.attempt:
                    self._open = None
            case Completed():
                self._open = None
                self._last_completed_id = record.checkpoint_id
                self._checkpoints[record.checkpoint_id] = CheckpointEntry(completed=record)
                if record.idempotency_key is not None:
                    self._applied[record.idempotency_key] = record.checkpoint_id
            case Committed():
                entry = self._checkpoints[record.checkpoint_id]
                self._checkpoints[record.checkpoint_id] = dataclasses.replace(entry, committed=record)
            case Subsumed():
                for checkpoint_id in record.checkpoint_ids:
                    entry = self._checkpoints[checkpoint_id]
                    self._checkpoints[checkpoint_id] = dataclasses.replace(entry, subsumed=record)
        self._slot = record.slot
        self._view = None
