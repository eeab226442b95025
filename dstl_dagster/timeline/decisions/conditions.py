"""Conditions that several rules require, and the words of their refusals."""

from __future__ import annotations

from collections.abc import Sequence

from dstl_dagster.errors import ConflictError, ErrorKind, FencedError, NotFoundError
from dstl_dagster.timeline.attempt import Attempt
from dstl_dagster.timeline.records import BatchKey, Resolved
from dstl_dagster.timeline.view import CheckpointEntry, Ending, TimelineView


def require_open(view: TimelineView, attempt: Attempt) -> None:
    """Steps 2 to 4 may proceed only while the attempt is the open one.

    Raises: FencedError (it was aborted, taken over, or ended by a restore), NotFoundError (it never belonged
    to this job), ConflictError (kind `already_completed`).
    """
    if view.open_attempt is not None and view.open_attempt.attempt == attempt.attempt:
        return
    fate = view.fate(attempt.attempt)
    if fate is not None and fate.ending is not Ending.SUBSUMED:
        how = {
            Ending.ABORTED: f"aborted ({fate.note})",
            Ending.FENCED: f"taken over by {fate.note!r}",
            Ending.RESTORED: f"ended by a restore of {fate.note!r}",
        }[fate.ending]
        raise FencedError(
            f"attempt {attempt.attempt} on checkpoint {attempt.checkpoint_id} was {how} in slot "
            f"{fate.slot}: nothing it wrote can be published. Start again from step 1"
        )
    done = view.completed_by(attempt.attempt, attempt.checkpoint_id)
    if done is not None or fate is not None:
        raise ConflictError(
            f"attempt {attempt.attempt} already completed checkpoint {attempt.checkpoint_id}",
            kind=ErrorKind.ALREADY_COMPLETED,
        )
    if attempt.timeline not in ("", view.timeline_id):
        begun = "another job of that name has begun since"
        if not view.slot:
            begun = "nothing of it is here, or this is another store"
        raise NotFoundError(
            f"attempt {attempt.attempt} is of a job {attempt.job!r} that is gone: it was dropped, or its "
            f"store was emptied or replaced; {begun}. Start again from step 1",
            kind=ErrorKind.JOB_GONE,
        )
    raise NotFoundError(
        f"attempt {attempt.attempt} is not on the timeline of job {attempt.job!r}: wrong job or wrong store?"
    )


def entry_of(view: TimelineView, checkpoint_id: int) -> CheckpointEntry:
    """The checkpoint's records. Raises: NotFoundError (kind `checkpoint_gone`, `no_checkpoint`)."""
    entry = view.checkpoints.get(checkpoint_id)
    if entry is not None:
        return entry
    if 1 <= checkpoint_id <= view.highest_id:
        raise NotFoundError(f"checkpoint {checkpoint_id} was cleaned up", kind=ErrorKind.CHECKPOINT_GONE)
    raise NotFoundError(f"no completed checkpoint {checkpoint_id}", kind=ErrorKind.NO_CHECKPOINT)


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


def refuse_unresolved(waiting: Sequence[Resolved]) -> None:
    """Raises: ConflictError (kind `unfinished`) if there are resolutions that are not carried out yet."""
    if waiting:
        raise ConflictError(
            f"{waiting[0].name!r} of checkpoint {waiting[0].checkpoint_id} was resolved as "
            f"{waiting[0].resolution}, which is not carried out yet: run step 6 (compose-commit) first",
            kind=ErrorKind.UNFINISHED,
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
