"""Steps 1 and 3 to 6 of a checkpoint, callable from any process, any number of times.

Owns the order of the steps and what each passes to the next. Does not own the rules (`timeline.decisions`),
the race for a slot (`timeline`), or the work inside a step (`record`, `compose_commit`, `resolve`,
`rollback`).

    1 trigger   2 append   3 persist   4 record   5 confirm   6 compose-commit   7 clean up

Each step re-reads the timeline, so it may be killed at any request and run again by another process,
concurrently with a zombie of itself, with the same outcome.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from dstl_dagster.checkpoint.compose_commit import publish_files
from dstl_dagster.checkpoint.reader import Checkpoint, CheckpointReader
from dstl_dagster.checkpoint.record import build_manifest, final_files, verify_report, with_a_component_each
from dstl_dagster.checkpoint.references import References
from dstl_dagster.checkpoint.resolve import finish_resolutions
from dstl_dagster.checkpoint.rollback import retract_abandoned
from dstl_dagster.clock import Clock
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.keyed import (
    OWN_WRITE,
    RECORD,
    AttemptReport,
    CheckpointCost,
    Files,
    Handles,
    Manifest,
    Spending,
    as_file_reports,
    as_operator_reports,
    load_manifest,
    store_manifest,
)
from dstl_dagster.settings import CheckpointOptions, GSFileSystemOptions, Options
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Attempt, Fenced, Opened, PlannedAttempt, TimelineView, decisions

__all__ = ["CheckpointSteps"]

log = logging.getLogger(__name__)
_MAX_ROUNDS = 100
_RECORDS_OF_STEP_1 = 3
"""`fenced`, perhaps a snapshot, `opened`."""
R = TypeVar("R")
_UNPINNED = object()


class CheckpointSteps(CheckpointReader):
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
        self._file_options = self._job_options.files
        _require_a_bucket_for_entropy(store, self._file_options)
        self._owner = owner or f"coordinator-{new_id()}"

    @property
    def file_options(self) -> GSFileSystemOptions:
        """How components of the job's files are named; their writers must use the same options."""
        return self._file_options

    def trigger(
        self,
        take_over: bool | uuid.UUID = False,
        *,
        idempotency_key: str | None = None,
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
        return self._when_finished(
            lambda: self._begin(self._finish(), take_over, idempotency_key, expected_parent)
        )

    def open(
        self,
        take_over: bool | uuid.UUID = False,
        *,
        idempotency_key: str | None = None,
        check: Callable[[Checkpoint | None], None] | None = None,
    ) -> tuple[Attempt, Checkpoint | None]:
        """Step 1 for a caller that must see the parent first: the attempt, and the checkpoint it builds on.

        `check` is called with the parent (`None` for a job's first) after earlier decisions are finished and
        before anything is opened; if it raises, nothing is opened. The attempt opens on exactly that parent.

        Raises: as `trigger`, and what `check` raises.
        """

        def begin() -> tuple[Attempt, Checkpoint | None]:
            retracted = self._finish()
            parent = self._latest(self.timeline.seen())
            if check is not None:
                check(parent)
            on = None if parent is None else parent.checkpoint_id
            return self._begin(retracted, take_over, idempotency_key, on), parent

        return self._when_finished(begin)

    def plan(
        self, *, check: Callable[[Checkpoint | None], None] | None = None
    ) -> tuple[PlannedAttempt, Checkpoint | None]:
        """Step 1 without its decision: the attempt that `begin` opens, and the checkpoint it builds on.

        For a caller who learns only in its tasks whether the batch may run. Finishes earlier decisions, as
        `trigger` does. `check` is as in `open`.

        Raises: what `check` raises.
        """
        self._finish()
        view = self.timeline.seen()
        parent = self._latest(view)
        if check is not None:
            check(parent)
        attempt = Attempt(
            checkpoint_id=view.next_checkpoint_id,
            attempt=self._new_id(),
            parent=None if parent is None else parent.checkpoint_id,
            job=self.job,
            store_uri=self._store.uri,
        )
        return PlannedAttempt(attempt, view.slot), parent

    def begin(self, planned: PlannedAttempt, take_over: bool = False) -> None:
        """Open a planned attempt, unless another process that shares it has. Idempotent while it is open.

        Call it before anything is written under the attempt: clean-up finds only what a record names. Where
        the attempt has been opened already it costs one request.

        Raises: ConflictError (kind `attempt_open`; `already_applied`; `parent_moved`: plan again),
        FencedError (it was open, and has ended).
        """
        since = self.timeline.records(after_slot=planned.slot)
        if any(
            isinstance(record, Opened) and record.attempt == planned.attempt.attempt
            for record in islice(since, _RECORDS_OF_STEP_1)
        ):
            return

        def decide() -> None:
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
        idempotency_key: str | None,
        on: int | object | None,
    ) -> Attempt:
        """Fence the open attempt if allowed, then open. `on`: the expected parent, or `_UNPINNED`."""
        attempt = self._new_id()

        def next_record(view: TimelineView) -> Fenced | Opened:
            return decisions.to_fence(view, self._owner, take_over) or decisions.to_open(
                view,
                attempt=attempt,
                owner=self._owner,
                idempotency_key=idempotency_key,
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
            idempotency_key=idempotency_key,
        )

    def require_open(self, attempt: Attempt) -> None:
        """Raises if this attempt may no longer do anything (see `decisions.require_open`)."""
        decisions.require_open(self.timeline.tail(), attempt)

    @contextmanager
    def _if_still_open(self, attempt: Attempt) -> Iterator[None]:
        """A dead attempt's objects were cleaned up, its names taken by others: raise that it ended."""
        try:
            yield
        except (NotFoundError, ConflictError):
            self.require_open(attempt)
            raise

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
            positions: how far each source has been read, plain JSON by source name.
            persist_seconds: how long steps 2 and 3 took.

        Raises: FencedError (stop: the attempt is dead), NotFoundError or ConflictError (an object is missing,
        or not as reported; or a target already exists), InvalidInputError.
        """
        rest = AttemptReport(positions=dict(positions or {}), seconds=persist_seconds)
        return self._record(attempt, handles, files, rest)

    def record_report(
        self,
        attempt: Attempt,
        report: AttemptReport,
        *,
        parent: Checkpoint | None = None,
        spending: Spending | None = None,
    ) -> Manifest:
        """`record` for a whole report. `parent`: the attempt's, if the caller has read it already.

        `spending`: of step 4, from where the caller began with it.

        Raises: as `record`.
        """
        return self._record(attempt, report.operators, report.files, report, parent, spending)

    def _record(
        self,
        attempt: Attempt,
        handles: Handles,
        files: Files,
        rest: AttemptReport,
        parent: Checkpoint | None = None,
        spending: Spending | None = None,
    ) -> Manifest:
        spending = spending or self.spending()
        view = self.timeline.tail()
        decisions.require_open(view, attempt)
        threads = self._options.commit_threads
        if parent is None and attempt.parent is not None:
            parent = self._get(view, attempt.parent)

        def referenced() -> frozenset[str]:
            if parent is None:
                return frozenset()
            return frozenset(References(self._store, self._names).needed_by(parent.entry.completed.manifest))

        with self._if_still_open(attempt):
            found = as_file_reports(files, self._store, self._file_options, threads=threads)
            report = replace(rest, operators=as_operator_reports(handles), files=found)
            verify_report(self._store, report, attempt, referenced, threads=threads)
        report = with_a_component_each(self._store, report, attempt, self._file_options)
        spent = spending.so_far() + OWN_WRITE
        report = replace(report, cost=(rest.cost or CheckpointCost()).with_step(RECORD, spent))
        manifest = build_manifest(attempt, report, None if parent is None else parent.manifest)
        manifest = store_manifest(self._store, attempt, manifest)
        log.info("step 4 record: checkpoint %d of job %s", attempt.checkpoint_id, self.job)
        log.info("step 4 record: %s", spending.in_words())
        return manifest

    def confirm(self, attempt: Attempt, *, manifest: Manifest | None = None) -> Checkpoint:
        """Step 5, the commit point: from here on the checkpoint exists, and there is no way back.

        Idempotent: a repeat returns the same checkpoint. `manifest`: as `record` returned it, if the caller
        still has it.

        Raises: NotFoundError (kind `no_manifest`: step 4 was not done), FencedError, ConflictError.
        """
        spending = self.spending()
        name = self._names.manifest(attempt.checkpoint_id, attempt.attempt)
        with self._if_still_open(attempt):
            manifest = manifest or load_manifest(self._store, name)
        files = final_files(manifest.files)
        self.timeline.decide(
            lambda view: decisions.to_complete(
                view,
                attempt,
                manifest=name,
                files=files,
                seconds=spending.so_far().seconds,
            )
        )
        said = spending.in_words()
        log.info(
            "step 5 confirm: checkpoint %d of job %s is complete, %s", attempt.checkpoint_id, self.job, said
        )
        return self._get(self.timeline.tail(), attempt.checkpoint_id, manifest)

    def abort(self, attempt: Attempt, reason: str = "by its owner") -> None:
        """End the attempt before step 5. The next clean-up deletes what it left.

        Raises: ConflictError (kind `already_completed`).
        """
        self.timeline.decide(lambda view: decisions.to_abort(view, attempt, reason))

    def compose_commit(
        self, checkpoint_id: int | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> list[Checkpoint]:
        """Step 6: publish the files of this checkpoint, or of every one that is not published yet.

        Also carries out resolutions of blocked files. Returns the checkpoints it covered, as they are
        afterwards. A file whose name is held by a foreign object is listed in `blocked` and stops no other.
        Idempotent: a published file that a consumer has moved away is not published again.

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
                f"checkpoint {checkpoint_id} was abandoned by a restore: its files are not published",
                kind=ErrorKind.ABANDONED,
            )
        spending = self.spending()
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
                seconds=spending.so_far().seconds,
                resolved_slot=max((each.slot for each in resolutions), default=0),
            ),
            from_seen=True,
        )
        log.info("step 6 compose-commit: checkpoint %d of job %s", checkpoint_id, self.job)
        log.info("step 6 compose-commit: %s", spending.in_words())
        return self._get(self.timeline.seen(), checkpoint_id, checkpoint.manifest)

    def _finish(self) -> int:
        """Finish what earlier decisions started; returns the slot of the newest restore now retracted."""
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
        """Call `decide`, again as long as a rival's decision in between left something to finish first."""
        for _ in range(_MAX_ROUNDS):
            try:
                return decide()
            except ConflictError as error:
                if error.kind not in decisions.UNFINISHED:
                    raise
                log.info("trying again: %s", error)
        raise UnavailableError(
            f"job {self.job!r}: another writer's decision got in between {_MAX_ROUNDS} times; find out who "
            "writes so often (`dstl checkpoints timeline`), then try again",
            kind=ErrorKind.CONTENTION,
        )


def _require_a_bucket_for_entropy(store: ObjectStore, options: GSFileSystemOptions) -> None:
    """No prefix lists names that begin with a UUID: clean-up has to list the whole bucket."""
    if options.filesink_entropy_enabled and options.writer_temporary_bucket_name in (None, store.bucket_name):
        raise InvalidInputError(
            "gs.filesink.entropy.enabled needs a bucket for temporary objects alone, so that clean-up finds "
            f"them: set gs.writer.temporary.bucket.name to another bucket than {store.bucket_name!r}"
        )
