"""Why a record may not come next, in words that say what to do.

Owns the errors that several rules share, and the look at the view that each needs. Does not own which rule
asks for which (`decisions`). Pure.
"""

from __future__ import annotations

from dstl_dagster.errors import ConflictError, ErrorKind, NotFoundError
from dstl_dagster.timeline.batch_key import BatchKey
from dstl_dagster.timeline.records import Opened
from dstl_dagster.timeline.view import CheckpointEntry, TimelineView

__all__ = [
    "entry_of",
    "opened_meanwhile",
    "parent_moved",
    "refuse_abandoned",
    "refuse_applied",
    "refuse_gone",
    "refuse_moved",
    "refuse_unresolved",
]


def opened_meanwhile(rival: Opened) -> ConflictError:
    """The error (kind `attempt_open`) for an attempt that this one did not count on."""
    return ConflictError(
        f"attempt {rival.attempt} of {rival.owner!r} was opened meanwhile", kind=ErrorKind.ATTEMPT_OPEN
    )


def parent_moved(parent: int | None, expected: int | None) -> ConflictError:
    """The error (kind `parent_moved`) for an attempt on `expected` where `parent` is the last checkpoint."""
    return ConflictError(
        f"the job's last checkpoint is now {parent}, but this attempt expected {expected}: "
        "look again, then trigger again",
        kind=ErrorKind.PARENT_MOVED,
    )


def entry_of(view: TimelineView, checkpoint_id: int) -> CheckpointEntry:
    """The checkpoint's records. Raises: NotFoundError (kind `checkpoint_gone`, `no_checkpoint`)."""
    entry = view.checkpoints.get(checkpoint_id)
    if entry is not None:
        return entry
    if 1 <= checkpoint_id <= view.highest_id:
        raise NotFoundError(f"checkpoint {checkpoint_id} was cleaned up", kind=ErrorKind.CHECKPOINT_GONE)
    raise NotFoundError(f"no completed checkpoint {checkpoint_id}", kind=ErrorKind.NO_CHECKPOINT)


def refuse_moved(view: TimelineView, expected_last: int) -> None:
    """Raises: ConflictError (kind `parent_moved`) unless the last checkpoint is the confirmed one."""
    if view.last_completed_id != expected_last:
        raise ConflictError(
            f"the job's last checkpoint is now {view.last_completed_id}, but the restore was confirmed from "
            f"{expected_last}: nothing was changed; look at what it would undo now, then confirm that",
            kind=ErrorKind.PARENT_MOVED,
        )


def refuse_gone(entry: CheckpointEntry) -> None:
    """Raises: NotFoundError (kind `checkpoint_gone`) if the checkpoint was subsumed."""
    if entry.subsumed is not None:
        raise NotFoundError(
            f"checkpoint {entry.checkpoint_id} was subsumed in slot {entry.subsumed.slot}",
            kind=ErrorKind.CHECKPOINT_GONE,
        )


def refuse_abandoned(view: TimelineView, checkpoint_id: int, what: str) -> None:
    """Raises: ConflictError (kind `abandoned`). `what` was wanted of the checkpoint, as a verb."""
    if view.is_abandoned(checkpoint_id):
        raise ConflictError(
            f"cannot {what} checkpoint {checkpoint_id}: a restore abandoned it. Its state can be read and "
            "exported while a savepoint keeps it",
            kind=ErrorKind.ABANDONED,
        )


def refuse_unresolved(view: TimelineView) -> None:
    """Raises: ConflictError (kind `unresolved`) if a resolution is not carried out yet."""
    waiting = view.unfinished_resolutions
    if waiting:
        raise ConflictError(
            f"{waiting[0].name!r} of checkpoint {waiting[0].checkpoint_id} was resolved as "
            f"{waiting[0].resolution}, which is not carried out yet: run step 6 (compose-commit) first",
            kind=ErrorKind.UNRESOLVED,
        )


def refuse_applied(view: TimelineView, batch: BatchKey | None) -> None:
    """Raises: ConflictError (kind `already_applied`) if a checkpoint of the chain holds this batch."""
    if batch is None:
        return
    held = view.applied_in(batch)
    if held is not None:
        raise ConflictError(
            f"batch {batch.key!r} is already in checkpoint {held}: there is nothing to do",
            kind=ErrorKind.ALREADY_APPLIED,
        )
