"""Whether a job may resume from an earlier checkpoint, or begin anew."""

from __future__ import annotations

from dstl_dagster.errors import ConflictError, ErrorKind
from dstl_dagster.timeline.decisions import conditions
from dstl_dagster.timeline.records import Restored
from dstl_dagster.timeline.view import TimelineView


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
    conditions.refuse_unresolved(view.unfinished_resolutions)
    return Restored(checkpoint_id=checkpoint_id, by=owner)


def require_target(view: TimelineView, checkpoint_id: int) -> None:
    """Raises: NotFoundError, ConflictError (kind `abandoned`) unless a restore may go there."""
    if checkpoint_id or not view.highest_id:
        conditions.refuse_gone(conditions.entry_of(view, checkpoint_id))
        conditions.refuse_abandoned(view, checkpoint_id, "restore to")


def _refuse_moved(view: TimelineView, expected_last: int) -> None:
    """Raises: ConflictError (kind `moved`) unless the last checkpoint is the confirmed one."""
    if (view.last_completed_id or 0) != expected_last:
        raise ConflictError(
            f"the job's last checkpoint is now {view.last_completed_id}, but the restore was confirmed from "
            f"{expected_last}: nothing was changed; look at what it would undo now, then confirm that",
            kind=ErrorKind.MOVED,
        )
