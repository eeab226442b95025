"""Step 1: open an attempt on the next checkpoint, on top of the last completed one; and give one up.

Owns the order: what earlier decisions started is finished, the program is held against the parent, a rival is
fenced, the attempt opens. Does not own the rules (`timeline.decisions`, `claims`), or what is finished
(`unfinished`).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from dstl_dagster.checkpoint.claims import Claim
from dstl_dagster.checkpoint.job import Checkpoint, Job, ParentCheck
from dstl_dagster.checkpoint.steps.unfinished import finish, when_finished
from dstl_dagster.keyed import source_id
from dstl_dagster.storage import Origin
from dstl_dagster.timeline import (
    Attempt,
    BatchKey,
    BatchKeyLike,
    Fenced,
    Opened,
    PlannedAttempt,
    TimelineView,
    attempt_id,
    decisions,
)


@dataclass(frozen=True)
class Opening:
    """What step 1 is asked for by a caller that must see the parent first.

    Attributes:
        key: names the batch, which is applied once; `None`: it may be applied again.
        take_over: fence another owner's open attempt: any, or only the one with this id.
        check: called with the parent after earlier decisions are finished, and before anything is opened; the
            attempt opens on exactly that parent.
        claim: the program's, about the batch; refused if it does not fit the parent.
        anew: where the last checkpoint holds this batch, it is applied again: on the state before it, in one
            checkpoint, which stands in its place. `check`, `claim` and the caller see what that one builds
            on.
    """

    key: BatchKeyLike = None
    take_over: bool | uuid.UUID = False
    check: ParentCheck | None = None
    claim: Claim | None = None
    anew: bool = False


UNPINNED: Final = object()
"""In place of a parent: whichever is the last checkpoint."""
_RECORDS_OF_STEP_1 = 3
"""`fenced`, perhaps a snapshot, `opened`."""


def trigger(
    job: Job,
    owner: str,
    take_over: bool | uuid.UUID,
    idempotency_key: BatchKeyLike,
    expected_parent: int | object | None,
) -> Attempt:
    """See `CheckpointCoordinator.trigger`."""

    def once() -> Attempt:
        retracted, batch, on = finish(job), BatchKey.of(idempotency_key), expected_parent
        if batch is not None:
            parent = job.last(job.timeline.seen())
            batch = identified(batch, parent)
            require_fit(job, parent, None, batch)
            if on is UNPINNED:  # on another one, the batch would have another identity
                on = None if parent is None else parent.checkpoint_id
        return _open(job, owner, retracted, take_over, batch, on)

    return when_finished(job, once, from_seen=True)


def open_attempt(job: Job, owner: str, opening: Opening) -> tuple[Attempt, Checkpoint | None]:
    """See `CheckpointCoordinator.open`."""

    def once() -> tuple[Attempt, Checkpoint | None]:
        retracted = finish(job)
        view = job.timeline.seen()
        last, parent = view.last_completed, job.last(view)
        batch = identified(BatchKey.of(opening.key), parent)
        base = None
        if opening.anew and last is not None and last.completed.batch == batch:
            base = last.completed.builds_on or 0
            parent = _base(job, view, base)
        require_fit(job, parent, opening.claim, batch)
        if opening.check is not None:
            opening.check(parent)
        on = None if last is None else last.checkpoint_id
        return _open(job, owner, retracted, opening.take_over, batch, on, base), parent

    return when_finished(job, once, from_seen=True)


def plan(
    job: Job, check: ParentCheck | None, claim: Claim | None
) -> tuple[PlannedAttempt, Checkpoint | None]:
    """See `CheckpointCoordinator.plan`."""
    job.timeline.tail()
    finish(job)
    view = job.timeline.seen()
    parent = job.last(view)
    require_fit(job, parent, claim)
    if check is not None:
        check(parent)
    attempt = Attempt(
        checkpoint_id=view.next_checkpoint_id,
        attempt=attempt_id(job.new_id(), view.timeline_id),
        parent=None if parent is None else parent.checkpoint_id,
        job=job.name,
        store_uri=job.store.uri,
        timeline=view.timeline_id,
        snapshot_slot=view.snapshot_slot,
    )
    return PlannedAttempt(attempt, view.slot), parent


def begin(job: Job, owner: str, planned: PlannedAttempt, take_over: bool) -> None:
    """See `CheckpointCoordinator.begin`."""
    job.timeline.start_at(planned.attempt)
    since, home = job.timeline.records(after_slot=planned.slot), Origin.home_of(job.store)
    if any(
        isinstance(record, Opened) and record.attempt == planned.attempt.attempt
        for record in islice(since, _RECORDS_OF_STEP_1)
    ):
        return

    def once() -> None:
        job.timeline.tail()
        retracted = finish(job)
        fenced = True
        while fenced:
            record = job.timeline.decide(
                lambda view: decisions.to_begin(
                    view, planned, owner=owner, take_over=take_over, retracted=retracted, home=home
                ),
                from_seen=True,
            )
            fenced = isinstance(record, Fenced)

    when_finished(job, once)


def abort(job: Job, attempt: Attempt, reason: str) -> None:
    """See `CheckpointCoordinator.abort`."""
    job.timeline.start_at(attempt)
    job.timeline.decide(lambda view: decisions.to_abort(view, attempt, reason))


def open_to_adopt(job: Job, owner: str, adopted: int, parent: int | None) -> Attempt:
    """An attempt on `parent` that takes over the state of another job's checkpoint `adopted`."""
    return when_finished(
        job, lambda: _open(job, owner, finish(job), False, None, parent, adopted=adopted), from_seen=True
    )


