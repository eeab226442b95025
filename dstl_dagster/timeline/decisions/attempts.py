"""Which attempt may be open: fencing a rival, opening, beginning a planned one, aborting.

A zombie ends here: its attempt is fenced, and `conditions.require_open` refuses all that it tries after.
"""

from __future__ import annotations

import uuid

from dstl_dagster.errors import ConflictError, ErrorKind, NotFoundError
from dstl_dagster.timeline.attempt import Attempt, PlannedAttempt
from dstl_dagster.timeline.decisions import conditions
from dstl_dagster.timeline.records import Aborted, BatchKey, Fenced, Opened
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


def to_open(
    view: TimelineView,
    *,
    attempt: uuid.UUID,
    owner: str,
    batch: BatchKey | None,
    base: int | None = None,
    adopted: int | None = None,
    expected_parent: int | None,
    pin_parent: bool,
    retracted: int,
) -> Opened:
    """Step 1, second half: open the attempt on the next checkpoint.

    `retracted` is the slot of the newest restore whose abandoned files the caller has retracted. With
    `pin_parent` the parent must be `expected_parent`, so that what the caller checked about it still holds.
    `base`: apply the last checkpoint's batch anew, on what that was built on. `adopted`: take over the state
    of another job's checkpoint of this id; the next one's is not lower, as runs of state are in its order.

    Raises: ConflictError (kind `attempt_open`, `already_applied`, `moved`, `unfinished`).
    """
    if view.open_attempt is not None:
        raise _opened_meanwhile(view.open_attempt)
    last = view.last_completed
    parent = None if last is None else last.checkpoint_id
    if adopted is not None:
        base = None if parent is None else 0
    elif base is None:
        conditions.refuse_applied(view, batch)
    else:
        _require_base(view, batch, base)
    conditions.refuse_unresolved(view.unfinished_resolutions)
    if view.uncommitted:
        raise ConflictError(
            f"checkpoint {view.uncommitted[0].checkpoint_id} is completed, but its files are not published: "
            "run step 6 (compose-commit) first",
            kind=ErrorKind.UNFINISHED,
        )
    if any(retraction.restored_slot > retracted for retraction in view.retractions):
        raise ConflictError(
            "files of checkpoints that a restore abandoned may still be there: trigger again, which "
            "retracts them first",
            kind=ErrorKind.UNFINISHED,
        )
    if pin_parent and parent != expected_parent:
        raise _parent_moved(parent, expected_parent)
    return Opened(
        attempt=attempt,
        checkpoint_id=max(view.next_checkpoint_id, adopted or 0),
        parent=parent,
        owner=owner,
        batch=batch,
        base=base,
    )


def to_begin(
    view: TimelineView, planned: PlannedAttempt, *, owner: str, take_over: bool, retracted: int
) -> Fenced | Opened | None:
    """Step 1 of a planned attempt, by any of several processes that share it: fence its rival, then open it.
    `None` if it is open.

    Fences only what was open when the attempt was planned, so that a task which outlived its driver never
    ends the attempt of the driver after it. `retracted` is as in `to_open`.

    Raises: ConflictError (kind `moved`: plan again; else as `to_fence` and `to_open`), FencedError (it
    was open, and has ended).
    """
    attempt, rival = planned.attempt, view.open_attempt
    try:
        conditions.require_open(view, attempt)
    except NotFoundError:
        pass  # it was never open
    else:
        return None
    last = view.last_completed
    parent = None if last is None else last.checkpoint_id
    if (parent, view.next_checkpoint_id) != (attempt.parent, attempt.checkpoint_id):
        raise _parent_moved(parent, attempt.parent)
    if rival is not None and rival.slot > planned.slot:
        raise _opened_meanwhile(rival)
    return to_fence(view, owner, take_over) or to_open(
        view,
        attempt=attempt.attempt,
        owner=owner,
        batch=attempt.batch,
        expected_parent=attempt.parent,
        pin_parent=True,
        retracted=retracted,
    )


def to_abort(view: TimelineView, attempt: Attempt, reason: str) -> Aborted | None:
    """Abort the attempt; `None` if it is dead already.

    Raises: ConflictError (kind `already_completed`): after step 5 there is no way back; NotFoundError.
    """
    fate = view.fate(attempt.attempt)
    if fate is not None and fate.ending is not Ending.SUBSUMED:
        return None
    conditions.require_open(view, attempt)
    return Aborted(attempt=attempt.attempt, checkpoint_id=attempt.checkpoint_id, reason=reason)


def _require_base(view: TimelineView, batch: BatchKey | None, base: int) -> None:
    """The last checkpoint holds this batch, and builds on `base`, which is there."""
    last = view.last_completed
    if last is None or last.completed.batch != batch or (last.completed.builds_on or 0) != base:
        raise _parent_moved(None if last is None else last.checkpoint_id, base)
    if base:
        conditions.refuse_gone(conditions.entry_of(view, base))


def _opened_meanwhile(rival: Opened) -> ConflictError:
    """The error (kind `attempt_open`) for an attempt that this one did not count on."""
    return ConflictError(
        f"attempt {rival.attempt} of {rival.owner!r} was opened meanwhile", kind=ErrorKind.ATTEMPT_OPEN
    )


def _parent_moved(parent: int | None, expected: int | None) -> ConflictError:
    """The error (kind `moved`) for an attempt on `expected` where `parent` is the last checkpoint."""
    return ConflictError(
        f"the job's last checkpoint is now {parent}, but this attempt expected {expected}: "
        "look again, then trigger again",
        kind=ErrorKind.MOVED,
    )
