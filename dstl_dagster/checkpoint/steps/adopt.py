"""Steps 1 to 6 of a checkpoint whose state is another job's: its files are copied, and a manifest names them.

Owns the copies, and what such a manifest says. Does not own which job may take over which state
(`jobs.clone`).

The copies are the job's own from then on: what becomes of the other one, a clean-up or a drop, reaches none
of them. In one bucket the store copies, and no byte comes here. A file's last name stays, by which a
comparison of two states knows what both have.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

from dstl_dagster.checkpoint.job import Checkpoint, Job
from dstl_dagster.checkpoint.steps import compose_commit, confirm, trigger
from dstl_dagster.concurrency import Progress, gather
from dstl_dagster.errors import ConflictError, DstlError, FormatError, NotFoundError
from dstl_dagster.format import ChangelogStateHandle, StreamStateHandle
from dstl_dagster.keyed import Manifest, OperatorEntry
from dstl_dagster.storage import ABSENT, ObjectStat, ObjectStore, Source
from dstl_dagster.timeline import Attempt, BatchKey, missing_object

log = logging.getLogger(__name__)

_PIECE_BYTES: Final = 4 << 20


def adopt(
    job: Job,
    owner: str,
    parent: int | None,
    state: Checkpoint,
    store: ObjectStore,
    applied: Sequence[BatchKey],
    progress: Progress | None,
) -> Checkpoint:
    """See `CheckpointCoordinator.adopt`."""
    cost = job.running_cost()
    attempt = trigger.open_to_adopt(job, owner, state.checkpoint_id, parent)
    try:
        copied = _copied(job, attempt, state.manifest, store, progress)
        manifest = Manifest(
            job=attempt.job,
            checkpoint_id=attempt.checkpoint_id,
            attempt=attempt.attempt,
            parent=attempt.parent,
            operators={name: _moved(each, copied) for name, each in state.manifest.operators.items()},
            sources=state.manifest.sources,
            persist_seconds=cost.so_far().seconds,
        )
        made = confirm.confirm(job, attempt, job.store_manifest(attempt, manifest), applied)
    except Exception as error:
        _abort(job, attempt, error)
        raise
    log.info(
        "checkpoint %d of job %s has the state of job %s", made.checkpoint_id, job.name, state.manifest.job
    )
    (published,) = compose_commit.compose_commit(job, made.checkpoint_id, attempt, None)
    return published


def _abort(job: Job, attempt: Attempt, error: Exception) -> None:
    try:
        trigger.abort(job, attempt, f"{type(error).__name__}: {error}")
    except DstlError as left:
        log.warning("attempt %s was not aborted: %s", attempt.attempt, left)


def _copied(
    job: Job, attempt: Attempt, manifest: Manifest, store: ObjectStore, progress: Progress | None
) -> dict[str, StreamStateHandle]:
    """The attempt's copy of each changelog file, by the name of the original.

    Files of one folder stay together; those of two never get one name, whatever program named them.
    """
    streams = manifest.changelog_files
    base = job.names.changelog_base_path(attempt.attempt)
    done = itertools.count(1)

    def copy(stream: StreamStateHandle) -> StreamStateHandle:
        folder, _, last = stream.name.rpartition("/")
        name = f"{base}/{hashlib.sha256(folder.encode()).hexdigest()[:16]}/{last}"
        try:
            made = _copy(store, stream.name, job.store, name)
        except NotFoundError as error:
            what = f"the state of job {manifest.job!r} at checkpoint {manifest.checkpoint_id}"
            of = (store, manifest.job, manifest.checkpoint_id, manifest.attempt)
            raise missing_object(*of, what, error) from error
        except ConflictError as error:  # of a try whose answer was lost
            there = job.store.stat(name)
            if there is None:
                raise
            log.info("%s is there: %s", name, error)
            made = there
        if (stream.stored_bytes or made.size, stream.crc32c or made.crc32c) != (made.size, made.crc32c):
            raise FormatError(
                f"changelog file {stream.name} is damaged: it has {made.size} bytes with CRC-32C "
                f"{made.crc32c:08x}, not {stream.stored_bytes} with {stream.crc32c:08x}. Put it back from a "
                "copy, or take an older checkpoint"
            )
        if progress is not None:
            progress(next(done), len(streams))
        return replace(stream, name=name, generation=made.generation)

    copies = gather([partial(copy, stream) for stream in streams], job.threads, "dstl-adopt")
    return {stream.name: made for stream, made in zip(streams, copies, strict=True)}


def _copy(store: ObjectStore, name: str, to: ObjectStore, new: str) -> ObjectStat:
    if store.uri == to.uri:
        return to.copy(Source(name), new, precondition=ABSENT)
    writer = to.open_write(new, precondition=ABSENT)
    try:
        with closing(store.open_read(name)) as reader:
            while piece := reader.read(_PIECE_BYTES):
                writer.write(piece)
        return writer.close()
    finally:
        writer.abort()  # does nothing to what is closed


def _moved(entry: OperatorEntry, copied: Mapping[str, StreamStateHandle]) -> OperatorEntry:
    """The same state in the copies, named in full: no list of runs is of this job yet."""

    def moved(handle: ChangelogStateHandle) -> ChangelogStateHandle:
        entries = ((copied[stream.name], offset) for stream, offset in handle.handles_and_offsets)
        return replace(handle, handles_and_offsets=tuple(entries))

    runs = tuple(replace(run, handles=tuple(map(moved, run.handles))) for run in entry.runs)
    return OperatorEntry(entry.report.unchanged(), runs, entry.rows)
