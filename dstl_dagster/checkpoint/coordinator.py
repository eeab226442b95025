"""The seven steps of a checkpoint, callable from any process, any number of times.

Owns the order of the steps and what each hands to the next. Does not own the rules (`decisions`), the
race for a slot (`timeline`), or the work inside a step (`persist`, `publish`, `cleanup`).

    1 trigger   2 append   3 persist   4 record   5 confirm   6 compose-commit   7 clean up

Each step re-reads the timeline, so it may be killed at any request and run again by another process,
beside a zombie of itself, with the same outcome.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dstl_dagster.checkpoint import decisions
from dstl_dagster.checkpoint.attempt import Attempt
from dstl_dagster.checkpoint.cleanup import CleanUp, collect_garbage
from dstl_dagster.checkpoint.manifest import Manifest, load_manifest, store_manifest
from dstl_dagster.checkpoint.persist import (
    Files,
    Handles,
    as_file_reports,
    as_operator_reports,
    build_manifest,
    verify_report,
)
from dstl_dagster.checkpoint.publish import publish_files
from dstl_dagster.checkpoint.records import BlockedFile
from dstl_dagster.checkpoint.reports import AttemptReport
from dstl_dagster.checkpoint.restore import OperatorState, operator_state
from dstl_dagster.checkpoint.timeline import Timeline
from dstl_dagster.checkpoint.view import CheckpointEntry
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import NotFoundError
from dstl_dagster.format.names import JobNames
from dstl_dagster.settings.checkpoint import CheckpointOptions
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ObjectStore

__all__ = ["Checkpoint", "CheckpointCoordinator"]

log = logging.getLogger(__name__)
_UNPINNED = object()


@dataclass(frozen=True)
class Checkpoint:
    """One completed checkpoint, as it stood on the timeline when it was read.

    Attributes:
        entry: its records.
        manifest: what it holds.
    """

    entry: CheckpointEntry
    manifest: Manifest

    @property
    def checkpoint_id(self) -> int:
        return self.entry.checkpoint_id

    @property
    def attempt(self) -> uuid.UUID:
        return self.entry.completed.attempt

    @property
    def parent(self) -> int | None:
        return self.entry.completed.parent

    @property
    def positions(self) -> Mapping[str, Any]:
        return self.manifest.positions

    @property
    def idempotency_key(self) -> str | None:
        return self.entry.completed.idempotency_key

    @property
    def committed(self) -> bool:
        """Step 6 has ended: every file is published, or listed in `blocked`."""
        return self.entry.committed is not None

    @property
    def blocked(self) -> tuple[BlockedFile, ...]:
        return self.entry.committed.blocked if self.entry.committed is not None else ()


class CheckpointCoordinator:
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
        self._names = JobNames(job)
        self._store = store
        self._options = options or CheckpointOptions()
        self._file_options = file_options or GSFileSystemOptions()
        self._clock = clock or SystemClock()
        self._new_id = new_id
        self._owner = owner or f"coordinator-{new_id()}"
        self.timeline = Timeline(job, store, clock=self._clock, new_id=new_id)

    @property
    def job(self) -> str:
        return self._names.job

    @property
    def file_options(self) -> GSFileSystemOptions:
        """How components of the job's files are named; whoever writes them must use the same."""
        return self._file_options

    @property
    def store(self) -> ObjectStore:
        return self._store

    def trigger(
        self,
        take_over: bool = False,
        *,
        idempotency_key: str | None = None,
        expected_parent: int | object | None = _UNPINNED,
    ) -> Attempt:
        """Step 1: open an attempt on the next checkpoint, on top of the last completed one.

        First publishes what an earlier checkpoint left unpublished. With `expected_parent` (an id, or
        `None` for "no checkpoint yet") the attempt opens only on exactly that parent.

        Raises: ConflictError, kind `attempt_open` (another owner's attempt is alive; `take_over=True`
        ends it), `already_applied` (a completed checkpoint holds `idempotency_key`), `parent_moved`.
        """
        self.compose_commit()
        attempt = self._new_id()
        self.timeline.decide(lambda view: decisions.to_fence(view, self._owner, take_over))
        opened = self.timeline.decide(
            lambda view: decisions.to_open(
                view,
                attempt=attempt,
                owner=self._owner,
                idempotency_key=idempotency_key,
                expected_parent=None if expected_parent is _UNPINNED else expected_parent,  # type: ignore[arg-type] # the sentinel alone is no int
                pin_parent=expected_parent is not _UNPINNED,
            )
        )
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
        parent = None if attempt.parent is None else self._manifest_of(attempt.parent)
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
        manifest = load_manifest(self._store, name)
        self.timeline.decide(
            lambda view: decisions.to_complete(
                view,
                attempt,
                manifest=name,
                files=[file.object_name for file in manifest.files],
                seconds=self._clock.monotonic_seconds() - started,
            )
        )
        log.info("step 5 confirm: checkpoint %d of job %s is complete", attempt.checkpoint_id, self.job)
        return self.get(attempt.checkpoint_id)

    def abort(self, attempt: Attempt, reason: str = "given up by its owner") -> None:
        """End the attempt before step 5. What it left is deleted by the next clean-up.

        Raises: ConflictError (kind `already_completed`).
        """
        self.timeline.decide(lambda view: decisions.to_abort(view, attempt, reason))

    def compose_commit(
        self, checkpoint_id: int | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> list[Checkpoint]:
        """Step 6: publish the files of this checkpoint, or of every one that is not published yet.

        Returns the checkpoints that were looked at, as they are afterwards. A file whose name a foreign
        object has is listed in `blocked` and stops nothing else. Run again, changes nothing: a file that
        was taken away afterwards does not come back.
        """
        view = self.timeline.tail()
        wanted = (
            [entry.checkpoint_id for entry in view.uncommitted] if checkpoint_id is None else [checkpoint_id]
        )
        return [self._publish(each, progress) for each in wanted]

    def _publish(self, checkpoint_id: int, progress: Callable[[int, int], None] | None) -> Checkpoint:
        checkpoint = self.get(checkpoint_id)
        if checkpoint.committed:
            return checkpoint
        started = self._clock.monotonic_seconds()
        publication = publish_files(
            self._store,
            checkpoint.manifest,
            self._file_options,
            threads=self._options.commit_threads,
            progress=progress,
        )
        self.timeline.decide(
            lambda view: decisions.to_commit(
                view,
                checkpoint_id,
                published=publication.published,
                blocked=publication.blocked,
                seconds=self._clock.monotonic_seconds() - started,
            )
        )
        log.info("step 6 compose-commit: checkpoint %d of job %s", checkpoint_id, self.job)
        return self.get(checkpoint_id)

    def clean_up(self, dry_run: bool = False) -> CleanUp:
        """Step 7: give up checkpoints beyond the last `num_retained`, and delete what nothing needs.

        Raises: FormatError, NotFoundError where a retained manifest is unreadable; nothing is deleted then.
        """
        keep = self._options.num_retained
        if dry_run:
            record = decisions.to_subsume(self.timeline.tail(), keep)
        else:
            record = self.timeline.decide(lambda view: decisions.to_subsume(view, keep))
        report = collect_garbage(
            self._store,
            self.timeline,
            self._names,
            self._file_options,
            reader_grace=self._options.reader_grace,
            dry_run=dry_run,
        )
        subsumed = () if record is None else record.checkpoint_ids
        log.info("step 7 clean up: job %s, %d objects deleted", self.job, len(report.deleted))
        return CleanUp(subsumed, report.deleted, report.deleted_bytes, report.reasons, dry_run)

    def latest(self) -> Checkpoint | None:
        """The last completed checkpoint; `None` before the first."""
        last = self.timeline.tail().last_completed
        return None if last is None else self._checkpoint(last)

    def get(self, checkpoint_id: int) -> Checkpoint:
        """Raises: NotFoundError (never completed, or cleaned up since), FormatError."""
        entry = self.timeline.tail().checkpoints.get(checkpoint_id)
        if entry is None:
            raise NotFoundError(
                f"job {self.job!r} has no completed checkpoint {checkpoint_id}", kind="no_checkpoint"
            )
        return self._checkpoint(entry)

    def list(self) -> list[Checkpoint]:
        """Every checkpoint that can be restored to, oldest first."""
        return [self._checkpoint(entry) for entry in self.timeline.tail().retained]

    def applied(self, idempotency_key: str) -> int | None:
        """The id of the completed checkpoint that holds this batch; `None` where none does."""
        return self.timeline.tail().applied.get(idempotency_key)

    def operator_state(self, checkpoint: Checkpoint, operator: str) -> OperatorState | None:
        """Where the state of `operator` at this checkpoint lies; `None` where it never wrote any."""
        return operator_state(self._store, checkpoint.manifest, operator)

    def _manifest_of(self, checkpoint_id: int) -> Manifest:
        return self.get(checkpoint_id).manifest

    def _checkpoint(self, entry: CheckpointEntry) -> Checkpoint:
        try:
            return Checkpoint(entry, load_manifest(self._store, entry.completed.manifest))
        except NotFoundError as error:
            if entry.subsumed is None:
                raise
            raise NotFoundError(
                f"checkpoint {entry.checkpoint_id} of job {self.job!r} was cleaned up (retention keeps the "
                f"last {self._options.num_retained}); `list()` shows what can still be read",
                kind="checkpoint_gone",
            ) from error
