"""A view after one more record. Pure.

Owns the meaning of a sequence of records, and the check of a snapshot against the records before it. Does not
own reading records (`timeline`), or whether a record may be written (`decisions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from dstl_dagster.errors import FormatError
from dstl_dagster.timeline.record_codec import view_from_plain
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
from dstl_dagster.timeline.view import CheckpointEntry, Ending, Fate, Retraction, TimelineView

K = TypeVar("K")
V = TypeVar("V")


def next_view(view: TimelineView, record: TimelineRecord) -> TimelineView:
    """The view after this record. A view of no record begins at a snapshot, in any slot.

    Raises: FormatError if the record cannot follow those of the view (a forged or lost slot).
    """
    if isinstance(record, Snapshot):
        return _from_snapshot(view, record)
    if record.slot != view.slot + 1:
        raise FormatError(f"record of slot {record.slot} cannot follow slot {view.slot}")
    for checkpoint_id in _referenced_ids(record):
        if checkpoint_id not in view.checkpoints:
            raise FormatError(
                f"slot {record.slot} ({record.kind}) refers to checkpoint {checkpoint_id}, "
                "which no earlier record completed"
            )
    after = replace(_after(view, record), slot=record.slot)
    if record.slot == 1:
        after = replace(after, timeline_id=timeline_id_of(record))
    if isinstance(record, Savepoint | Released | Resolved | Restored):
        after = replace(after, requests=_with(view.requests, {record.decision_id: record.slot}))
    return after


def _after(view: TimelineView, record: TimelineRecord) -> TimelineView:
    match record:
        case Opened():
            return replace(view, open_attempt=record, retractions=())
        case Aborted():
            return _ended(view, record, record.slot, Ending.ABORTED, record.reason)
        case Fenced():
            return _ended(view, record, record.slot, Ending.FENCED, record.by)
        case Completed():
            return _completed(view, record)
        case Committed():
            return _changed(view, record.checkpoint_id, committed=record)
        case Resolved():
            known = view.checkpoints[record.checkpoint_id].resolved
            return _changed(view, record.checkpoint_id, resolved=(*known, record))
        case Subsumed():
            return _subsumed(view, record)
        case Savepoint():
            view = _without_savepoint(view, record.name)
            ends = {} if record.until is None else {record.name: record.until}
            return replace(
                view,
                savepoints=_with(view.savepoints, {record.name: record.checkpoint_id}),
                savepoint_ends=_with(view.savepoint_ends, ends),
            )
        case Released():
            return _without_savepoint(view, record.name)
        case Restored():
            return _restored(view, record)
    return view


def _from_snapshot(view: TimelineView, record: Snapshot) -> TimelineView:
    stored = view_from_plain(record.view, record.slot)
    stored = replace(stored, timeline_id=view.timeline_id, archive=view.archive)
    if not view.slot:
        return stored  # reading starts here: there is nothing to compare it with
    if record.slot != view.slot + 1:
        raise FormatError(f"record of slot {record.slot} cannot follow slot {view.slot}")
    readable = {entry.checkpoint_id for entry in stored.checkpoints.values() if entry.subsumed is not None}
    if stored != view.in_snapshot(record.slot, readable):
        raise FormatError(
            f"the snapshot in slot {record.slot} is not what the records before it add up to: it was "
            "written by a faulty release or another program"
        )
    return stored


def _ended(
    view: TimelineView, of: Opened | Aborted | Fenced, slot: int, ending: Ending, note: str
) -> TimelineView:
    """The attempt of this record has ended, by the record in `slot`."""
    fate = Fate(of.attempt, of.checkpoint_id, ending, slot, note)
    opened = view.open_attempt
    if opened is not None and opened.attempt == of.attempt:
        opened = None
    return replace(view, open_attempt=opened, ended=_with(view.ended, {of.attempt: fate}))


def _completed(view: TimelineView, record: Completed) -> TimelineView:
    holds = {each: (*view.keys.get(each, ()), record.checkpoint_id) for each in record.batches}
    keys = _with(view.keys, holds) if holds else view.keys
    return replace(
        view,
        open_attempt=None,
        last_completed_id=record.checkpoint_id,
        replaced_id=None,
        highest_id=max(view.highest_id, record.checkpoint_id),
        checkpoints=_with(view.checkpoints, {record.checkpoint_id: CheckpointEntry(completed=record)}),
        keys=keys,
    )


def _subsumed(view: TimelineView, record: Subsumed) -> TimelineView:
    entries = {each: replace(view.checkpoints[each], subsumed=record) for each in record.checkpoint_ids}
    fates = [Fate.of_subsumed(each.completed, record) for each in entries.values()]
    return replace(
        view,
        checkpoints=_with(view.checkpoints, entries),
        ended=_with(view.ended, {fate.attempt: fate for fate in fates}),
    )


def _restored(view: TimelineView, record: Restored) -> TimelineView:
    if view.open_attempt is not None:
        view = _ended(view, view.open_attempt, record.slot, Ending.RESTORED, record.by)
    target = record.checkpoint_id
    view = replace(view, last_completed_id=target or None, replaced_id=None if target else view.shown_id)
    if view.highest_id <= target:
        return view
    # No earlier range spans the target, since that itself is not abandoned.
    before = [each for each in view.abandoned if each[1] < target]
    after_slot = view.checkpoints[target].completed.slot if target else 0
    retraction = Retraction(target + 1, view.highest_id, after_slot, record.slot)
    return replace(
        view,
        abandoned=(*before, (target + 1, view.highest_id)),
        retractions=(*view.retractions, retraction),
    )


def _changed(view: TimelineView, checkpoint_id: int, **fields: Any) -> TimelineView:
    entry = replace(view.checkpoints[checkpoint_id], **fields)
    return replace(view, checkpoints=_with(view.checkpoints, {checkpoint_id: entry}))


def _without_savepoint(view: TimelineView, name: str) -> TimelineView:
    return replace(
        view,
        savepoints=_without(view.savepoints, name),
        savepoint_ends=_without(view.savepoint_ends, name),
    )


def _with(known: Mapping[K, V], more: Mapping[K, V]) -> Mapping[K, V]:
    return MappingProxyType({**known, **more})


def _without(known: Mapping[K, V], gone: K) -> Mapping[K, V]:
    return MappingProxyType({key: value for key, value in known.items() if key != gone})


def _referenced_ids(record: TimelineRecord) -> tuple[int, ...]:
    if isinstance(record, Restored) and not record.checkpoint_id:
        return ()  # before the first
    if isinstance(record, Committed | Savepoint | Resolved | Restored):
        return (record.checkpoint_id,)
    return record.checkpoint_ids if isinstance(record, Subsumed) else ()
