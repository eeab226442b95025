"""The record that completed a checkpoint, even long after the checkpoint was subsumed.

Owns the search. Does not own the records (`timeline`). A view no longer holds what a snapshot left out, but
slots are never deleted and checkpoint ids ascend along them, so a binary search finds the record.
"""

from __future__ import annotations

from dstl_dagster.errors import ErrorKind, FormatError, NotFoundError
from dstl_dagster.timeline.records import Completed, Opened
from dstl_dagster.timeline.timeline import Timeline

__all__ = ["find_completed"]


def find_completed(timeline: Timeline, checkpoint_id: int) -> Completed:
    """The `completed` record of any checkpoint that ever completed, by binary search over the slots.

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
    low, high = 1, view.slot  # the record is between them, both inclusive
    while low <= high:
        middle = (low + high) // 2
        found = _last_with_id(timeline, low, middle)
        if found is None:
            low = middle + 1
            continue
        slot, record = found
        if isinstance(record, Completed) and record.checkpoint_id == checkpoint_id:
            return record
        highest = record.checkpoint_id - isinstance(record, Opened)
        low, high = (low, slot - 1) if highest >= checkpoint_id else (middle + 1, high)
    raise FormatError(f"the timeline of {timeline.job!r} has lost the record of checkpoint {checkpoint_id}")


def _last_with_id(timeline: Timeline, low: int, high: int) -> tuple[int, Completed | Opened] | None:
    """The last record in `low` to `high`, both inclusive, that shows how far checkpoint ids had got."""
    for slot in range(high, low - 1, -1):
        record = next(timeline.records(slot - 1))
        if isinstance(record, Completed | Opened):
            return slot, record
    return None
