"""When a checkpoint is complete, its files are published, and a blocked file is resolved.

`to_complete` is the commit point: nothing that is written before its record counts, and all of it does after.
"""

from __future__ import annotations

from collections.abc import Sequence

from dstl_dagster.errors import ConflictError, ErrorKind, FencedError, NotFoundError
from dstl_dagster.timeline.attempt import Attempt
from dstl_dagster.timeline.decisions import conditions
from dstl_dagster.timeline.records import (
    BatchKey,
    BlockedFile,
    Committed,
    Completed,
    FinalFile,
    Resolution,
    Resolved,
)
from dstl_dagster.timeline.view import TimelineView


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
    conditions.require_open(view, attempt)
    last = view.last_completed
    parent = None if last is None else last.checkpoint_id
    if parent != attempt.parent:
        raise FencedError(
            f"attempt {attempt.attempt} builds on checkpoint {attempt.parent}, but the last one is {parent}"
        )
    if attempt.base is None:
        conditions.refuse_applied(view, attempt.batch)
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
    entry = conditions.entry_of(view, checkpoint_id)
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
    entry = conditions.entry_of(view, checkpoint_id)
    conditions.refuse_abandoned(view, checkpoint_id, "resolve files of")
    waiting = [each for each in entry.unfinished_resolutions if each.name == name]
    if waiting and waiting[0].resolution is resolution:
        return None
    conditions.refuse_unresolved(waiting)
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
