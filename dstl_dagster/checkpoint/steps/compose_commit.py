"""Step 6: compose every file of a completed checkpoint to its final name, or as a person has resolved.

Owns publishing the files of one checkpoint concurrently, carrying out the resolutions of blocked ones, and
the `committed` record. Does not own how one file is composed, resumed or recognised (`recoverable`), whether
a file may be resolved (`decisions.to_resolve`), or when other steps finish this one first (`unfinished`).

Why a resolution is safe. The `resolved` record is written before anything is touched, pins the foreign
object's generation, and stays in force until a later `committed` record includes it. So any process may carry
it out, and a foreign object that arrived later is not the one that the person agreed to delete.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from dstl_dagster.checkpoint.job import Checkpoint, Job
from dstl_dagster.concurrency import Progress, in_order
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.keyed import FileReport, Manifest
from dstl_dagster.recoverable import (
    CommitOutcome,
    CommitState,
    Copied,
    CopiedSource,
    FileCommit,
    delete_copied,
)
from dstl_dagster.storage import Generation, ObjectStore, RunningCost, cost_note
from dstl_dagster.timeline import Attempt, BlockedFile, Committed, Resolution, Resolved, decisions

log = logging.getLogger(__name__)
_AS_RESOLVED: Copied = lambda: True  # noqa: E731 - a person has seen any object of another generation
_Composed = tuple[CommitOutcome, Sequence[CopiedSource]]

SUCCESS_FILE: Final = "_SUCCESS"
"""The last part of a name whose file is published after all others of its checkpoint, if none is blocked."""
_WAITS: Final = "it is published last, and another file of its checkpoint is blocked"


def compose_commit(
    job: Job, checkpoint_id: int | None, attempt: Attempt | None, progress: Progress | None
) -> list[Checkpoint]:
    """See `CheckpointCoordinator.compose_commit`."""
    cost = job.running_cost()
    if checkpoint_id is None:
        return [publish(job, each, progress) for each in job.timeline.tail().unfinished]
    if not job.timeline.was_read:
        manifest = None if attempt is None else job.manifest_with_tail(attempt)
        return [publish(job, checkpoint_id, progress, manifest, cost)]
    entry = job.timeline.seen().checkpoints.get(checkpoint_id)
    if entry is not None and entry.committed is None:
        try:
            return [publish(job, checkpoint_id, progress)]
        except NotFoundError as error:
            log.info("looking again: %s", error)  # it may have been subsumed since
    job.timeline.tail()
    return [publish(job, checkpoint_id, progress, cost=cost)]


def publish(
    job: Job,
    checkpoint_id: int,
    progress: Progress | None = None,
    manifest: Manifest | None = None,
    cost: RunningCost | None = None,
) -> Checkpoint:
    """The step for one checkpoint, as last seen, up to its `committed` record. Returns it as it is then.

    `manifest`: the checkpoint's, if the caller has read it.

    Raises: NotFoundError, UnavailableError (run it again), ConflictError (kind `abandoned`).
    """
    cost = cost or job.running_cost()
    view = job.timeline.seen()
    checkpoint = job.checkpoint(view, checkpoint_id, manifest or job.recorded_of(view, checkpoint_id))
    committed, resolutions = checkpoint.entry.committed, checkpoint.entry.unfinished_resolutions
    if committed is not None and not resolutions:
        return checkpoint
    if checkpoint.abandoned:
        raise ConflictError(
            f"checkpoint {checkpoint_id} was abandoned by a restore: its files are not published",
            kind=ErrorKind.ABANDONED,
        )
    origin = checkpoint.entry.completed.origin
    home = origin.located(job.store)
    if committed is None:
        copied = cache(partial(origin.is_copied, job.store))
        publication = _publish_files(job, home, checkpoint.manifest, copied, progress)
    else:
        publication = _finish_resolutions(job, home, checkpoint.manifest, committed, resolutions)
    job.timeline.decide(
        lambda view: decisions.to_commit(
            view,
            checkpoint_id,
            published=publication.published,
            blocked=publication.blocked,
            seconds=cost.so_far().seconds,
            resolved_slot=max((each.slot for each in resolutions), default=0),
        ),
        from_seen=True,
        note=lambda: cost_note(cost.so_far()),
    )
    log.info("step 6 compose-commit: checkpoint %d of job %s", checkpoint_id, job.name)
    log.info("step 6 compose-commit: %s", cost.in_words())
    return job.checkpoint(job.timeline.seen(), checkpoint_id, checkpoint.manifest)


@dataclass(frozen=True)
class _Publication:
    """The outcome for the files of one checkpoint, by final object name."""

    published: tuple[str, ...]
    blocked: tuple[BlockedFile, ...]


def _publish_files(
    job: Job, home: ObjectStore, manifest: Manifest, copied: Copied, progress: Progress | None
) -> _Publication:
    """Publish what is not published yet. Any number of processes may do this concurrently.

    The job's threads bound both the files composed concurrently and the concurrent requests for each of them.
    `copied`: whether the store is certainly a copy. `progress` is called with (files done, files in total)
    from the calling thread.

    A file that cannot be published as things are (a foreign object has its name, the store refuses the name)
    does not stop the others, and neither does an error. With a temporary bucket what was copied is deleted
    once all files are there: one wait for all, where the store limits how soon an object may change.

    Raises: the first error, after all files were tried; after an UnavailableError run the step again.
    """

    def composed(file: FileReport) -> _Composed | Exception:
        try:
            return _compose_or_block(job, home, file, copied)
        except Exception as error:  # noqa: BLE001 - raised below, after the other files were tried
            return error

    outcomes: dict[str, CommitOutcome] = {}
    to_delete: list[CopiedSource] = []
    failure: Exception | None = None
    last = [file for file in manifest.files if _is_last(file.object_name)]
    for files in ([file for file in manifest.files if file not in last], last):
        if files is last and any(each.state is CommitState.BLOCKED for each in outcomes.values()):
            waits = CommitOutcome(CommitState.BLOCKED, reason=_WAITS)
            outcomes |= {file.object_name: waits for file in last}
        elif files and failure is None:
            calls = [partial(composed, file) for file in files]
            with closing(in_order(calls, job.threads, "dstl-compose")) as results:
                for file, result in zip(files, results, strict=True):
                    if isinstance(result, Exception):
                        failure = failure or result
                    else:
                        outcomes[file.object_name], sources = result
                        to_delete += sources
                    if progress is not None:
                        progress(len(outcomes), len(manifest.files))
    delete_copied(to_delete, job.clock, threads=job.threads)
    if failure is not None:
        raise failure
    found = {file.object_name: _blocked(file, outcomes[file.object_name]) for file in manifest.files}
    blocked = tuple(each for each in found.values() if each is not None)
    return _Publication(tuple(name for name, each in found.items() if each is None), blocked)


def _finish_resolutions(
    job: Job,
    home: ObjectStore,
    manifest: Manifest,
    committed: Committed,
    resolutions: Sequence[Resolved],
) -> _Publication:
    """Carry out the resolutions, and return the outcome for all files of the checkpoint. Idempotent."""
    published = list(committed.published)
    blocked: list[BlockedFile] = []
    by_name = {resolved.name: resolved for resolved in resolutions}
    files = {file.object_name: file for file in manifest.files}
    # Those that wait for others come last.
    for waiting in sorted(committed.blocked, key=lambda each: _is_last(each.name)):
        resolved = by_name.get(waiting.name)
        if resolved is None and (waiting.reason != _WAITS or blocked):
            blocked.append(waiting)
            continue
        file = files[waiting.name]
        if resolved is not None and resolved.resolution is Resolution.KEEP:
            file_commit(job, home, file, _AS_RESOLVED).discard()
            log.info("file %s is discarded: the foreign object stays", waiting.name)
            continue
        foreign = None if resolved is None else resolved.foreign_generation
        still_blocked = _replace(job, home, file, foreign)
        if still_blocked is None:
            published.append(waiting.name)
        else:
            blocked.append(still_blocked)
    return _Publication(tuple(published), tuple(blocked))


def _is_last(name: str) -> bool:
    return name.rpartition("/")[2] == SUCCESS_FILE


def _replace(
    job: Job, home: ObjectStore, file: FileReport, foreign_generation: int | None
) -> BlockedFile | None:
    final = file.recoverable.final_blob_identifier
    bucket = home.in_bucket(final.bucket_name)
    if foreign_generation is not None:
        try:
            if bucket.delete(final.object_name, precondition=Generation(foreign_generation)):
                # The name may not change again so soon where the store limits that.
                job.clock.sleep_seconds(bucket.capabilities.seconds_between_updates)
        except ConflictError:
            # The name holds another generation by now: our file (published by a rival), or a foreign object
            # that the resolution does not cover.
            log.info("the object at %s is no longer the one that was resolved", file.object_name)
    outcome, copied = _compose_or_block(job, home, file, _AS_RESOLVED)
    delete_copied(copied, job.clock, threads=job.threads)
    return _blocked(file, outcome)


def file_commit(job: Job, home: ObjectStore, file: FileReport, copied: Copied) -> FileCommit:
    """Of a checkpoint's file, in the store where the checkpoint is at home."""
    return FileCommit(
        home,
        file.recoverable,
        file.components,
        options=job.files,
        parallelism=job.threads,
        copied=copied,
    )


def _compose_or_block(job: Job, home: ObjectStore, file: FileReport, copied: Copied) -> _Composed:
    """Publish one file, but for the source of a copy: that is the caller's to delete.

    A permanent refusal by the store is an outcome, not an error.
    After the commit point an error would recur with every trigger. So such a file is blocked, without a
    foreign generation, until a person resolves it. Missing permissions do not count as a permanent refusal:
    granting them lets the step succeed.

    Raises: as `FileCommit`, except for those refusals.
    """
    try:
        return file_commit(job, home, file, copied).compose()
    except InvalidInputError as refusal:
        if refusal.kind == ErrorKind.NO_PERMISSION:
            raise
        reason = f"{file.object_name!r} cannot be made: {refusal.message}"
        return CommitOutcome(CommitState.BLOCKED, reason=reason), ()


def _blocked(file: FileReport, outcome: CommitOutcome) -> BlockedFile | None:
    """As the record names it; `None` of a file that is published."""
    if outcome.state is not CommitState.BLOCKED:
        return None
    log.warning("file %s is blocked: %s", file.object_name, outcome.reason)
    return BlockedFile(file.object_name, outcome.reason or "", outcome.foreign_generation)
