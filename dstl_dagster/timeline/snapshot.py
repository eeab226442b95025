"""The part of a view in a snapshot record, as plain JSON. Pure.

Owns which parts of a view a snapshot needs, and their form (`format/README.md`). Does not own what it leaves
out (`archive`): ended attempts, subsumed checkpoints, applied batches and answered requests are archived
first. So a snapshot's size follows what is retained, not the job's age. Of subsumed checkpoints it keeps
those that may still have readers (`readable`): clean-up must know what they need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeVar

from dstl_dagster.errors import FormatError
from dstl_dagster.format.envelope import reading
from dstl_dagster.timeline.record_codec import record_from_plain, record_to_plain
from dstl_dagster.timeline.records import Committed, Completed, Opened, Resolved, Subsumed, TimelineRecord
from dstl_dagster.timeline.view import CheckpointEntry, Retraction, TimelineView

R = TypeVar("R", bound=TimelineRecord)


def view_to_plain(view: TimelineView, readable: Collection[int] = ()) -> dict[str, Any]:
    """The part of the view that a snapshot keeps. `readable`: ids of subsumed checkpoints to keep."""
    return {
        "open": None if view.open_attempt is None else record_to_plain(view.open_attempt),
        "checkpoints": [_entry_to_plain(each) for each in _kept_entries(view, readable)],
        "last_completed_id": view.last_completed_id,
        "replaced_id": view.replaced_id,
        "highest_id": view.highest_id,
        "abandoned": [list(each) for each in view.abandoned],
        "savepoints": dict(view.savepoints),
        "savepoint_ends": {name: until.isoformat() for name, until in view.savepoint_ends.items()},
        "retractions": [
            [each.first_id, each.last_id, each.after_slot, each.restored_slot] for each in view.retractions
        ],
    }


def comparable(view: TimelineView, readable: Collection[int]) -> tuple[object, ...]:
    """The same part in comparable form; comparing plain JSON would cost ten times as much."""
    return (
        view.open_attempt,
        _kept_entries(view, readable),
        view.last_completed_id,
        view.replaced_id,
        view.highest_id,
        view.abandoned,
        dict(view.savepoints),
        dict(view.savepoint_ends),
        view.retractions,
    )


def _kept_entries(view: TimelineView, readable: Collection[int]) -> list[CheckpointEntry]:
    return [
        entry
        for entry in view.checkpoints.values()
        if entry.subsumed is None or entry.checkpoint_id in readable
    ]


def view_from_plain(plain: Mapping[str, Any], slot: int) -> TimelineView:
    """The view as of the snapshot record in `slot`. Raises: FormatError."""
    where = f"the snapshot in slot {slot}"
    with reading(f"{where} is not valid"):
        entries = [_entry_from_plain(each, where) for each in plain["checkpoints"]]
        last, replaced = plain["last_completed_id"], plain["replaced_id"]
        view = TimelineView(
            slot=slot,
            snapshot_slot=slot,
            open_attempt=None if plain["open"] is None else _record(Opened, plain["open"], where),
            checkpoints=MappingProxyType({entry.checkpoint_id: entry for entry in entries}),
            last_completed_id=None if last is None else int(last),
            replaced_id=None if replaced is None else int(replaced),
            highest_id=int(plain["highest_id"]),
            abandoned=tuple((int(first), int(end)) for first, end in plain["abandoned"]),
            savepoints=MappingProxyType({str(name): int(each) for name, each in plain["savepoints"].items()}),
            savepoint_ends=MappingProxyType(
                {str(name): datetime.fromisoformat(each) for name, each in plain["savepoint_ends"].items()}
            ),
            retractions=tuple(Retraction(*map(int, each)) for each in plain["retractions"]),
        )
    named = {
        *view.savepoints.values(),
        *(() if view.shown_id is None else (view.shown_id,)),
    }
    if not named <= set(view.checkpoints):
        raise FormatError(f"{where} refers to checkpoints that it does not contain: {sorted(named)}")
    return view


def _entry_to_plain(entry: CheckpointEntry) -> dict[str, Any]:
    return {
        "completed": record_to_plain(entry.completed),
        "committed": None if entry.committed is None else record_to_plain(entry.committed),
        "subsumed": None if entry.subsumed is None else record_to_plain(entry.subsumed),
        "resolved": [record_to_plain(each) for each in entry.resolved],
    }


def _entry_from_plain(plain: Mapping[str, Any], where: str) -> CheckpointEntry:
    committed, subsumed = plain["committed"], plain["subsumed"]
    return CheckpointEntry(
        completed=_record(Completed, plain["completed"], where),
        committed=None if committed is None else _record(Committed, committed, where),
        subsumed=None if subsumed is None else _record(Subsumed, subsumed, where),
        resolved=tuple(_record(Resolved, each, where) for each in plain["resolved"]),
    )


def _record(kind: type[R], plain: Mapping[str, Any], where: str) -> R:
    record = record_from_plain(plain, where)
    if not isinstance(record, kind):
        raise FormatError(f"{where} has a {record.kind!r} record in place of a {kind.kind!r} record")
    return record
