"""Steps 1 and 3 to 5 of a checkpoint, callable from any process, any number of times.

Owns the order of the steps and what each passes to the next. Does not own the rules (`timeline.decisions`),
the race for a slot (`timeline`), step 6 (`publish`), or the work inside a step (`record`).

    1 trigger   2 append   3 persist   4 record   5 confirm   6 compose-commit   7 clean up

A step may be killed at any request and run again by another process, concurrently with a zombie of itself,
with the same outcome: whatever it has read, its record goes into the slot after that or nowhere.

So a process that has just read the timeline, or written its last record, does not read it again to decide:

* To act on what was seen is safe: if it was stale, the slot is taken, and the rule is asked again. What a
  step does before its record (publish, resolve, retract) is safe for a zombie, and so for a stale view.
* To refuse, or to say that there is nothing to do, is not: that is only ever said of a tail that was read in
  the same step.

What a step looks up does not depend on what the timeline says, so both are asked for at once; if the look-up
fails, it is the timeline, read after it, that says why.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from dstl_dagster.checkpoint.claims import Claim, refuse_unmoved
from dstl_dagster.checkpoint.publish import CheckpointPublisher
from dstl_dagster.checkpoint.reader import Checkpoint
from dstl_dagster.checkpoint.record import build_manifest, checked_report, final_files, with_a_component_each
from dstl_dagster.clock import Clock
from dstl_dagster.concurrency import both
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.keyed import (
    AttemptReport,
    Files,
    Handles,
    Manifest,
    Source,
    as_operator_reports,
    source_id,
    store_manifest,
)
from dstl_dagster.settings import CheckpointOptions, GSFileSystemOptions, Options
from dstl_dagster.storage import (
    OWN_WRITE,
    RECORD,
    CheckpointCost,
    ObjectStore,
    Origin,
    RunningCost,
    cost_note,
)
from dstl_dagster.timeline import (
    Attempt,
    BatchKey,
    BatchKeyLike,
    Completed,
    Fenced,
    Opened,
    PlannedAttempt,
    TimelineView,
    decisions,
)

__all__ = ["CheckpointSteps"]

log = logging.getLogger(__name__)
_RECORDS_OF_STEP_1 = 3
"""`fenced`, perhaps a snapshot, `opened`."""
_UNPINNED = object()


def _identified(batch: BatchKey | None, parent: Checkpoint | None) -> BatchKey | None:
    """The batch as the timeline knows it: a source's name may be another one's by now."""
    if batch is None or not batch.source:
        return batch
    sources = {} if parent is None else parent.manifest.sources
    on = None if parent is None else parent.checkpoint_id
    return replace(batch, source=source_id(sources, batch.source, on))


class CheckpointSteps(CheckpointPublisher):
    """The steps that create one checkpoint of a job. Arguments as for `CheckpointCoordinator`."""

    def __init__(
        self,
        job: str,
        store: ObjectStore,
        options: Options | CheckpointOptions | None = None,
        *,
        owner: str | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        super().__init__(job, store, options, clock=clock, new_id=new_id)
        _require_a_bucket_for_entropy(store, self.file_options)
        self._owner = owner or f"coordinator-{new_id()}"

    def trigger(
        self,
        take_over: bool | uuid.UUID = False,
        *,
        idempotency_key: BatchKeyLike = None,
        expected_parent: int | object | None = _UNPINNED,
    ) -> Attempt:
        """Step 1: open an attempt on the next checkpoint, on top of the last completed one.

        First finishes what earlier decisions started: publishing files, resolving blocked ones, retracting
        those that a restore abandoned. With `expected_parent` (an id, or `None` for "no checkpoint yet") the
        attempt opens only on exactly that parent. `take_over` fences another owner's open attempt: any, or
        only the one with the given id.

        Raises: ConflictError, kind `attempt_open` (another owner's attempt is open; `take_over=True` fences
        it), `already_applied` (a completed checkpoint holds `idempotency_key`), `parent_moved`.
        """

        def begin() -> Attempt:
            retracted, batch = self._finish(), BatchKey.of(idempotency_key)
            if batch is not None and batch.source:
                batch = _identified(batch, self._parent(self.timeline.seen()))
            return self._begin(retracted, take_over, batch, expected_parent)

        return self._when_finished(begin, from_seen=True)

    def open(
        self,
        take_over: bool | uuid.UUID = False,
        *,
        idempotency_key: BatchKeyLike = None,
        check: Callable[[Checkpoint | None], None] | None = None,
        claim: Claim | None = None,
        anew: bool = False,
    ) -> tuple[Attempt, Checkpoint | None]:
        """Step 1 for a caller that must see the parent first: the attempt, and the checkpoint it builds on.

        `check` is called with the parent (`None` for a job's first) after earlier decisions are finished and
        before anything is opened; if it raises, or `claim` does not fit the parent, nothing is opened. The
        attempt opens on exactly that parent.

        With `anew`, where the last checkpoint holds this batch, that is applied again: on the state before
        it, in one checkpoint, which stands in its place. `check`, `claim` and the caller see what that one
        builds on.

        Raises: as `trigger` and `Claim.check`, and what `check` raises.
        """

        def begin() -> tuple[Attempt, Checkpoint | None]:
            retracted = self._finish()
            view = self.timeline.seen()
            last = view.last_completed
            on = None if last is None else last.checkpoint_id
            parent = self._parent(view)
            batch = _identified(BatchKey.of(idempotency_key), parent)
            again = anew and last is not None and last.completed.batch == batch
            base = (last.completed.builds_on or 0) if again and last is not None else None
            if base is not None:
                parent = self._base(view, base)
            self._require_fit(parent, claim)
            if check is not None:
                check(parent)
            return self._begin(retracted, take_over, batch, on, base), parent

        return self._when_finished(begin, from_seen=True)

    def applied_batch(self, key: BatchKey | None, claim: Claim | None = None) -> Attempt | None:
        """The attempt that completed this batch; `None` if none did. Before it says so, `claim` is held
        against the last checkpoint: what is applied may have another place now.

        Raises: as `Claim.check`.
        """
        latest = self.latest()
        key = _identified(key, latest)
        applied = None if key is None else self.applied_attempt(key)
        if applied is not None:
            self._require_fit(latest, claim)
        return applied

    def _require_fit(self, parent: Checkpoint | None, claim: Claim | None) -> None:
        if claim is None or parent is None:
            return
        if self._options.ignore_unclaimed_state:
            claim = replace(claim, ignore_unclaimed=True)
        claim.check(parent.manifest.sources, parent.manifest.operators, self.job)

    def plan(
        self,
        *,
        check: Callable[[Checkpoint | None], None] | None = None,
        claim: Claim | None = None,
    ) -> tuple[PlannedAttempt, Checkpoint | None]:
        """Step 1 without its decision: the attempt that `begin` opens, and the checkpoint it builds on.

        For a caller who learns only in its tasks whether the batch may run. Finishes earlier decisions, as
        `trigger` does. `check` and `claim` are as in `open`.

        Raises: as `Claim.check`, and what `check` raises.
        """
        self.timeline.tail()
        self._finish()
        view = self.timeline.seen()
        parent = self._parent(view)
        self._require_fit(parent, claim)
        if check is not None:
            check(parent)
        attempt = Attempt(
            checkpoint_id=view.next_checkpoint_id,
            attempt=self._new_id(),
            parent=None if parent is None else parent.checkpoint_id,
            job=self.job,
            store_uri=self._store.uri,
            timeline=view.timeline_id,
            snapshot_slot=view.snapshot_slot,
        )
        return PlannedAttempt(attempt, view.slot), parent

    def begin(self, planned: PlannedAttempt, take_over: bool = False) -> None:
        """Open a planned attempt, unless another process that shares it has. Idempotent while it is open.

        Call it before anything is written under the attempt: clean-up finds only what a record names. Where
        the attempt has been opened already it costs one request.

        Raises: ConflictError (kind `attempt_open`; `already_applied`; `parent_moved`: plan again),
        FencedError (it was open, and has ended).
        """
        self.timeline.start_at(planned.attempt)
        since = self.timeline.records(after_slot=planned.slot)
        if any(
            isinstance(record, Opened) and record.attempt == planned.attempt.attempt
            for record in islice(since, _RECORDS_OF_STEP_1)
        ):
            return

        def decide() -> None:
            self.timeline.tail()
            retracted = self._finish()
            fenced = True
            while fenced:
                record = self.timeline.decide(
                    lambda view: decisions.to_begin(
                        view, planned, owner=self._owner, take_over=take_over, retracted=retracted
                    ),
                    from_seen=True,
                )
                fenced = isinstance(record, Fenced)

        self._when_finished(decide)

    def _begin(
        self,
        retracted: int,
        take_over: bool | uuid.UUID,
        batch: BatchKey | None,
        on: int | object | None,
        base: int | None = None,
    ) -> Attempt:
        """Fence the open attempt if allowed, then open. `on`: the expected parent, or `_UNPINNED`."""
        attempt = self._new_id()

        def next_record(view: TimelineView) -> Fenced | Opened:
            return decisions.to_fence(view, self._owner, take_over) or decisions.to_open(
                view,
                attempt=attempt,
                owner=self._owner,
                batch=batch,
                base=base,
                expected_parent=None if on is _UNPINNED else on,  # type: ignore[arg-type] # the sentinel alone is no int
                pin_parent=on is not _UNPINNED,
                retracted=retracted,
            )

        opened = None
        while not isinstance(opened, Opened):
            opened = self.timeline.decide(next_record, from_seen=True)
        return Attempt(
            checkpoint_id=opened.checkpoint_id,
            attempt=attempt,
            parent=opened.parent,
            job=self.job,
            store_uri=self._store.uri,
            batch=batch,
            base=base,
            timeline=self.timeline.seen().timeline_id,
            snapshot_slot=self.timeline.seen().snapshot_slot,
        )

    def record(
        self,
        attempt: Attempt,
        handles: Handles = (),
        files: Files = (),
        positions: Mapping[str, Any] | None = None,
        *,
        persist_seconds: float = 0.0,
    ) -> Manifest:
        """Steps 3 and 4: check what the tasks made durable, and write the manifest. Nothing is visible yet.

        Args:
            handles: what was appended: operator reports, or handle lists by operator.
            files: what was written: file reports, or commit recoverables.
            positions: how far each source has been read, plain JSON by source name; others stay.
            persist_seconds: how long steps 2 and 3 took.

        Raises: FencedError (stop: the attempt is dead), NotFoundError or ConflictError (an object is missing,
        or not as reported; or a target already exists), InvalidInputError.
        """
        sources = {name: Source(position) for name, position in (positions or {}).items()}
        rest = AttemptReport(sources=sources, seconds=persist_seconds)
        return self._record(attempt, handles, files, rest)

    def record_report(
        self,
        attempt: Attempt,
        report: AttemptReport,
        *,
        parent: Checkpoint | None = None,
        cost: RunningCost | None = None,
    ) -> Manifest:
        """`record` for a whole report. `parent`: the attempt's, if the caller has read it already.

        `cost`: of step 4, from where the caller began with it.

        Raises: as `record`.
        """
        return self._record(attempt, report.operators, report.files, report, parent, cost)

    def _record(
        self,
        attempt: Attempt,
        handles: Handles,
        files: Files,
        rest: AttemptReport,
        parent: Checkpoint | None = None,
        cost: RunningCost | None = None,
    ) -> Manifest:
        cost = cost or self.running_cost()
        self.timeline.start_at(attempt)

        def parent_if_open() -> Checkpoint | None:
            view = self.timeline.tail()
            decisions.require_open(view, attempt)
            on = attempt.builds_on
            return parent or (None if on is None else self._get(view, on, self._own_manifest(view, on)))

        def referenced() -> frozenset[str]:
            before = parent_if_open()
            if before is None:
                return frozenset()
            return frozenset(before.manifest.needs())

        given = replace(rest, operators=as_operator_reports(handles), files=())
        options, threads = self.file_options, self._options.commit_threads
        check = partial(
            checked_report, self._store, attempt, given, files, referenced, options, threads=threads
        )
        with self._if_still_open(attempt):
            before, report = both(parent_if_open, check, self._store.capabilities.lookup_threads(threads))
        if before is not None and not self._options.ignore_unclaimed_state:
            refuse_unmoved(before.manifest.sources, report.sources, self.job)
        report = with_a_component_each(self._store, report, attempt, options)
        spent = cost.so_far() + OWN_WRITE
        report = replace(report, cost=(rest.cost or CheckpointCost()).with_step(RECORD, spent))
        manifest = build_manifest(attempt, report, None if before is None else before.manifest)
        self._recorded = store_manifest(self._store, attempt, manifest, self.run_lists)
        log.info("step 4 record: checkpoint %d of job %s", attempt.checkpoint_id, self.job)
        log.info("step 4 record: %s", cost.in_words())
        return self._recorded

    def confirm(self, attempt: Attempt, *, manifest: Manifest | None = None) -> Checkpoint:
        """Step 5, the commit point: from here on the checkpoint exists, and there is no way back.

        Idempotent: a repeat returns the same checkpoint. `manifest`: as `record` returned it, if the caller
        still has it.

        Raises: NotFoundError (kind `no_manifest`: step 4 was not done), FencedError, ConflictError.
        """
        cost = self.running_cost()
        manifest = manifest or self._recorded_by(attempt) or self._read_with_tail(attempt)
        files = final_files(manifest.files)
        name = self._names.manifest(attempt.checkpoint_id, attempt.attempt)
        generation = manifest.generation
        if generation is None and self._store.capabilities.is_local:
            stored = self._store.stat(name)
            generation = None if stored is None else stored.generation

        def complete(view: TimelineView) -> Completed | None:
            return decisions.to_complete(
                view,
                attempt,
                manifest=name,
                manifest_crc32c=manifest.crc32c,
                manifest_generation=generation,
                home=Origin.home_of(self._store),
                files=files,
                seconds=cost.so_far().seconds,
            )

        def note() -> Mapping[str, str]:
            return cost_note(cost.so_far())

        if self.timeline.decide(complete, from_seen=True, note=note) is None:
            self.timeline.decide(
                complete, note=note
            )  # it was complete when last seen: a restore may have abandoned it
        said = cost.in_words()
        log.info(
            "step 5 confirm: checkpoint %d of job %s is complete, %s", attempt.checkpoint_id, self.job, said
        )
        return self._get(self.timeline.seen(), attempt.checkpoint_id, manifest)

    def abort(self, attempt: Attempt, reason: str = "by its owner") -> None:
        """End the attempt before step 5. The next clean-up deletes what it left.

        Raises: ConflictError (kind `already_completed`).
        """
        self.timeline.start_at(attempt)
        self.timeline.decide(lambda view: decisions.to_abort(view, attempt, reason))


def _require_a_bucket_for_entropy(store: ObjectStore, options: GSFileSystemOptions) -> None:
    """No prefix lists names that begin with a UUID: clean-up has to list the whole bucket."""
    if options.filesink_entropy_enabled and options.writer_temporary_bucket_name in (None, store.bucket_name):
        raise InvalidInputError(
            "gs.filesink.entropy.enabled needs a bucket for temporary objects alone, so that clean-up finds "
            f"them: set gs.writer.temporary.bucket.name to another bucket than {store.bucket_name!r}"
        )
