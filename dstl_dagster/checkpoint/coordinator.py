"""The control plane of one job: the steps of a checkpoint, clean-up, and what a person may decide.

Owns step 7, and the decisions that people make (savepoint, release, resolve, restore). Does not own steps 1
to 6 (`steps`), the rules (`timeline.decisions`), or the work they need (`cleanup`, `rollback`, `audit`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from dstl_dagster.checkpoint.audit import Audit, find_damage, first_of_each_attempt
from dstl_dagster.checkpoint.cleanup import CleanUp, collect_garbage
from dstl_dagster.checkpoint.reader import Checkpoint
from dstl_dagster.checkpoint.references import References
from dstl_dagster.checkpoint.rollback import RestorePlan, left_behind, plan_restore
from dstl_dagster.checkpoint.steps import CheckpointSteps
from dstl_dagster.checkpoint.verify import require_undamaged
from dstl_dagster.concurrency import both
from dstl_dagster.errors import FormatError, InvalidInputError, NotFoundError
from dstl_dagster.format import validated_savepoint
from dstl_dagster.timeline import (
    Completed,
    Marks,
    Released,
    Resolution,
    Restored,
    Subsumed,
    TimelineView,
    decisions,
    missing_job,
    refuse_renamed,
    unexplained,
)

__all__ = ["CheckpointCoordinator"]

log = logging.getLogger(__name__)
_SUBSUMED_AT_ONCE = 100
"""By one record: a snapshot repeats it for each of them, as long as they have readers."""


class CheckpointCoordinator(CheckpointSteps):
    """The control plane of one job. Cheap to create; thread-safe.

    Args:
        job: the job's name.
        store: where the job is stored.
        options: of the job: a mapping of keys, `JobOptions`, or `CheckpointOptions` alone. Clean-up looks for
            components of files where they say (temporary bucket, entropy), and who writes for the job with
            `job_options` puts them there.
        owner: who opens attempts here (a Dagster run, a query). An owner that comes back after a crash may
            fence its own attempt without take-over. By default every coordinator is an owner of its own.
        clock, new_id: time and UUIDs, injected for tests.

    Raises: InvalidInputError for a job's name that cannot be one, or names with entropy without a temporary
        bucket of their own.
    """

    def clean_up(self, dry_run: bool = False, *, num_retained: int | None = None) -> CleanUp:
        """Step 7: release savepoints that have ended, subsume checkpoints beyond the last `num_retained` and
        older than `min_age`, and delete what nothing needs.

        `num_retained` overrides the option of that name for this call. What a task writes after its attempt
        has ended is found by the next call.

        Raises: FormatError, NotFoundError if a retained manifest is unreadable; nothing more is deleted then.
        """
        cost = self.running_cost()
        keep = num_retained or self._options.num_retained
        marks = Marks(self._store, self._names)
        now = self._clock.now()
        before = now - self._options.min_age if self._options.min_age else None

        def subsume() -> tuple[int, ...]:
            if not dry_run:
                return self._subsume(keep, now, before)
            view = self.timeline.tail()
            view = view.if_released(decisions.ended_savepoints(view, now))
            record = decisions.to_subsume(view, keep, before)
            return () if record is None else record.checkpoint_ids

        threads = self._store.capabilities.lookup_threads(self._options.commit_threads)
        subsumed, _ = both(subsume, marks.find, threads)
        report = self._collect(dry_run=dry_run, marks=marks, subsuming=subsumed if dry_run else ())
        log.info("step 7 clean up: job %s, %d objects deleted", self.job, report.objects)
        log.info("step 7 clean up: %s", cost.in_words())
        return replace(report, subsumed=subsumed)

    def _subsume(self, keep: int, now: datetime, before: datetime | None) -> tuple[int, ...]:
        subsumed: list[int] = []

        def next_record(view: TimelineView) -> Released | Subsumed | None:
            released = decisions.to_release_ended(view, now)
            if released is not None:
                return released
            record = decisions.to_subsume(view, keep, before)
            return record and replace(record, checkpoint_ids=record.checkpoint_ids[:_SUBSUMED_AT_ONCE])

        while True:
            record = self.timeline.decide(next_record)
            if isinstance(record, Released):
                continue
            ids = record.checkpoint_ids if isinstance(record, Subsumed) else ()
            subsumed += ids
            if len(ids) < _SUBSUMED_AT_ONCE:
                return tuple(subsumed)

    def _collect(
        self,
        *,
        dry_run: bool,
        marks: Marks | None = None,
        references: References | None = None,
        subsuming: Sequence[int] = (),
    ) -> CleanUp:
        return collect_garbage(
            self._store,
            self.timeline,
            self._names,
            self.file_options,
            reader_grace=self._options.reader_grace,
            dry_run=dry_run,
            threads=self._options.commit_threads,
            clock=self._clock,
            marks=marks,
            references=references,
            subsuming=subsuming,
        )

    def audit(self) -> Audit:
        """Whether the job is in order: see `Audit`. Writes nothing but a short-lived object that reads the
        server's clock.

        Raises: NotFoundError (kind `no_checkpoint`) if there is no such job; FormatError if the timeline
        itself is unreadable; UnavailableError.
        """
        garbage: CleanUp | None = None
        threads = self._options.commit_threads
        attempts = first_of_each_attempt(self._store, self._names)
        view = self.timeline.tail()
        if not view.slot:
            raise missing_job(self._store, self.job)
        for entry in view.kept[:1]:
            refuse_renamed(self._store, self.job, entry.completed.manifest)
        references = References(self._store, threads=threads)
        references.read_ahead(view.kept)
        try:
            garbage = self._collect(dry_run=True, references=references)
        except (FormatError, NotFoundError) as error:
            log.warning("cannot determine the garbage of job %s: %s", self.job, error)
        view = self.timeline.tail()
        damage = find_damage(self._store, self._names, view, references, threads=threads)
        found = [(name, attempt) for attempt, name in attempts.items()]
        lost = unexplained(found, view, self._store.capabilities.lookup_threads(threads))
        return Audit.of(view, damage, sorted(lost), garbage)

    def savepoint(
        self,
        checkpoint_id: int,
        name: str,
        *,
        until: datetime | None = None,
        request_id: uuid.UUID | None = None,
    ) -> Checkpoint:
        """Keep a checkpoint under a name, regardless of retention, until `release`. Idempotent.

        `until`: the first clean-up after that time releases it. Asked for again, it is the new end.

        Raises: InvalidInputError, NotFoundError, ConflictError (kind `savepoint_exists`: the name keeps
        another checkpoint).
        """
        validated_savepoint(name)
        if until is not None and until.tzinfo is None:
            raise InvalidInputError(f"the end of savepoint {name!r} needs a time zone: {until.isoformat()}")
        self.timeline.decide(
            lambda view: decisions.to_savepoint(view, checkpoint_id, name, until), request_id=request_id
        )
        return self.get(checkpoint_id)

    def release(self, name: str, *, request_id: uuid.UUID | None = None) -> bool:
        """Release a savepoint, so that retention applies to its checkpoint again. False if there is none."""
        released = self.timeline.decide(lambda view: decisions.to_release(view, name), request_id=request_id)
        return released is not None

    def resolve(
        self,
        checkpoint_id: int,
        name: str,
        resolution: Resolution | str,
        *,
        request_id: uuid.UUID | None = None,
    ) -> Checkpoint:
        """Resolve a blocked file: `keep` the foreign object, or `replace` it.

        Only the foreign object that blocked the file when step 6 ran is ever deleted: if another one has
        taken the name since, the file is blocked again. Returns the checkpoint as it is afterwards.

        Raises: NotFoundError (kind `not_blocked`), InvalidInputError, UnavailableError (run it again).
        """
        try:
            chosen = Resolution(resolution)
        except ValueError as error:
            raise InvalidInputError(
                f"a blocked file is resolved by keep or replace, not {resolution!r}"
            ) from error
        self.timeline.decide(
            lambda view: decisions.to_resolve(view, checkpoint_id, name, chosen), request_id=request_id
        )
        return self._publish(checkpoint_id, None)

    def plan_restore(self, checkpoint_id: int) -> RestorePlan:
        """What `restore` would undo, keep and read. Changes nothing.

        Raises: as `restore`, but for damage, which only reading everything shows.
        """
        view = self.timeline.tail()
        return plan_restore(self._store, self.timeline, view, self._get(view, checkpoint_id).manifest)

    def left_behind(self, restored: Restored) -> tuple[Completed, ...]:
        """The checkpoints that a restore abandoned, oldest first, by its record."""
        return left_behind(self.timeline, restored)

    def restore(
        self, checkpoint_id: int, *, request_id: uuid.UUID | None = None, expected_last: int | None = None
    ) -> Checkpoint:
        """Resume from an earlier checkpoint: its state, its positions. Later checkpoints are abandoned.

        First reads all state of the checkpoint, and decides nothing if it is damaged. Ends the open attempt,
        whoever owns it. Files that abandoned checkpoints published are retracted, each only if it is still
        exactly theirs. Their batches may be applied again. With a `request_id` a repeated restore (a retried
        step) happens once. With `expected_last` it happens only while that is the job's last checkpoint: what
        `plan_restore` showed is what goes.

        Raises: NotFoundError (kind `no_checkpoint`, `checkpoint_gone`), ConflictError (kind `abandoned`; kind
        `parent_moved`: another checkpoint than `expected_last` is the last), FormatError (kind `damaged`;
        `newest_verified` finds another one), UnavailableError (run it again).
        """
        manifest = self.get(checkpoint_id).manifest
        try:
            require_undamaged(self._store, manifest, threads=self._options.commit_threads)
        except FormatError:
            decisions.refuse_gone(self.get(checkpoint_id).entry)  # subsumed meanwhile: gone, not damaged
            raise

        def restore_now() -> None:
            self._finish_resolutions()
            self.timeline.decide(
                lambda view: decisions.to_restore(view, checkpoint_id, self._owner, expected_last),
                request_id=request_id,
            )

        self._when_finished(restore_now)
        self._retract()
        log.info("job %s resumes from checkpoint %d", self.job, checkpoint_id)
        return self.get(checkpoint_id)
