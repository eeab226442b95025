"""The rules: which record may come next. Pure functions from a view of the timeline to a record.

This is the one place that says who may do what. Each function returns the record to append, or `None`
where the decision was already made (so every step may run any number of times), or raises.
`Timeline.decide` calls them again, from the new tail, whenever a rival was faster.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from dstl_dagster.errors import ConflictError, ErrorKind, FencedError, NotFoundError
from dstl_dagster.timeline.attempt import Attempt
from dstl_dagster.timeline.records import (
    Aborted,
    BlockedFile,
    Committed,
    Completed,
    Fenced,
    FinalFile,
    Opened,
    Released,
    Resolution,
    Resolved,
    Restored,
    Savepoint,
    Subsumed,
)
from dstl_dagster.timeline.view import CheckpointEntry, Ending, TimelineView

__all__ = [
    "UNFINISHED",
    "refuse_gone",
    "require_open",
    "to_abort",
    "to_commit",
    "to_complete",
    "to_fence",
    "to_open",
    "to_release",
    "to_resolve",
    "to_restore",
    "to_savepoint",
    "to_subsume",
]

UNFINISHED = frozenset({ErrorKind.UNCOMMITTED, ErrorKind.UNRESOLVED, ErrorKind.UNRETRACTED})
"""Kinds of ConflictError that say: finish what an earlier decision began, then ask again."""


def to_fence(view: TimelineView, owner: str, take_over: bool | uuid.UUID) -> Fenced | None:
    """Step 1, first half: end the attempt that stands in the way; `None` where none does.

    An owner may always end its own attempt (it crashed and came back). Another's only when asked to: any
    (`True`), or the one of this id, because the caller knows its owner to be dead.
    """
    rival = view.open_attempt
    if rival is None:
        return None
    if rival.owner != owner and take_over is not True and take_over != rival.attempt:
        raise ConflictError(
            f"checkpoint {rival.checkpoint_id} is being made by attempt {rival.attempt} of {rival.owner!r} "
            f"(since {rival.recorded_at:%Y-%m-%d %H:%M:%S} UTC). Wait for it; or, if it is dead, "
            "trigger with take_over=True",
            kind=ErrorKind.ATTEMPT_OPEN,
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
    retracted: int,
) -> Opened:
    """Step 1, second half: open the attempt on the next checkpoint.

    `retracted` is the slot of the newest restore whose abandoned files the caller knows to be retracted.
    With `pin_parent` the parent must be `expected_parent`: what the caller checked before still holds.
    """
    if view.open_attempt is not None:
        raise ConflictError(
            f"attempt {view.open_attempt.attempt} of {view.open_attempt.owner!r} opened meanwhile",
            kind=ErrorKind.ATTEMPT_OPEN,
        )
    _refuse_applied(view, idempotency_key)
    _refuse_unresolved(view)
    if view.uncommitted:
        raise ConflictError(
            f"checkpoint {view.uncommitted[0].checkpoint_id} is completed, but its files are not published: "
            "run step 6 (compose-commit) first",
            kind=ErrorKind.UNCOMMITTED,
        )
    if any(retraction.restored_slot > retracted for retraction in view.retractions):
        raise ConflictError(
            "files of checkpoints that a restore left behind may still be there: trigger again, which "
            "retracts them first",
            kind=ErrorKind.UNRETRACTED,
        )
    last = view.last_completed
    parent = None if last is None else last.checkpoint_id
    if pin_parent and parent != expected_parent:
        raise ConflictError(
            f"the job went on to checkpoint {parent} while this attempt counted on {expected_parent} "
            "being the last: look again, then trigger again",
            kind=ErrorKind.PARENT_MOVED,
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
    fate = view.fate(attempt.attempt)
    if fate is not None and fate.ending is not Ending.SUBSUMED:
        how = {
            Ending.ABORTED: f"aborted ({fate.note})",
            Ending.FENCED: f"taken over by {fate.note!r}",
            Ending.RESTORED: f"ended by a restore of {fate.note!r}",
        }[fate.ending]
        raise FencedError(
            f"attempt {attempt.attempt} on checkpoint {attempt.checkpoint_id} was {how} in slot "
            f"{fate.slot}: nothing of it can be published. Start again from step 1"
        )
    done = view.completed_by(attempt.attempt, attempt.checkpoint_id)
    if done is not None or fate is not None:
        raise ConflictError(
            f"attempt {attempt.attempt} already completed checkpoint {attempt.checkpoint_id}",
            kind=ErrorKind.ALREADY_COMPLETED,
        )
    raise NotFoundError(
        f"attempt {attempt.attempt} is not on the timeline of job {attempt.job!r}: wrong job or wrong store?",
        kind=ErrorKind.NO_ATTEMPT,
    )


def to_complete(
    view: TimelineView, attempt: Attempt, *, manifest: str, files: Sequence[FinalFile], seconds: float
) -> Completed | None:
    """Step 5, the commit point; `None` where this attempt already completed its checkpoint.

    Raises: FencedError also where a restore has left that checkpoint behind since.
    """
    if view.completed_by(attempt.attempt, attempt.checkpoint_id) is not None:
        if view.is_abandoned(attempt.checkpoint_id):
            raise FencedError(
                f"attempt {attempt.attempt} completed checkpoint {attempt.checkpoint_id}, but a restore has "
                "left it behind since: start again from step 1"
            )
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
    fate = view.fate(attempt.attempt)
    if fate is not None and fate.ending is not Ending.SUBSUMED:
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
    resolved_slot: int = 0,
) -> Committed | None:
    """End of step 6; `None` where it was said already.

    `resolved_slot` is the newest resolution that the outcome takes up; a newer one on the timeline means
    that the outcome is old already.
    """
    entry = _entry(view, checkpoint_id)
    if entry.subsumed is not None:
        return None
    if view.is_abandoned(checkpoint_id):
        raise ConflictError(
            f"a restore left checkpoint {checkpoint_id} behind: its files are not published",
            kind=ErrorKind.ABANDONED,
        )
    if entry.committed is not None:
        unfinished = entry.unfinished_resolutions
        if not unfinished or unfinished[-1].slot > resolved_slot:
            return None
    return Committed(
        checkpoint_id=checkpoint_id, published=tuple(published), blocked=tuple(blocked), seconds=seconds
    )


def to_resolve(view: TimelineView, checkpoint_id: int, name: str, resolution: Resolution) -> Resolved | None:
    """A person's word on one blocked file; `None` where the same was said and is being done.

    Raises: NotFoundError (kind `not_blocked`), ConflictError (kind `unresolved`: another word is being done).
    """
    entry = _entry(view, checkpoint_id)
    _refuse_abandoned(view, checkpoint_id, "resolve files of")
    for waiting in entry.unfinished_resolutions:
        if waiting.name == name:
            if waiting.resolution is resolution:
                return None
            raise ConflictError(
                f"{name!r} of checkpoint {checkpoint_id} was resolved as {waiting.resolution} in slot "
                f"{waiting.slot}, and that is not finished: run step 6 (compose-commit) first",
                kind=ErrorKind.UNRESOLVED,
            )
    blocked = () if entry.committed is None else entry.committed.blocked
    found = next((file for file in blocked if file.name == name), None)
    if found is None:
        names = ", ".join(repr(file.name) for file in blocked) or "none is"
        raise NotFoundError(
            f"{name!r} is not a blocked file of checkpoint {checkpoint_id}; blocked: {names}",
            kind=ErrorKind.NOT_BLOCKED,
        )
    return Resolved(
        checkpoint_id=checkpoint_id,
        name=name,
        resolution=resolution,
        foreign_generation=found.foreign_generation,
    )


def to_savepoint(view: TimelineView, checkpoint_id: int, name: str) -> Savepoint | None:
    """Keep a checkpoint under a name; `None` where it is kept under it already.

    Also one that a restore left behind: it can be read and exported, but not restored to.

    Raises: NotFoundError (kind `checkpoint_gone`, `no_checkpoint`), ConflictError (kind `savepoint_exists`).
    """
    kept = view.savepoints.get(name)
    if kept == checkpoint_id:
        return None
    if kept is not None:
        raise ConflictError(
            f"savepoint {name!r} keeps checkpoint {kept} already: release it first, or take another name",
            kind=ErrorKind.SAVEPOINT_EXISTS,
        )
    refuse_gone(_entry(view, checkpoint_id))
    return Savepoint(checkpoint_id=checkpoint_id, name=name)


def to_release(view: TimelineView, name: str) -> Released | None:
    """Give a savepoint up; `None` where no savepoint has the name (any more)."""
    kept = view.savepoints.get(name)
    return None if kept is None else Released(checkpoint_id=kept, name=name)


def to_restore(view: TimelineView, checkpoint_id: int, owner: str) -> Restored:
    """Go on from an earlier checkpoint. Ends the open attempt, whoever has it.

    Raises: NotFoundError, ConflictError (kind `abandoned`; kind `unresolved`: finish that first).
    """
    entry = _entry(view, checkpoint_id)
    refuse_gone(entry)
    _refuse_abandoned(view, checkpoint_id, "restore to")
    _refuse_unresolved(view)
    return Restored(checkpoint_id=checkpoint_id, by=owner)


def to_subsume(view: TimelineView, num_retained: int) -> Subsumed | None:
    """Step 7: which checkpoints lie beyond the last `num_retained`; `None` where none does.

    Never one that is not committed, never one with a blocked file, never the last, never one that a
    savepoint keeps. Those that a restore left behind go as soon as their files are retracted.
    """
    saved = set(view.savepoints.values())
    beyond = [
        entry
        for entry in view.retained[: -max(1, num_retained)]
        if entry.committed is not None and not entry.committed.blocked and not entry.unfinished_resolutions
    ]
    left = (
        [] if view.retractions else [entry for entry in view.kept if view.is_abandoned(entry.checkpoint_id)]
    )
    subsumable = sorted({entry.checkpoint_id for entry in (*beyond, *left)} - saved)
    return Subsumed(checkpoint_ids=tuple(subsumable)) if subsumable else None


def _entry(view: TimelineView, checkpoint_id: int) -> CheckpointEntry:
    entry = view.checkpoints.get(checkpoint_id)
    if entry is not None:
        return entry
    if 1 <= checkpoint_id <= view.highest_id:
        raise NotFoundError(f"checkpoint {checkpoint_id} was cleaned up", kind=ErrorKind.CHECKPOINT_GONE)
    raise NotFoundError(f"no completed checkpoint {checkpoint_id}", kind=ErrorKind.NO_CHECKPOINT)


def refuse_gone(entry: CheckpointEntry) -> None:
    """Raises: NotFoundError (kind `checkpoint_gone`) where the checkpoint was given up."""
    if entry.subsumed is not None:
        raise NotFoundError(
            f"checkpoint {entry.checkpoint_id} was given up in slot {entry.subsumed.slot}",
            kind=ErrorKind.CHECKPOINT_GONE,
        )


def _refuse_abandoned(view: TimelineView, checkpoint_id: int, what: str) -> None:
    if view.is_abandoned(checkpoint_id):
        raise ConflictError(
            f"cannot {what} checkpoint {checkpoint_id}: a restore left it behind. Its state can be read and "
            "exported while a savepoint keeps it",
            kind=ErrorKind.ABANDONED,
        )


def _refuse_unresolved(view: TimelineView) -> None:
    waiting = view.unfinished_resolutions
    if waiting:
        raise ConflictError(
            f"{waiting[0].name!r} of checkpoint {waiting[0].checkpoint_id} was resolved as "
            f"{waiting[0].resolution}, and that is not finished: run step 6 (compose-commit) first",
            kind=ErrorKind.UNRESOLVED,
        )


def _refuse_applied(view: TimelineView, idempotency_key: str | None) -> None:
    if idempotency_key is None:
        return
    held = view.applied_in(idempotency_key)
    if held is not None:
        raise ConflictError(
            f"batch {idempotency_key!r} is already in checkpoint {held}: there is nothing to do",
            kind=ErrorKind.ALREADY_APPLIED,
        )
