"""The rules: which record may come next. Pure functions from a view of the timeline to a record.

This is the one place that says who may do what. Each function returns the record to append, or `None`
where the decision was already made (so every step may run any number of times), or raises.
`Timeline.decide` calls them again, from the new tail, whenever a rival was faster.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from dstl_dagster.checkpoint.attempt import Attempt
from dstl_dagster.checkpoint.records import (
    Aborted,
    BlockedFile,
    Committed,
    Completed,
    Fenced,
    Opened,
    Subsumed,
)
from dstl_dagster.checkpoint.view import TimelineView
from dstl_dagster.errors import ConflictError, FencedError, NotFoundError

__all__ = [
    "require_open",
    "to_abort",
    "to_commit",
    "to_complete",
    "to_fence",
    "to_open",
    "to_subsume",
]


def to_fence(view: TimelineView, owner: str, take_over: bool) -> Fenced | None:
    """Step 1, first half: end the attempt that stands in the way; `None` where none does.

    An owner may always end its own attempt (it crashed and came back). Another's only when asked to.
    """
    rival = view.open_attempt
    if rival is None:
        return None
    if rival.owner != owner and not take_over:
        raise ConflictError(
            f"checkpoint {rival.checkpoint_id} is being made by attempt {rival.attempt} of {rival.owner!r} "
            f"(since {rival.recorded_at:%Y-%m-%d %H:%M:%S} UTC). Wait for it; or, if it is dead, "
            "trigger with take_over=True",
            kind="attempt_open",
        )
    return Fenced(attempt=rival.attempt, checkpoint_id=rival.checkpoint_id, by=owner)


def to_open(
    view: TimelineView,
    *,
    attempt: uuid.UUID,
    owner: str,
    idempotency_key: str | None,
    expected_parent: int | None,
    pin_parent: bool,
) -> Opened:
    """Step 1, second half: open the attempt on the next checkpoint.

    With `pin_parent` the parent must be `expected_parent`: what the caller checked before still holds.
    """
    if view.open_attempt is not None:
        raise ConflictError(
            f"attempt {view.open_attempt.attempt} of {view.open_attempt.owner!r} opened meanwhile",
            kind="attempt_open",
        )
    _refuse_applied(view, idempotency_key)
    if view.uncommitted:
        raise ConflictError(
            f"checkpoint {view.uncommitted[0].checkpoint_id} is completed, but its files are not published: "
            "run step 6 (compose-commit) first",
            kind="uncommitted",
        )
    last = view.last_completed
    parent = None if last is None else last.checkpoint_id
    if pin_parent and parent != expected_parent:
        raise ConflictError(
            f"the job went on to checkpoint {parent} while this attempt counted on {expected_parent} "
            "being the last: look again, then trigger again",
            kind="parent_moved",
        )
    return Opened(
        attempt=attempt,
        checkpoint_id=view.next_checkpoint_id,
        parent=parent,
        owner=owner,
        idempotency_key=idempotency_key,
    )


def require_open(view: TimelineView, attempt: Attempt) -> None:
    """Steps 2 to 4 may go on only while the attempt is the open one.

    Raises: FencedError (it was aborted or taken over), NotFoundError (it never was of this job),
    ConflictError (kind `already_completed`).
    """
    if view.open_attempt is not None and view.open_attempt.attempt == attempt.attempt:
        return
    death = view.dead.get(attempt.attempt)
    if death is not None:
        how = f"taken over by {death.by!r}" if isinstance(death, Fenced) else f"aborted ({death.reason})"
        raise FencedError(
            f"attempt {attempt.attempt} on checkpoint {attempt.checkpoint_id} was {how} in slot "
            f"{death.slot}: nothing of it can be published. Start again from step 1"
        )
    done = view.completed_by(attempt.attempt, attempt.checkpoint_id)
    if done is not None:
        raise ConflictError(
            f"attempt {attempt.attempt} already completed checkpoint {done.checkpoint_id}",
            kind="already_completed",
        )
    raise NotFoundError(
        f"attempt {attempt.attempt} is not on the timeline of job {attempt.job!r}: wrong job or wrong store?",
        kind="no_attempt",
    )


def to_complete(
    view: TimelineView, attempt: Attempt, *, manifest: str, files: Sequence[str], seconds: float
) -> Completed | None:
    """Step 5, the commit point; `None` where this attempt already completed its checkpoint."""
    if view.completed_by(attempt.attempt, attempt.checkpoint_id) is not None:
        return None
    require_open(view, attempt)
    last = view.last_completed
    parent = None if last is None else last.checkpoint_id
    if parent != attempt.parent:
        raise FencedError(
            f"attempt {attempt.attempt} was made on checkpoint {attempt.parent}, but the last one is {parent}"
        )
    _refuse_applied(view, attempt.idempotency_key)
    return Completed(
        attempt=attempt.attempt,
        checkpoint_id=attempt.checkpoint_id,
        parent=attempt.parent,
        manifest=manifest,
        files=tuple(files),
        idempotency_key=attempt.idempotency_key,
        seconds=seconds,
    )


def to_abort(view: TimelineView, attempt: Attempt, reason: str) -> Aborted | None:
    """Give the attempt up; `None` where it is dead already.

    Raises: ConflictError (kind `already_completed`): after step 5 there is only forward.
    """
    if attempt.attempt in view.dead:
        return None
    require_open(view, attempt)
    return Aborted(attempt=attempt.attempt, checkpoint_id=attempt.checkpoint_id, reason=reason)


def to_commit(
    view: TimelineView,
    checkpoint_id: int,
    *,
    published: Sequence[str],
    blocked: Sequence[BlockedFile],
    seconds: float,
) -> Committed | None:
    """End of step 6; `None` where it was said already."""
    entry = view.checkpoints.get(checkpoint_id)
    if entry is None:
        raise NotFoundError(f"no completed checkpoint {checkpoint_id}", kind="no_checkpoint")
    if entry.committed is not None:
        return None
    return Committed(
        checkpoint_id=checkpoint_id, published=tuple(published), blocked=tuple(blocked), seconds=seconds
    )


def to_subsume(view: TimelineView, num_retained: int) -> Subsumed | None:
    """Step 7: which checkpoints lie beyond the last `num_retained`; `None` where none does.

    Never one that is not committed, never one with a blocked file, never the last.
    """
    beyond = view.retained[: -max(1, num_retained)]
    subsumable = tuple(
        entry.checkpoint_id for entry in beyond if entry.committed is not None and not entry.committed.blocked
    )
    return Subsumed(checkpoint_ids=subsumable) if subsumable else None


def _refuse_applied(view: TimelineView, idempotency_key: str | None) -> None:
    if idempotency_key is not None and idempotency_key in view.applied:
        raise ConflictError(
            f"batch {idempotency_key!r} is already in checkpoint {view.applied[idempotency_key]}: "
            "there is nothing to do",
            kind="already_applied",
        )
