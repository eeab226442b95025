"""What earlier decisions started, and any process finishes before a new one: step 6, resolutions of blocked
files, and the retraction of the files that a restore abandoned.

Owns when each of these is due, and retracting. Does not own publishing (`compose_commit`), or the rules
(`timeline.decisions`). Each may be finished by any process, any number of times.

Why retracting is safe. The `restored` record is written first, so no process publishes these files any more
but a zombie in mid-compose. Sources are deleted before final objects: either the zombie's compose took effect
before, and its object is found, or it finds no sources. A final object is deleted, by generation, only if it
carries the checkpoint's own fingerprint. All of it is idempotent, and every trigger repeats it until one has
opened an attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from typing import TypeVar

from dstl_dagster.checkpoint.job import Job
from dstl_dagster.checkpoint.steps.components import buckets_of_components, listed_components
from dstl_dagster.checkpoint.steps.compose_commit import file_commit, publish
from dstl_dagster.errors import ConflictError, ErrorKind, FormatError, NotFoundError, UnavailableError
from dstl_dagster.format import attempt_half, attempt_of_component
from dstl_dagster.keyed import load_manifest
from dstl_dagster.recoverable import is_own
from dstl_dagster.storage import Generation, ObjectStore
from dstl_dagster.timeline import Completed, FinalFile, Retraction, refuse_renamed

log = logging.getLogger(__name__)
_MAX_ROUNDS = 100
R = TypeVar("R")


def finish(job: Job) -> int:
    """Finish what earlier decisions started, as last seen. Returns: as `retract`."""
    view = job.timeline.seen()
    if view.last_completed is not None:
        refuse_renamed(job.store, job.name, view.last_completed.completed.manifest)
    for checkpoint_id in view.unfinished:
        publish(job, checkpoint_id)
    return retract(job)


def finish_resolutions(job: Job) -> None:
    """Part of every restore: a person's word on a file stands, whichever checkpoint is restored to."""
    for resolved in job.timeline.tail().unfinished_resolutions:
        publish(job, resolved.checkpoint_id)


def when_finished(job: Job, decide: Callable[[], R], *, from_seen: bool = False) -> R:
    """Call `decide`, again as long as a rival's decision in between left something to finish first.

    With `from_seen` it begins with what this object saw last, and what it raises then counts only once the
    tail was read: `decide` is called again.
    """
    from_seen = from_seen and job.timeline.was_read
    for _ in range(_MAX_ROUNDS):
        try:
            return decide()
        except UnavailableError:
            raise
        except Exception as error:
            unfinished = isinstance(error, ConflictError) and error.kind == ErrorKind.UNFINISHED
            if not (unfinished or from_seen):
                raise
            log.info("trying again: %s", error)
        from_seen = False
        job.timeline.tail()
    raise UnavailableError(
        f"job {job.name!r}: another writer's decision got in between {_MAX_ROUNDS} times; find out which "
        "program writes so often (`dstl checkpoints timeline`), then try again",
        kind=ErrorKind.CONTENTION,
    )


def retract(job: Job) -> int:
    """Retract the files of all checkpoints that unfinished restores abandoned, as last seen.

    Returns: the slot of the newest of these restores; 0 if there is none.
    """
    retractions = job.timeline.seen().retractions
    for retraction in retractions:
        for completed in _abandoned(job, retraction):
            _retract(job, completed)
    return max((each.restored_slot for each in retractions), default=0)


def _abandoned(job: Job, retraction: Retraction) -> Iterator[Completed]:
    for record in job.timeline.records(retraction.after_slot):
        if record.slot >= retraction.restored_slot:
            return
        if isinstance(record, Completed) and record.checkpoint_id >= retraction.first_id:
            yield record


def _retract(job: Job, completed: Completed) -> None:
    home, copied = completed.origin.located(job.store), cache(partial(completed.origin.is_copied, job.store))
    try:
        manifest = load_manifest(job.store, completed.manifest, completed.manifest_crc32c)
    except (NotFoundError, FormatError) as error:
        # Subsumed and cleaned up, or damaged, which may be why the job goes back: the `completed` record has
        # all that is needed to find the final objects, and the attempt the sources. Only a committed
        # checkpoint is subsumed, so that no source is left.
        log.info("retracting checkpoint %d by its record: %s", completed.checkpoint_id, error)
        entry = job.timeline.seen().checkpoints.get(completed.checkpoint_id)
        if entry is not None and entry.committed is None:
            _delete_components(job, completed)
        for final in completed.files:
            _delete_own(home, final)
        return
    for file in manifest.files:
        if file_commit(job, home, file, copied).retract():
            log.info("retracted %s of checkpoint %d", file.object_name, completed.checkpoint_id)


def _delete_components(job: Job, completed: Completed) -> None:
    """Those of its attempt; those of a store of which this one is a copy are left."""
    if completed.origin.is_elsewhere(job.store):
        return
    for home in buckets_of_components(job.store, job.files, [completed]):
        for stat in listed_components(job.store, home, job.files):
            if attempt_of_component(stat.name) == attempt_half(completed.attempt):
                with suppress(ConflictError):
                    home.delete(stat.name, precondition=Generation(stat.generation))


def _delete_own(store: ObjectStore, file: FinalFile) -> None:
    if not file.fingerprint:
        log.warning("cannot prove that %s is the object of its checkpoint: left alone", file.name)
        return
    home = store.in_bucket(file.bucket)
    found = home.stat(file.name)
    if found is None or not is_own(found, file.fingerprint):
        return
    try:
        home.delete(file.name, precondition=Generation(found.generation))
    except ConflictError:
        log.info("%s was replaced meanwhile: left alone", file.name)
