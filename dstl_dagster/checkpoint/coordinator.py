"""The seven steps of a checkpoint, callable from any process, any number of times.

Owns the order of the steps and what each hands to the next, and the decisions that people make (savepoint,
resolve, restore). Does not own the rules (`decisions`), the race for a slot (`timeline`), or the work inside
a step (`record`, `compose_commit`, `resolve`, `rollback`, `cleanup`).

    1 trigger   2 append   3 persist   4 record   5 confirm   6 compose-commit   7 clean up

Each step re-reads the timeline, so it may be killed at any request and run again by another process,
beside a zombie of itself, with the same outcome.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from dstl_dagster.checkpoint.audit import Audit, find_damage
from dstl_dagster.checkpoint.checkpoint import Checkpoint
from dstl_dagster.checkpoint.cleanup import CleanUp, collect_garbage
from dstl_dagster.checkpoint.compose_commit import publish_files
from dstl_dagster.checkpoint.reader import CheckpointReader
from dstl_dagster.checkpoint.record import (
    Files,
    Handles,
    as_file_reports,
    as_operator_reports,
    build_manifest,
    final_files,
    verify_report,
)
from dstl_dagster.checkpoint.resolve import finish_resolutions
from dstl_dagster.checkpoint.rollback import retract_abandoned
from dstl_dagster.checkpoint.verify import require_undamaged
from dstl_dagster.clock import Clock
from dstl_dagster.errors import ConflictError, FormatError, InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.format.names import validated_job
from dstl_dagster.keyed.manifest import Manifest, load_manifest, store_manifest
from dstl_dagster.keyed.reports import AttemptReport
from dstl_dagster.settings.checkpoint import CheckpointOptions
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import decisions
from dstl_dagster.timeline.attempt import Attempt
from dstl_dagster.timeline.records import Opened, Resolution

__all__ = ["CheckpointCoordinator"]

log = logging.getLogger(__name__)
_MAX_ROUNDS = 100
R = TypeVar("R")
_UNPINNED = object()


class CheckpointCoordinator(CheckpointReader):
    """The control plane of one job. Cheap to make; may be used from several threads.

    Args:
        job: the job's name.
        store: where the job lives.
        options: retention and commit settings.
        owner: who opens attempts here (a Dagster run, a query). The same owner, come back after a crash,
            fences its own attempt without asking. Without one, every coordinator is its own owner.
        file_options: how components of files are named (temporary bucket, entropy).
        clock, new_id: time and UUIDs, injected for tests.
    """

    def __init__(
        self,
        job: str,
        store: ObjectStore,
        options: CheckpointOptions | None = None,
        *,
        owner: str | None = None,
        file_options: GSFileSystemOptions | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        super().__init__(job, store, options, clock=clock, new_id=new_id)
        self._file_options = file_options or GSFileSystemOptions()
        self._owner = owner or f"coordinator-{new_id()}"

    @property
    def file_options(self) -> GSFileSystemOptions:
        """How components of the job's files are named; whoever writes them must use the same."""
        return self._file_options

    def trigger(
        self,
        take_over: bool = False,
        *,
        idempotency_key: str | None = None,
        expected_parent: int | object | None = _UNPINNED,
    ) -> Attempt:
        """Step 1: open an attempt on the next checkpoint, on top of the last completed one.

        First finishes what earlier decisions began: files that are not published, words on blocked files,
        the retraction of what a restore left behind. With `expected_parent` (an id, or `None` for "no
        checkpoint yet") the attempt opens only on exactly that parent.

        Raises: ConflictError, kind `attempt_open` (another owner's attempt is alive; `take_over=True`
        ends it), `already_applied` (a completed checkpoint holds `idempotency_key`), `parent_moved`.
        """
        attempt = self._new_id()

        def open_now(retracted: int) -> Opened | None:
            self.timeline.decide(lambda view: decisions.to_fence(view, self._owner, take_over))
            return self.timeline.decide(
                lambda view: decisions.to_open(
                    view,
                    attempt=attempt,
                    owner=self._owner,
                    idempotency_key=idempotency_key,
                    expected_parent=None if expected_parent is _UNPINNED else expected_parent,  # type: ignore[arg-type] # the sentinel alone is no int
                    pin_parent=expected_parent is not _UNPINNED,
                    retracted=retracted,
                )
            )

        opened = self._when_finished(lambda: open_now(self._finish()))
        assert opened is not None
        return Attempt(
            checkpoint_id=opened.checkpoint_id,
            attempt=attempt,
            parent=opened.parent,
            job=self.job,
            store_uri=self._store.uri,
            idempotency_key=idempotency_key,
        )

    def require_open(self, attempt: Attempt) -> None:
        """Raises where nothing may be done any more under this attempt's name (see `decisions`)."""
        decisions.require_open(self.timeline.tail(), attempt)

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
            handles: what was appended: reports of operators, or handle lists by operator.
            files: what was written: reports of files, or their commit recoverables.
            positions: how far each source is read, plain JSON by source name.

        Raises: FencedError (stop: the attempt is dead), NotFoundError or ConflictError (an object is not
        there, or not as reported; or a target exists already), InvalidInputError.
        """
        view = self.timeline.tail()
        decisions.require_open(view, attempt)
        report = AttemptReport(
            operators=as_operator_reports(handles),
            files=as_file_reports(files, self._store, self._file_options),
            positions=dict(positions or {}),
            seconds=persist_seconds,
        )
        verify_report(self._store, report, attempt)
        parent = None if attempt.parent is None else self._get(view, attempt.parent).manifest
        manifest = build_manifest(attempt, report, parent)
        store_manifest(self._store, attempt, manifest)
        log.info("step 4 record: checkpoint %d of job %s", attempt.checkpoint_id, self.job)
        return manifest

    def confirm(self, attempt: Attempt) -> Checkpoint:
        """Step 5, the commit point: from here on the checkpoint exists and there is only forward.

        Run again, returns the same checkpoint.

        Raises: NotFoundError (kind `no_manifest`: step 4 was not done), FencedError, ConflictError.
        """
        started = self._clock.monotonic_seconds()
        name = self._names.manifest(attempt.checkpoint_id, attempt.attempt)
        try:
            manifest = load_manifest(self._store, name)
        except NotFoundError:
            self.require_open(attempt)  # a dead attempt's manifest was cleaned up: say that it is dead
            raise
        self.timeline.decide(
            lambda view: decisions.to_complete(
                view,
                attempt,
                manifest=name,
                files=final_files(manifest.files),
                seconds=self._clock.monotonic_seconds() - started,
            )
        )
        log.info("step 5 confirm: checkpoint %d of job %s is complete", attempt.checkpoint_id, self.job)
        return self._get(self.timeline.tail(), attempt.checkpoint_id, manifest)

    def abort(self, attempt: Attempt, reason: str = "given up by its owner") -> None:
        """End the attempt before step 5. What it left is deleted by the next clean-up.

        Raises: ConflictError (kind `already_completed`).
        """
        self.timeline.decide(lambda view: decisions.to_abort(view, attempt, reason))

    def compose_commit(
        self, checkpoint_id: int | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> list[Checkpoint]:
        """Step 6: publish the files of this checkpoint, or of every one that is not published yet.

        Also finishes what a person said about blocked files. Returns the checkpoints that were looked at,
        as they are afterwards. A file whose name a foreign object has is listed in `blocked` and stops
        nothing else. Run again, changes nothing: a file that was taken away afterwards does not come back.

        Raises: NotFoundError, UnavailableError (run it again), ConflictError (kind `abandoned`).
        """
        view = self.timeline.tail()
        unfinished = {entry.checkpoint_id for entry in view.uncommitted}
        unfinished |= {resolved.checkpoint_id for resolved in view.unfinished_resolutions}
        wanted = sorted(unfinished) if checkpoint_id is None else [checkpoint_id]
        return [self._publish(each, progress) for each in wanted]

    def _publish(self, checkpoint_id: int, progress: Callable[[int, int], None] | None) -> Checkpoint:
        checkpoint = self._get(self.timeline.seen(), checkpoint_id)
        committed, resolutions = checkpoint.entry.committed, checkpoint.entry.unfinished_resolutions
        if committed is not None and not resolutions:
            return checkpoint
        if checkpoint.abandoned:
            raise ConflictError(
                f"checkpoint {checkpoint_id} was left behind by a restore: its files are not published",
                kind="abandoned",
            )
        started = self._clock.monotonic_seconds()
        threads = self._options.commit_threads
        if committed is None:
            publication = publish_files(
                self._store, checkpoint.manifest, self._file_options, threads=threads, progress=progress
            )
        else:
            publication = finish_resolutions(
                self._store, checkpoint.manifest, committed, resolutions, self._file_options, threads=threads
            )
        self.timeline.decide(
            lambda view: decisions.to_commit(
                view,
                checkpoint_id,
                published=publication.published,
                blocked=publication.blocked,
                seconds=self._clock.monotonic_seconds() - started,
                resolved_slot=max((each.slot for each in resolutions), default=0),
            )
        )
        log.info("step 6 compose-commit: checkpoint %d of job %s", checkpoint_id, self.job)
        return self._get(self.timeline.seen(), checkpoint_id, checkpoint.manifest)

    def clean_up(self, dry_run: bool = False, *, num_retained: int | None = None) -> CleanUp:
        """Step 7: give up checkpoints beyond the last `num_retained`, and delete what nothing needs.

        `num_retained` stands in for the option of that name, for this once.

        Raises: FormatError, NotFoundError where a retained manifest is unreadable; nothing is deleted then.
        """
        keep = num_retained or self._options.num_retained
        if dry_run:
            record = decisions.to_subsume(self.timeline.tail(), keep)
        else:
            record = self.timeline.decide(lambda view: decisions.to_subsume(view, keep))
        report = self._collect(dry_run=dry_run)
        log.info("step 7 clean up: job %s, %d objects deleted", self.job, report.objects)
        return replace(report, subsumed=() if record is None else record.checkpoint_ids)

    def _collect(self, *, dry_run: bool) -> CleanUp:
        return collect_garbage(
            self._store,
            self.timeline,
            self._names,
            self._file_options,
            reader_grace=self._options.reader_grace,
            dry_run=dry_run,
            threads=self._options.commit_threads,
        )

    def audit(self) -> Audit:
        """Whether the job is in order: see `Audit`. Changes nothing but asks the server for its time.

        Raises: FormatError where the timeline itself is unreadable, UnavailableError.
        """
        garbage: CleanUp | None = None
        try:
            garbage = self._collect(dry_run=True)
        except (FormatError, NotFoundError) as error:
            log.warning("cannot tell garbage of job %s: %s", self.job, error)
        view = self.timeline.tail()
        damage = find_damage(self._store, self._names, view, threads=self._options.commit_threads)
        return Audit.of(view, damage, garbage)

    def savepoint(self, checkpoint_id: int, name: str, *, request_id: uuid.UUID | None = None) -> Checkpoint:
        """Keep a checkpoint under a name, whatever retention says, until `release`. Again, changes nothing.

        Raises: NotFoundError, ConflictError (kind `savepoint_exists`: the name keeps another checkpoint).
        """
        validated_job(name)
        self.timeline.decide(
            lambda view: decisions.to_savepoint(view, checkpoint_id, name), request_id=request_id
        )
        return self.get(checkpoint_id)

    def release(self, name: str, *, request_id: uuid.UUID | None = None) -> bool:
        """Give a savepoint up; the next clean-up treats its checkpoint like others. False: there is none."""
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
        """Say what becomes of a blocked file, and do it: `keep` the foreign object, or `replace` it.

        Only the foreign object that blocked the file when step 6 ran is ever deleted: if another one has
        the name by now, the file is blocked again. Returns the checkpoint as it is afterwards.

        Raises: NotFoundError (kind `not_blocked`), InvalidInputError, UnavailableError (run it again).
        """
        try:
            word = Resolution(resolution)
        except ValueError as error:
            raise InvalidInputError(
                f"a blocked file is resolved by keep or replace, not {resolution!r}"
            ) from error
        self.timeline.decide(
            lambda view: decisions.to_resolve(view, checkpoint_id, name, word), request_id=request_id
        )
        return self._publish(checkpoint_id, None)

    def restore(self, checkpoint_id: int, *, request_id: uuid.UUID | None = None) -> Checkpoint:
        """Go on from an earlier checkpoint: its state, its positions. Later checkpoints are left behind.

        Ends the open attempt, whoever has it. Files that later checkpoints published are taken back, each
        only if it is still exactly theirs. The batches that they held may be applied again. With a
        `request_id` a restore that is asked for again (a retried step) happens once.
        First reads all state of the checkpoint, and decides nothing where it is damaged.

        Raises: NotFoundError (kind `no_checkpoint`, `checkpoint_gone`), ConflictError (kind `abandoned`),
        FormatError (kind `damaged`; `newest_verified` finds another one), UnavailableError (run it again).
        """
        manifest = self.get(checkpoint_id).manifest
        try:
            require_undamaged(self._store, manifest, threads=self._options.commit_threads)
        except FormatError:
            decisions.refuse_gone(self.get(checkpoint_id).entry)  # given up is no damage
            raise

        def restore_now() -> None:
            self._finish_resolutions()
            self.timeline.decide(
                lambda view: decisions.to_restore(view, checkpoint_id, self._owner), request_id=request_id
            )

        self._when_finished(restore_now)
        self._retract()
        log.info("job %s goes on from checkpoint %d", self.job, checkpoint_id)
        return self.get(checkpoint_id)

    def _finish(self) -> int:
        """Finish what earlier decisions began; the slot of the newest restore that is finished by it."""
        self.compose_commit()
        return self._retract()

    def _finish_resolutions(self) -> None:
        for resolved in self.timeline.tail().unfinished_resolutions:
            self._publish(resolved.checkpoint_id, None)

    def _retract(self) -> int:
        return retract_abandoned(
            self._store,
            self.timeline,
            self.timeline.seen(),
            self._file_options,
            threads=self._options.commit_threads,
        )

    def _when_finished(self, decide: Callable[[], R]) -> R:
        """Decide; again, as long as a rival's decision in between left something to finish first."""
        for _ in range(_MAX_ROUNDS):
            try:
                return decide()
            except ConflictError as error:
                if error.kind not in decisions.UNFINISHED:
                    raise
                log.info("once more: %s", error)
        told = f"job {self.job!r}: {_MAX_ROUNDS} times a rival's decision came between; see `records()`, then"
        raise UnavailableError(f"{told} try again", kind="contention")
