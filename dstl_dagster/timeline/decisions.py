"""The rules: which record may come next. Pure functions from a view of the timeline to a record.

Owns every rule about the steps, about an attempt whose owner is dead or only seems so, and about which
checkpoints stay, with the words of a refusal. Does not own the race for the slot (`Timeline.decide`), which
calls a rule again from the new tail whenever a rival wins the slot, or what is deleted then
(`checkpoint.steps`). Each function returns the record to append, or `None` if the decision has already been
made (so that every step may run any number of times), or raises.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from dstl_dagster.errors import ConflictError, ErrorKind, FencedError, NotFoundError
from dstl_dagster.format import readable_time
from dstl_dagster.timeline.attempt import Attempt, PlannedAttempt
from dstl_dagster.timeline.records import (
    Aborted,
    BatchKey,
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

# ---- which attempt may be open; where a zombie stops ----


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
            f"(since {readable_time(rival.recorded_at)}). Wait for it or, if it is dead, "
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
    home: str = "",
) -> Opened:
    """Step 1, second half: open the attempt on the next checkpoint.

    `retracted` is the slot of the newest restore whose abandoned files the caller has retracted. With
    `pin_parent` the parent must be `expected_parent`, so that what the caller checked about it still holds.
    `base`: apply the last checkpoint's batch anew, on what that was built on. `adopted`: take over the state
    of another job's checkpoint of this id; the next one's is not lower, as runs of state are in its order.
    `home`: as of the record.

    Raises: ConflictError (kind `attempt_open`, `already_applied`, `moved`, `unfinished`).
    """
    if view.open_attempt is not None:
        raise _opened_meanwhile(view.open_attempt)
    last = view.last_completed
    parent = None if last is None else last.checkpoint_id
    if adopted is not None:
        base = None if parent is None else 0
    elif base is None:
        refuse_applied(view, batch)
    else:
        _require_base(view, batch, base)
    refuse_unresolved(view.unfinished_resolutions)
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
        home=home,
    )


def to_begin(
    view: TimelineView,
    planned: PlannedAttempt,
    *,
    owner: str,
    take_over: bool,
    retracted: int,
    home: str = "",
) -> Fenced | Opened | None:
    """Step 1 of a planned attempt, by any of several processes that share it: fence its rival, then open it.
    `None` if it is open.

    Fences only what was open when the attempt was planned, so that a task which outlived its driver never
    ends the attempt of the driver after it. `retracted` and `home` are as in `to_open`.

    Raises: ConflictError (kind `moved`: plan again; else as `to_fence` and `to_open`), FencedError (it
    was open, and has ended).
    """
    attempt, rival = planned.attempt, view.open_attempt
    try:
        require_open(view, attempt)
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
        home=home,
    )


def to_abort(view: TimelineView, attempt: Attempt, reason: str) -> Aborted | None:
    """Abort the attempt; `None` if it is dead already.

    Raises: ConflictError (kind `already_completed`): after step 5 there is no way back; NotFoundError.
    """
    fate = view.fate(attempt.attempt)
    if fate is not None and fate.ending is not Ending.SUBSUMED:
        return None
    require_open(view, attempt)
    return Aborted(attempt=attempt.attempt, checkpoint_id=attempt.checkpoint_id, reason=reason)


def _require_base(view: TimelineView, batch: BatchKey | None, base: int) -> None:
    """The last checkpoint holds this batch, and builds on `base`, which is there."""
    last = view.last_completed
    if last is None or last.completed.batch != batch or (last.completed.builds_on or 0) != base:
        raise _parent_moved(None if last is None else last.checkpoint_id, base)
    if base:
        refuse_gone(entry_of(view, base))


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


# ---- a checkpoint is complete, its files are published, a blocked file is resolved ----


def to_complete(
    view: TimelineView,
    attempt: Attempt,
    *,
    manifest: str,
    files: Sequence[FinalFile],
    seconds: float,
    manifest_crc32c: int | None = None,
    manifest_generation: int | None = None,
    home: str = "",
    applied: Sequence[BatchKey] = (),
) -> Completed | None:
    """Step 5, the commit point; `None` if this attempt has already completed its checkpoint.

    `applied`: the batches of the state that it took over from another job.

    Raises: as `require_open`; FencedError also if a restore has abandoned that checkpoint since, or another
    parent is the last checkpoint now; ConflictError (kind `already_applied`).
    """
    if view.completed_by(attempt.attempt, attempt.checkpoint_id) is not None:
        if view.is_abandoned(attempt.checkpoint_id):
            raise FencedError(
                f"attempt {attempt.attempt} completed checkpoint {attempt.checkpoint_id}, but a restore has "
                "abandoned it since: start again from step 1"
            )
        return None
    require_open(view, attempt)
    last = view.last_completed
    parent = None if last is None else last.checkpoint_id
    if parent != attempt.parent:
        raise FencedError(
            f"attempt {attempt.attempt} builds on checkpoint {attempt.parent}, but the last one is {parent}"
        )
    if attempt.base is None:
        refuse_applied(view, attempt.batch)
    return Completed(
        attempt=attempt.attempt,
        checkpoint_id=attempt.checkpoint_id,
        parent=attempt.parent,
        manifest=manifest,
        files=tuple(files),
        batch=attempt.batch,
        base=attempt.base,
        seconds=seconds,
        manifest_crc32c=manifest_crc32c,
        manifest_generation=manifest_generation,
        home=home,
        owner="" if view.open_attempt is None else view.open_attempt.owner,
        applied=tuple(applied),
    )


def to_commit(
    view: TimelineView,
    checkpoint_id: int,
    *,
    published: Sequence[str],
    blocked: Sequence[BlockedFile],
    seconds: float,
    resolved_slot: int = 0,
) -> Committed | None:
    """End of step 6; `None` if it is already recorded.

    `resolved_slot` is the slot of the newest resolution that the outcome includes; if the timeline has a
    newer one, the outcome is stale and nothing is recorded.

    Raises: NotFoundError, ConflictError (kind `abandoned`).
    """
    entry = entry_of(view, checkpoint_id)
    if entry.subsumed is not None:
        return None
    if view.is_abandoned(checkpoint_id):
        raise ConflictError(
            f"a restore abandoned checkpoint {checkpoint_id}: its files are not published",
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
    """A person's resolution of one blocked file; `None` if the same one is already being carried out.

    Raises: NotFoundError, ConflictError (kind `unfinished`: a different resolution is
    being carried out; kind `abandoned`).
    """
    entry = entry_of(view, checkpoint_id)
    refuse_abandoned(view, checkpoint_id, "resolve files of")
    waiting = [each for each in entry.unfinished_resolutions if each.name == name]
    if waiting and waiting[0].resolution is resolution:
        return None
    refuse_unresolved(waiting)
    blocked = () if entry.committed is None else entry.committed.blocked
    found = next((file for file in blocked if file.name == name), None)
    if found is None:
        names = ", ".join(repr(file.name) for file in blocked) or "none"
        raise NotFoundError(f"{name!r} is not a blocked file of checkpoint {checkpoint_id}; blocked: {names}")
    return Resolved(
        checkpoint_id=checkpoint_id,
        name=name,
        resolution=resolution,
        foreign_generation=found.foreign_generation,
    )


# ---- resuming from an earlier checkpoint, or anew ----


def to_restore(
    view: TimelineView, checkpoint_id: int, owner: str, expected_last: int | None = None
) -> Restored:
    """Resume from an earlier checkpoint, or before the first (0). Ends the open attempt, of any owner.

    With `expected_last` only from exactly that checkpoint: a person confirmed what goes.

    Raises: NotFoundError, ConflictError (kind `abandoned`; kind `unfinished`: finish that first; kind
    `moved`).
    """
    require_target(view, checkpoint_id)
    if expected_last is not None:
        _refuse_moved(view, expected_last)
    refuse_unresolved(view.unfinished_resolutions)
    return Restored(checkpoint_id=checkpoint_id, by=owner)


def require_target(view: TimelineView, checkpoint_id: int) -> None:
    """Raises: NotFoundError, ConflictError (kind `abandoned`) unless a restore may go there."""
    if checkpoint_id or not view.highest_id:
        refuse_gone(entry_of(view, checkpoint_id))
        refuse_abandoned(view, checkpoint_id, "restore to")


def _refuse_moved(view: TimelineView, expected_last: int) -> None:
    """Raises: ConflictError (kind `moved`) unless the last checkpoint is the confirmed one."""
    if (view.last_completed_id or 0) != expected_last:
        raise ConflictError(
            f"the job's last checkpoint is now {view.last_completed_id}, but the restore was confirmed from "
            f"{expected_last}: nothing was changed; look at what it would undo now, then confirm that",
            kind=ErrorKind.MOVED,
        )


# ---- retention: savepoints, and what clean-up may subsume ----


def to_savepoint(
    view: TimelineView, checkpoint_id: int, name: str, until: datetime | None = None
) -> Savepoint | None:
    """Keep a checkpoint under a name, until then; `None` if that name already keeps it so long.

    An abandoned checkpoint may be retained too: it can be read and exported, but not restored to.

    Raises: NotFoundError (kind `checkpoint_gone`, `no_checkpoint`), ConflictError.
    """
    kept = view.savepoints.get(name)
    if kept == checkpoint_id and view.savepoint_ends.get(name) == until:
        return None
    if kept not in (None, checkpoint_id):
        raise ConflictError(
            f"savepoint {name!r} already retains checkpoint {kept}: release it first, or use another name"
        )
    refuse_gone(entry_of(view, checkpoint_id))
    return Savepoint(checkpoint_id=checkpoint_id, name=name, until=until)


def to_release(view: TimelineView, name: str) -> Released | None:
    """Release a savepoint; `None` if no savepoint has the name."""
    kept = view.savepoints.get(name)
    return None if kept is None else Released(checkpoint_id=kept, name=name)


def ended_savepoints(view: TimelineView, now: datetime) -> list[str]:
    """The savepoints that step 7 releases, ascending."""
    return sorted(name for name, until in view.savepoint_ends.items() if until <= now)


def to_release_ended(view: TimelineView, now: datetime) -> Released | None:
    """Release the first savepoint whose time is over; `None` if there is none."""
    ended = ended_savepoints(view, now)
    return to_release(view, ended[0]) if ended else None


def to_subsume(view: TimelineView, num_retained: int, before: datetime | None = None) -> Subsumed | None:
    """Step 7: subsume the checkpoints beyond the last `num_retained`; `None` if there are none.

    With `before` only those in whose place another one was by then, so that what remains says where the job
    stood at any time since.

    Never one that is not committed, has a blocked file, is the last one or seen by readers, or held by a
    savepoint. Abandoned ones are subsumed as soon as their files are retracted.
    """
    saved = {*view.savepoints.values(), view.shown_id}
    if view.open_attempt is not None and view.open_attempt.base:
        saved.add(view.open_attempt.base)
    retained = view.retained
    beyond = [
        entry
        for entry, following in pairwise(retained[: 1 - num_retained if num_retained > 1 else None])
        if (before is None or following.completed.recorded_at <= before)
        and entry.committed is not None
        and not entry.committed.blocked
        and not entry.unfinished_resolutions
    ]
    abandoned = (
        [] if view.retractions else [entry for entry in view.kept if view.is_abandoned(entry.checkpoint_id)]
    )
    subsumable = sorted({entry.checkpoint_id for entry in (*beyond, *abandoned)} - saved)
    return Subsumed(checkpoint_ids=tuple(subsumable)) if subsumable else None


# ---- conditions that several rules require ----


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
