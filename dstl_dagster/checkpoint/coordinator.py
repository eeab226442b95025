"""The control plane of one job: its operations, each a function in a file of its own.

Owns the arguments and promises of each step. Does not own a step (`steps`), going back (`restore`), a look at
everything (`inspect`), or the rules (`timeline.decisions`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from dstl_dagster.checkpoint import restore as restoring
from dstl_dagster.checkpoint.claims import Claim
from dstl_dagster.checkpoint.inspect.audit import Audit, audit
from dstl_dagster.checkpoint.job import Checkpoint, ParentCheck
from dstl_dagster.checkpoint.reader import CheckpointReader
from dstl_dagster.checkpoint.restore import RestorePlan
from dstl_dagster.checkpoint.steps import adopt, clean_up, compose_commit, confirm, record, trigger
from dstl_dagster.checkpoint.steps.clean_up import CleanUp
from dstl_dagster.checkpoint.steps.persist import Files, Handles, as_operator_reports
from dstl_dagster.checkpoint.steps.trigger import Opening
from dstl_dagster.clock import Clock
from dstl_dagster.concurrency import Progress
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import validated_savepoint
from dstl_dagster.keyed import AttemptReport, Manifest, Source
from dstl_dagster.settings import CheckpointOptions, GSFileSystemOptions, Options
from dstl_dagster.storage import ObjectStore, RunningCost
from dstl_dagster.timeline import (
    Attempt,
    BatchKey,
    BatchKeyLike,
    Completed,
    PlannedAttempt,
    Resolution,
    Restored,
    decisions,
)


class CheckpointCoordinator(CheckpointReader):
    """The control plane of one job. Cheap to create; thread-safe.

    Args:
        job: the job's name.
        store: where the job is stored.
        options: of the job: a mapping of keys, `JobOptions`, or `CheckpointOptions` alone. Clean-up looks for
            components of files where they say (temporary bucket, entropy), and a writer for the job with
            `job_options` puts them there.
        owner: of attempts opened here (a Dagster run, a query). An owner that comes back after a crash may
            fence its own attempt without take-over. By default every coordinator is an owner of its own.
        clock, new_id: time and UUIDs, injected for tests.

    Raises: InvalidInputError for a job's name that cannot be one, or names with entropy without a temporary
        bucket of their own.
    """

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
        _require_a_bucket_for_entropy(store, self.job_options.files)
        self._owner = owner or f"coordinator-{new_id()}"

    @property
    def owner(self) -> str:
        return self._owner

    def trigger(
        self,
        take_over: bool | uuid.UUID = False,
        *,
        idempotency_key: BatchKeyLike = None,
        expected_parent: int | object | None = trigger.UNPINNED,
    ) -> Attempt:
        """Step 1: open an attempt on the next checkpoint, on top of the last completed one.

        First finishes what earlier decisions started: publishing files, resolving blocked ones, retracting
        those that a restore abandoned. With `expected_parent` (an id, or `None` for "no checkpoint yet") the
        attempt opens only on exactly that parent. `take_over` fences another owner's open attempt: any, or
        only the one with this id.

        Raises: ConflictError, kind `attempt_open` (another owner's attempt is open; `take_over=True` fences
        it), `already_applied` (a completed checkpoint holds `idempotency_key`), `moved`.
        """
        return trigger.trigger(self._job, self._owner, take_over, idempotency_key, expected_parent)

    def open(self, opening: Opening | None = None) -> tuple[Attempt, Checkpoint | None]:
        """Step 1 for a caller that must see the parent first: the attempt, and the checkpoint it builds on.

        Raises: as `trigger` and `Claim.check`, and what the opening's `check` raises; nothing is opened then.
        """
        return trigger.open_attempt(self._job, self._owner, opening or Opening())

    def applied_batch(self, key: BatchKey | None, claim: Claim | None = None) -> Attempt | None:
        """The attempt that completed this batch; `None` if none did. Before it says so, `claim` is held
        against the last checkpoint: what is applied may have another place now, or be dropped.

        Raises: as `Claim.check` and `Claim.check_applied`.
        """
        latest = self.latest()
        key = trigger.identified(key, latest)
        applied = None if key is None else self.applied_attempt(key)
        if applied is not None:
            trigger.require_fit(self._job, latest, claim, key)
        return applied

    def plan(
        self,
        *,
        check: ParentCheck | None = None,
        claim: Claim | None = None,
    ) -> tuple[PlannedAttempt, Checkpoint | None]:
        """Step 1 without its decision: the attempt that `begin` opens, and the checkpoint it builds on.

        For a caller that learns only in its tasks whether the batch may run. Finishes earlier decisions, as
        `trigger` does. `check` and `claim`: as of `Opening`.

        Raises: as `Claim.check`, and what `check` raises.
        """
        return trigger.plan(self._job, check, claim)

    def begin(self, planned: PlannedAttempt, take_over: bool = False) -> None:
        """Open a planned attempt, unless another process that shares it has. Idempotent while it is open.

        Call it before anything is written under the attempt: clean-up finds only what a record names. Where
        the attempt has been opened already it costs one request.

        Raises: ConflictError (kind `attempt_open`; `already_applied`; `moved`: plan again),
        FencedError (it was open, and has ended).
        """
        trigger.begin(self._job, self._owner, planned, take_over)

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
        report = AttemptReport(as_operator_reports(handles), sources=sources, seconds=persist_seconds)
        return record.record(self._job, attempt, report, files)

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
        return record.record(self._job, attempt, report, report.files, parent, cost)

    def confirm(self, attempt: Attempt, *, manifest: Manifest | None = None) -> Checkpoint:
        """Step 5, the commit point: from here on the checkpoint exists, and there is no way back.

        Idempotent: a repeat returns the same checkpoint. `manifest`: as `record` returned it, if the caller
        still has it.

        Raises: NotFoundError (kind `state_missing`: step 4 was not done), FencedError, ConflictError.
        """
        return confirm.confirm(self._job, attempt, manifest)

    def adopt(
        self,
        state: Checkpoint,
        store: ObjectStore,
        applied: Sequence[BatchKey] = (),
        *,
        parent: int | None,
        progress: Progress | None = None,
    ) -> Checkpoint:
        """Steps 1 to 6 of a checkpoint that takes over another job's: its state, positions and batches.

        Its files are copied, so nothing is shared. The state of `parent`, the last checkpoint, is not in it.

        Args:
            state: the other job's checkpoint, in `store`. The new one has its id, or a higher one.
            applied: the batches that it holds.
            parent: the checkpoint that is the last one; `None`: the job has none.
            progress: called with (files copied, files in total).

        Raises: ConflictError (kind `attempt_open`, `moved`), NotFoundError, FormatError (a file is damaged),
        UnavailableError; the attempt is aborted then.
        """
        return adopt.adopt(self._job, self._owner, parent, state, store, applied, progress)

    def abort(self, attempt: Attempt, reason: str = "by its owner") -> None:
        """End the attempt before step 5. The next clean-up deletes what it left.

        Raises: ConflictError (kind `already_completed`).
        """
        trigger.abort(self._job, attempt, reason)

    def compose_commit(
        self,
        checkpoint_id: int | None = None,
        *,
        attempt: Attempt | None = None,
        progress: Progress | None = None,
    ) -> list[Checkpoint]:
        """Step 6: publish the files of this checkpoint, or of every one that is not published yet.

        Also carries out resolutions of blocked files. Returns the checkpoints it covered, as they are
        afterwards. A file whose name is held by a foreign object is listed in `blocked` and stops no other.
        Idempotent: a published file that a consumer has moved away is not published again.

        `attempt`: the one that made the checkpoint, if the caller has it: that spares a round trip.

        Raises: NotFoundError, UnavailableError (run it again), ConflictError (kind `abandoned`).
        """
        return compose_commit.compose_commit(self._job, checkpoint_id, attempt, progress)

    def clean_up(
        self,
        dry_run: bool = False,
        *,
        num_retained: int | None = None,
        deleted: Callable[[str, int], object] | None = None,
    ) -> CleanUp:
        """Step 7: release savepoints that have ended, subsume checkpoints beyond the last `num_retained` and
        older than `min_age`, and delete what nothing needs.

        `num_retained` overrides the option of that name for this call. `deleted` is called with the URI and
        generation of each object before it goes. What a task writes after its attempt has ended is found by
        the next call.

        Raises: InvalidInputError for a `num_retained` below 1; FormatError, NotFoundError if a retained
        manifest is unreadable; nothing more is deleted then.
        """
        return clean_up.clean_up(self._job, dry_run=dry_run, num_retained=num_retained, deleted=deleted)

    def audit(self) -> Audit:
        """Whether the job is in order: see `Audit`. Writes nothing but a short-lived object that reads the
        server's clock.

        Raises: NotFoundError (kind `no_checkpoint`) if there is no such job; FormatError if the timeline
        itself is unreadable; UnavailableError.
        """
        return audit(self._job)

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

        Raises: InvalidInputError, NotFoundError, ConflictError (the name keeps another
        checkpoint).
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

        Raises: NotFoundError, InvalidInputError, UnavailableError (run it again).
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
        return compose_commit.publish(self._job, checkpoint_id)

    def plan_restore(self, checkpoint_id: int) -> RestorePlan:
        """The plan of `restore`: what it would undo, keep and read. Changes nothing.

        Raises: as `restore`, but for damage, which only reading everything shows.
        """
        return restoring.plan_restore(self._job, checkpoint_id)

    def left_behind(self, restored: Restored) -> tuple[Completed, ...]:
        """The checkpoints that a restore abandoned, oldest first, by its record."""
        return restoring.left_behind(self.timeline, restored)

    def restore(
        self, checkpoint_id: int, *, request_id: uuid.UUID | None = None, expected_last: int | None = None
    ) -> Checkpoint | None:
        """Resume from an earlier checkpoint: its state, its positions. Later checkpoints are abandoned.

        From 0, before the first, the job begins anew. Until a checkpoint completes, readers see the state as
        it was; savepoints can be read and exported as long as they are not released. Returns `None` then.

        First reads all state of the checkpoint, and decides nothing if it is damaged. Ends the open attempt
        of any owner. Files that abandoned checkpoints published are retracted, each only if it is still
        exactly theirs. Their batches may be applied again. With a `request_id` a repeated restore (a retried
        step) happens once. With `expected_last` it happens only while that is the job's last checkpoint: what
        `plan_restore` showed is what goes.

        Raises: NotFoundError (kind `no_checkpoint`, `checkpoint_gone`), ConflictError (kind `abandoned`; kind
        `moved`: another checkpoint than `expected_last` is the last), FormatError (kind `damaged`;
        `newest_verified` finds another one), UnavailableError (run it again).
        """
        return restoring.restore(self._job, checkpoint_id, self._owner, request_id, expected_last)


def _require_a_bucket_for_entropy(store: ObjectStore, options: GSFileSystemOptions) -> None:
    """No prefix lists names that begin with a UUID: clean-up has to list the whole bucket."""
    if options.filesink_entropy_enabled and options.writer_temporary_bucket_name in (None, store.bucket_name):
        raise InvalidInputError(
            "gs.filesink.entropy.enabled needs a bucket for temporary objects alone, so that clean-up finds "
            f"them: set gs.writer.temporary.bucket.name to another bucket than {store.bucket_name!r}"
        )
