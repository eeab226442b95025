"""Folds the records of a timeline into a view, one after another.

Owns the meaning of a sequence of records, and the check of a snapshot against the records before it. Does not
own reading records (`timeline`): it does no I/O.
"""

from __future__ import annotations

import dataclasses
import uuid
from datetime import datetime
from types import MappingProxyType

from dstl_dagster.errors import ErrorKind, FormatError
from dstl_dagster.timeline.batch_key import BatchKey
from dstl_dagster.timeline.records import (
    Aborted,
    Committed,
    Completed,
    Fenced,
    Opened,
    Released,
    Resolved,
    Restored,
    Savepoint,
    Snapshot,
    Subsumed,
    TimelineRecord,
    timeline_id_of,
)
from dstl_dagster.timeline.snapshot import KnownEntries, kept_of, view_from_plain
from dstl_dagster.timeline.view import (
    ArchivedFacts,
    CheckpointEntry,
    EmptyArchive,
    Ending,
    Fate,
    Retraction,
    TimelineView,
)

__all__ = ["ViewBuilder"]


class ViewBuilder:
    """Mutable inside, so that n records cost O(n); what `view` returns is frozen. Not thread-safe.

    Args:
        archive: where views look up what snapshots leave out.
        known: cached entries, which need not be decoded from a snapshot that was encoded from them.
        timeline_id: of a timeline that is read from a snapshot on; else its first record says it.
    """

    def __init__(
        self,
        archive: ArchivedFacts | None = None,
        known: KnownEntries | None = None,
        timeline_id: str = "",
    ) -> None:
        self._archive = archive or EmptyArchive()
        self._known = known or KnownEntries()
        self._started = False
        self._timeline_id = timeline_id
        self._view: TimelineView | None = None
        self._slot = 0
        self._snapshot_slot = 0
        self._open: Opened | None = None
        self._checkpoints: dict[int, CheckpointEntry] = {}
        self._last_completed_id: int | None = None
        self._highest_id = 0
        self._abandoned: tuple[tuple[int, int], ...] = ()
        self._savepoints: dict[str, int] = {}
        self._savepoint_ends: dict[str, datetime] = {}
        self._retractions: tuple[Retraction, ...] = ()
        self._ended: dict[uuid.UUID, Fate] = {}
        self._keys: dict[BatchKey, tuple[int, ...]] = {}
        self._requests: dict[uuid.UUID, int] = {}
        self._checked: tuple[Snapshot, TimelineView] | None = None

    @property
    def slot(self) -> int:
        return self._slot

    @property
    def snapshot_slot(self) -> int:
        return self._snapshot_slot

    def view(self) -> TimelineView:
        """The view as of the last record added. Records added later do not change it."""
        if self._view is None:
            self._view = TimelineView(
                slot=self._slot,
                timeline_id=self._timeline_id,
                snapshot_slot=self._snapshot_slot,
                open_attempt=self._open,
                checkpoints=MappingProxyType(dict(self._checkpoints)),
                last_completed_id=self._last_completed_id,
                highest_id=self._highest_id,
                abandoned=self._abandoned,
                savepoints=MappingProxyType(dict(self._savepoints)),
                savepoint_ends=MappingProxyType(dict(self._savepoint_ends)),
                retractions=self._retractions,
                ended=MappingProxyType(dict(self._ended)),
                keys=MappingProxyType(dict(self._keys)),
                requests=MappingProxyType(dict(self._requests)),
                archive=self._archive,
            )
        return self._view

    def check(self, record: TimelineRecord) -> None:
        """Raises: FormatError if the record cannot follow those before it (a forged or lost slot)."""
        if isinstance(record, Snapshot):
            self._check_snapshot(record)
            return
        if record.slot != self._slot + 1:
            raise FormatError(f"record of slot {record.slot} cannot follow slot {self._slot}")
        for checkpoint_id in _referenced_ids(record):
            if checkpoint_id not in self._checkpoints:
                raise FormatError(
                    f"slot {record.slot} ({record.kind}) refers to checkpoint {checkpoint_id}, "
                    "which no earlier record completed"
                )

    def add(self, record: TimelineRecord) -> None:
        """Fold one more record. Raises: as `check`."""
        if isinstance(record, Snapshot):
            self._reset_to(self._check_snapshot(record))
            return
        self.check(record)
        self._started = True
        if record.slot == 1:
            self._timeline_id = timeline_id_of(record)
        self._fold(record)
        if isinstance(record, Savepoint | Released | Resolved | Restored):
            self._requests[record.decision_id] = record.slot
        self._slot = record.slot
        self._view = None

    def _fold(self, record: TimelineRecord) -> None:
        match record:
            case Opened():
                self._open = record
                self._retractions = ()
            case Aborted():
                self._end(
                    Fate(record.attempt, record.checkpoint_id, Ending.ABORTED, record.slot, record.reason)
                )
            case Fenced():
                self._end(Fate(record.attempt, record.checkpoint_id, Ending.FENCED, record.slot, record.by))
            case Completed():
                self._complete(record)
            case Committed():
                self._change(record.checkpoint_id, committed=record)
            case Resolved():
                known = self._checkpoints[record.checkpoint_id].resolved
                self._change(record.checkpoint_id, resolved=(*known, record))
            case Subsumed():
                self._subsume(record)
            case Savepoint():
                self._savepoints[record.name] = record.checkpoint_id
                self._savepoint_ends.pop(record.name, None)
                if record.until is not None:
                    self._savepoint_ends[record.name] = record.until
            case Released():
                self._savepoints.pop(record.name, None)
                self._savepoint_ends.pop(record.name, None)
            case Restored():
                self._restore(record)

    def _reset_to(self, view: TimelineView) -> None:
        self._started = True
        self._checked = None
        self._slot = view.slot
        self._snapshot_slot = view.snapshot_slot
        self._open = view.open_attempt
        self._checkpoints = dict(view.checkpoints)
        self._last_completed_id = view.last_completed_id
        self._highest_id = view.highest_id
        self._abandoned = view.abandoned
        self._savepoints = dict(view.savepoints)
        self._savepoint_ends = dict(view.savepoint_ends)
        self._retractions = view.retractions
        self._ended = dict(view.ended)
        self._keys = dict(view.keys)
        self._requests = dict(view.requests)
        self._view = None

    def _check_snapshot(self, record: Snapshot) -> TimelineView:
        """The snapshot's view, compared with the records before it. `append` checks a record before writing
        it and adds it afterwards, so the last result is kept: comparing is done once. Raises: FormatError.
        """
        if self._checked is not None and self._checked[0] is record:
            return self._checked[1]
        stored = view_from_plain(record.view, record.slot, self._known)
        if not self._started:
            return stored  # reading starts here: there is nothing to compare it with
        if record.slot != self._slot + 1:
            raise FormatError(f"record of slot {record.slot} cannot follow slot {self._slot}")
        readable = {
            entry.checkpoint_id for entry in stored.checkpoints.values() if entry.subsumed is not None
        }
        if kept_of(stored, readable) != kept_of(self.view(), readable):
            raise FormatError(
                f"the snapshot in slot {record.slot} is not what the records before it add up to: it was "
                "written by a faulty release, or by hand",
                kind=ErrorKind.BAD_SNAPSHOT,
            )
        self._checked = (record, stored)
        return stored

    def _end(self, fate: Fate) -> None:
        self._ended[fate.attempt] = fate
        if self._open is not None and self._open.attempt == fate.attempt:
            self._open = None

    def _complete(self, record: Completed) -> None:
        self._open = None
        self._last_completed_id = record.checkpoint_id
        self._highest_id = max(self._highest_id, record.checkpoint_id)
        self._checkpoints[record.checkpoint_id] = CheckpointEntry(completed=record)
        if record.batch is not None:
            self._keys[record.batch] = (*self._keys.get(record.batch, ()), record.checkpoint_id)

    def _subsume(self, record: Subsumed) -> None:
        for checkpoint_id in record.checkpoint_ids:
            completed = self._change(checkpoint_id, subsumed=record).completed
            self._ended[completed.attempt] = Fate.of_subsumed(completed, record)

    def _restore(self, record: Restored) -> None:
        if self._open is not None:
            opened = self._open
            self._end(Fate(opened.attempt, opened.checkpoint_id, Ending.RESTORED, record.slot, record.by))
        kept = record.checkpoint_id
        self._last_completed_id = kept
        if self._highest_id > kept:
            # No earlier range spans `kept`, since `kept` itself is not abandoned.
            before = tuple(each for each in self._abandoned if each[1] < kept)
            self._abandoned = (*before, (kept + 1, self._highest_id))
            after_slot = self._checkpoints[kept].completed.slot
            retraction = Retraction(kept + 1, self._highest_id, after_slot, record.slot)
            self._retractions = (*self._retractions, retraction)

    def _change(self, checkpoint_id: int, **changes: object) -> CheckpointEntry:
        changed = dataclasses.replace(self._checkpoints[checkpoint_id], **changes)  # type: ignore[arg-type] # fields by name
        self._checkpoints[checkpoint_id] = changed
        return changed


def _referenced_ids(record: TimelineRecord) -> tuple[int, ...]:
    if isinstance(record, Committed | Savepoint | Resolved | Restored):
        return (record.checkpoint_id,)
    return record.checkpoint_ids if isinstance(record, Subsumed) else ()
