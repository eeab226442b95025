"""The jobs of a store; the errors for a missing thing, with the reason: a job, a checkpoint, an object.

Owns the walk over the jobs' folders, and the errors. Does not own noticing (`keyed`, `checkpoint`), or
records that are missing (`lost`). Reads the timeline, which nothing did until something was missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote, urlsplit
from uuid import UUID

from dstl_dagster.errors import DstlError, ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import JOBS_PREFIX, JobNames, nearest, readable_time, validated_job
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline.attempt import is_attempt_of
from dstl_dagster.timeline.timeline import Timeline
from dstl_dagster.timeline.view import CheckpointEntry, TimelineView

_AFTER_SLASH = "0"
"""The character after `/`: no name of a folder's lies between."""


def job_names(store: ObjectStore) -> list[str]:
    """The jobs that have any object here, ascending. One listing for each."""
    return sorted(_found(store))


def _found(store: ObjectStore) -> Iterator[str]:
    """In the order of their folders, in which `a-b/` precedes `a/`."""
    offset = JOBS_PREFIX
    while True:
        name = first_name(store, JOBS_PREFIX, offset)
        if name is None:
            return
        job, slash, _ = name.removeprefix(JOBS_PREFIX).partition("/")
        if slash and _is_job(job) and _has_any(store, JobNames(job), name):
            yield job
        offset = f"{JOBS_PREFIX}{job}{_AFTER_SLASH if slash else chr(0x20)}"


def first_name(store: ObjectStore, prefix: str, offset: str | None = None) -> str | None:
    """The first object under a prefix, from `offset` on; `None` if there is none. One listing."""
    return next((stat.name for stat in store.list_first(prefix, 1, start_offset=offset)), None)


def _has_any(store: ObjectStore, names: JobNames, first: str | None) -> bool:
    """Whether the job has an object. `first`: below its root, be it of a store whose prefix begins so."""
    return first is not None and (names.has(first) or first_name(store, names.timeline_prefix) is not None)


def _is_job(name: str) -> bool:
    try:
        validated_job(name)
    except InvalidInputError:
        return False
    return True


def missing_job(store: ObjectStore, job: str) -> NotFoundError:
    """The error (kind `no_checkpoint`) for a job without a record, with the nearest names in the store."""
    names = JobNames(job)
    if _has_any(store, names, first_name(store, names.root)):
        said = (
            "has objects, but no record: a drop was interrupted, which `dstl jobs drop` finishes, or its "
            "records are lost, which only a backup has"
        )
        return NotFoundError(f"job {job!r} in {store.uri} {said}", kind=ErrorKind.NO_CHECKPOINT)
    known = nearest(job, job_names(store))
    return NotFoundError(
        f"there is no job {job!r} in {store.uri}; "
        + (f"did you mean {known}? `dstl jobs list` shows all" if known else "it has no job at all"),
        kind=ErrorKind.NO_CHECKPOINT,
    )


def gone_checkpoint(timeline: Timeline, checkpoint_id: int) -> NotFoundError:
    """The error (kind `checkpoint_gone`) for a checkpoint that was cleaned up: by which record, and when."""
    view = timeline.seen()
    try:
        fate = view.fate(timeline.completed(checkpoint_id).attempt)
        record = None if fate is None else next(timeline.records(fate.slot - 1), None)
    except NotFoundError as never:
        return never
    except DstlError:
        record = None
    by = (
        ""
        if record is None
        else f": record {record.slot}, of {readable_time(record.recorded_at)}, subsumed it"
    )
    there = ", ".join(str(entry.checkpoint_id) for entry in view.retained[-10:]) or "none"
    return NotFoundError(
        f"checkpoint {checkpoint_id} of job {timeline.job!r} was cleaned up{by}. There are {there}; "
        "a savepoint, or a larger execution.checkpointing.num-retained, keeps one longer",
        kind=ErrorKind.CHECKPOINT_GONE,
    )


def missing_object(
    store: ObjectStore,
    job: str,
    checkpoint_id: int,
    attempt: UUID | None,
    what: str,
    missing: DstlError,
) -> NotFoundError:
    """The error for an object that was to be read and is not there.

    Of kind `checkpoint_gone` if the checkpoint was subsumed, `job_gone` if the timeline of its `attempt` is
    not there any more, else `state_missing`: nothing permitted to delete it. `what`: of the checkpoint, such
    as an operator's state. `missing`: names the object.
    """
    timeline = Timeline(job, store, threads=1)  # an error may take its time, and begins no threads
    is_gone = f"{what} is gone: the job was dropped, or the store was emptied or replaced"
    try:
        view = timeline.tail()
        entry = view.checkpoints.get(checkpoint_id)
        is_other = not view.slot or (attempt is not None and not _knows(view, entry, attempt))
        timeline.refuse_if_gone()  # a drop deletes the first record before the others
    except DstlError as error:
        if error.kind == ErrorKind.JOB_GONE:
            return NotFoundError(is_gone, kind=ErrorKind.JOB_GONE)
        return NotFoundError(f"{what}: {missing.message} ({error.message})", kind=ErrorKind.STATE_MISSING)
    if is_other:
        begun = "; another job of that name has begun since: read that anew" if view.slot else ""
        return NotFoundError(is_gone + begun, kind=ErrorKind.JOB_GONE)
    if entry is None or entry.subsumed is not None:
        gone = gone_checkpoint(timeline, checkpoint_id)
        return NotFoundError(f"{what} was deleted: {gone.message}", kind=ErrorKind.CHECKPOINT_GONE)
    return NotFoundError(
        f"{what} is damaged: {missing.message}, and no record permitted that. Put it back from a backup, or "
        "`dstl checkpoints restore --newest-verified` goes back to the newest checkpoint that is whole",
        kind=ErrorKind.STATE_MISSING,
    )


def _knows(view: TimelineView, entry: CheckpointEntry | None, attempt: UUID) -> bool:
    if entry is not None:
        return entry.completed.attempt == attempt
    return is_attempt_of(attempt, view.timeline_id) or view.fate(attempt) is not None


def refuse_renamed(store: ObjectStore, job: str, manifest: str) -> None:
    """Raises: NotFoundError if this manifest, which a record names, is another job's."""
    names = JobNames(job)
    if manifest.startswith(names.manifests_prefix):
        return
    before = manifest.rpartition("/manifests/")[0]
    here, there = _place(store, names.root.rstrip("/")), _place(store, before)
    move = "mv" if here.startswith("/") else "gcloud storage mv"
    raise NotFoundError(
        f"{here} holds the records of job {before.rpartition('/')[2]!r}: the job's folder was renamed, and "
        f"what it holds names its objects as they were. Rename it back: {move} {here} {there}",
        kind=ErrorKind.STATE_MISSING,
    )


def _place(store: ObjectStore, name: str) -> str:
    """As other programs spell it."""
    uri = store.uri_of(name)
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