def _open(
    job: Job,
    owner: str,
    retracted: int,
    take_over: bool | uuid.UUID,
    batch: BatchKey | None,
    on: int | object | None,
    base: int | None = None,
    adopted: int | None = None,
) -> Attempt:
    """Fence the open attempt if allowed, then open. `on`: the expected parent, or `UNPINNED`."""
    attempt, home = attempt_id(job.new_id(), job.timeline.seen().timeline_id), Origin.home_of(job.store)

    def next_record(view: TimelineView) -> Fenced | Opened:
        return decisions.to_fence(view, owner, take_over) or decisions.to_open(
            view,
            attempt=attempt,
            owner=owner,
            batch=batch,
            base=base,
            adopted=adopted,
            expected_parent=None if on is UNPINNED else on,  # type: ignore[arg-type] # the sentinel alone is no int
            pin_parent=on is not UNPINNED,
            retracted=retracted,
            home=home,
        )

    opened = None
    while not isinstance(opened, Opened):
        opened = job.timeline.decide(next_record, from_seen=True)
    return Attempt(
        checkpoint_id=opened.checkpoint_id,
        attempt=attempt,
        parent=opened.parent,
        job=job.name,
        store_uri=job.store.uri,
        batch=batch,
        base=opened.base,
        timeline=job.timeline.seen().timeline_id,
        snapshot_slot=job.timeline.seen().snapshot_slot,
    )


def _base(job: Job, view: TimelineView, checkpoint_id: int) -> Checkpoint | None:
    """What a batch that is applied anew builds on; `None` for 0, before the first."""
    if not checkpoint_id:
        return None
    decisions.refuse_gone(decisions.entry_of(view, checkpoint_id))
    return job.checkpoint(view, checkpoint_id)


def identified(batch: BatchKey | None, parent: Checkpoint | None) -> BatchKey | None:
    """The batch as the timeline knows it: a source's name may be another one's by now."""
    if batch is None:
        return None
    on, sources = (None, {}) if parent is None else (parent.checkpoint_id, parent.manifest.sources)
    return replace(batch, source=source_id(sources, batch.source, on))


def require_fit(
    job: Job, parent: Checkpoint | None, claim: Claim | None, batch: BatchKey | None = None
) -> None:
    """Raises: as `Claim.check`, and of a batch that has been applied as `Claim.check_applied`, unless the
    job's options say that unclaimed state is meant.
    """
    if parent is None:
        return
    sources, meant = parent.manifest.sources, job.options.ignore_unclaimed_state
    if claim is not None:
        claim = replace(claim, ignore_unclaimed=True) if meant else claim
        claim.check(sources, parent.manifest.operators, job.name)
    for name, source in sources.items():
        if batch is None or source.id != batch.source or not source.dropped:
            continue
        held = job.timeline.seen().applied_in(batch)
        if held is not None:
            claim = claim or Claim(name, source.by, ignore_unclaimed=meant)
            claim.check_applied(source, held, batch.key, job.name)
