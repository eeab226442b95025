"""Fencing: an attempt whose owner is dead, or only seems so, must not go on once another one has begun.

Owns who may end an attempt that is open, and where a zombie stops. Does not own what else a step requires
(`decisions`).
"""

from __future__ import annotations

import uuid

from dstl_dagster.errors import ConflictError, ErrorKind, FencedError, NotFoundError
from dstl_dagster.timeline.attempt import Attempt
from dstl_dagster.timeline.records import Fenced
from dstl_dagster.timeline.view import Ending, TimelineView


def to_fence(view: TimelineView, owner: str, take_over: bool | uuid.UUID) -> Fenced | None:
    """Step 1, first half: fence the open attempt; `None` if there is none.

    An owner may always fence its own attempt (it crashed and came back), another's only with `take_over`: any
    (`True`), or the one with this id, because the caller knows its owner to be dead.

    Raises: ConflictError (kind `attempt_open`).
    """
    rival = view.open_attempt
    if rival is None:
        return None
    if rival.owner != owner and take_over is not True and take_over != rival.attempt:
        raise ConflictError(
            f"checkpoint {rival.checkpoint_id} is being made by attempt {rival.attempt} of {rival.owner!r} "
            f"(since {rival.recorded_at:%Y-%m-%d %H:%M:%S} UTC). Wait for it or, if it is dead, "
            "end it with `dstl checkpoints abort`, or take over: trigger with take_over=True, or in Dagster "
            "tag the run dstl/take_over: true",
            kind=ErrorKind.ATTEMPT_OPEN,
        )
    return Fenced(attempt=rival.attempt, checkpoint_id=rival.checkpoint_id, by=owner)


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
