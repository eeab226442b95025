"""The part of a view in a snapshot record, as plain JSON. Pure.

Owns which parts of a view a snapshot needs, and their form (`format/README.md`). Does not own what it leaves
out (`archive`): ended attempts, subsumed checkpoints, applied batches and answered requests are archived
first. So a snapshot's size follows what is retained, not the job's age. Of subsumed checkpoints it keeps
those that may still have readers (`readable`): clean-up must know what they need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from dstl_dagster.errors import FormatError
from dstl_dagster.format import from_fields, plain_list, to_fields
from dstl_dagster.format.envelope import reading
from dstl_dagster.timeline.view import CheckpointEntry, TimelineView


def view_to_plain(view: TimelineView, readable: Collection[int] = ()) -> dict[str, Any]:
    """The part of the view that a snapshot keeps. `readable`: ids of subsumed checkpoints to keep."""
    return {**to_fields(view), "checkpoints": [to_fields(each) for each in _kept_entries(view, readable)]}


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
        fields = dict(plain)
        entries = [from_fields(CheckpointEntry, each) for each in plain_list(fields.pop("checkpoints"))]
        view = from_fields(
            TimelineView,
            fields,
            slot=slot,
            snapshot_slot=slot,
            checkpoints=MappingProxyType({entry.checkpoint_id: entry for entry in entries}),
        )
    named = {
        *view.savepoints.values(),
        *(() if view.shown_id is None else (view.shown_id,)),
    }
    if not named <= set(view.checkpoints):
        raise FormatError(f"{where} refers to checkpoints that it does not contain: {sorted(named)}")
    return view
