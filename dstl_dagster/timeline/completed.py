"""The record that completed a checkpoint, also long after retention gave the checkpoint up.

Owns the search. A view forgets what a snapshot put away; slots are never deleted, and ids ascend along them.
"""

from __future__ import annotations

from dstl_dagster.errors import ErrorKind, FormatError, NotFoundError
from dstl_dagster.timeline.records import Completed, Opened
from dstl_dagster.timeline.timeline import Timeline

__all__ = ["find_completed"]


def find_completed(timeline: Timeline, checkpoint_id: int) -> Completed:
    """The `completed` record of a checkpoint that was completed at any time. Halves the timeline.

    Raises: NotFoundError (kind `no_checkpoint`), FormatError.
    """
    view = timeline.tail()
    entry = view.checkpoints.get(checkpoint_id)
    if entry is not None:
        return entry.completed
    if not 1 <= checkpoint_id <= view.highest_id:
        raise NotFoundError(
            f"job {timeline.job!r} has no completed checkpoint {checkpoint_id}", kind=ErrorKind.NO_CHECKPOINT
        )
    low, high = 1, view.slot  # the record lies between them, both inclusive
    while low <= high:
        middle = (low + high) // 2
        found = _telling(timeline, low, middle)
        if found is None:
            low = middle + 1
            continue
        slot, record = found
        if isinstance(record, Completed) and record.checkpoint_id == checkpoint_id:
            return record
        highest = record.checkpoint_id - isinstance(record, Opened)
        low, high = (low, slot - 1) if highest >= checkpoint_id else (middle + 1, high)
    raise FormatError(f"the timeline of {timeline.job!r} has lost the record of checkpoint {checkpoint_id}")


def _telling(timeline: Timeline, low: int, slot: int) -> tuple[int, Completed | Opened] | None:
    """The last record up to `slot` that says how far ids had come; `None` where none is from `low` on."""
    for place in range(slot, low - 1, -1):
        record = next(timeline.records(place - 1))
        if isinstance(record, Completed | Opened):
            return place, record
    return None
