"""Retention: which checkpoints stay. Savepoints, their end, and those that clean-up may subsume.

Owns these rules, pure functions as in `decisions`. Does not own what is deleted then (`checkpoint.steps`).
"""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from dstl_dagster.errors import ConflictError
from dstl_dagster.timeline import decisions
from dstl_dagster.timeline.records import Released, Savepoint, Subsumed
from dstl_dagster.timeline.view import TimelineView


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
    decisions.refuse_gone(decisions.entry_of(view, checkpoint_id))
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
