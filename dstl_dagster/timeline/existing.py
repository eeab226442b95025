"""Which jobs a store has, found without listing their objects, and the error for one that it does not have.

Owns the walk over the jobs' folders, and that error's words. Does not own what is told of a job (`jobs`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import JOBS_PREFIX, JobNames, nearest, validated_job
from dstl_dagster.storage import ObjectStore, ShortListingStore

__all__ = ["job_names", "missing_job"]

_AFTER_SLASH = "0"
"""The character after `/`: no name of a folder's lies between."""


def job_names(store: ObjectStore) -> list[str]:
    """The jobs that have any object here, ascending. One listing for each."""
    return sorted(_found(store))


def missing_job(store: ObjectStore, job: str) -> NotFoundError:
    """The error (kind `no_checkpoint`) for a job without a record, with the nearest names in the store."""
    if _first_name(store, JobNames(job).root) is not None:
        said = "has objects, but no record: a drop was interrupted, which `dstl jobs drop` finishes"
        return NotFoundError(f"job {job!r} in {store.uri} {said}", kind=ErrorKind.NO_CHECKPOINT)
    known = nearest(job, job_names(store))
    return NotFoundError(
        f"there is no job {job!r} in {store.uri}; "
        + (f"did you mean {known}? `dstl jobs list` shows all" if known else "it has no job at all"),
        kind=ErrorKind.NO_CHECKPOINT,
    )


def _found(store: ObjectStore) -> Iterator[str]:
    """In the order of their folders, in which `a-b/` precedes `a/`."""
    offset = JOBS_PREFIX
    while True:
        name = _first_name(store, JOBS_PREFIX, offset)
        if name is None:
            return
        job, slash, _ = name.removeprefix(JOBS_PREFIX).partition("/")
        if slash and _is_job(job):
            yield job
        offset = f"{JOBS_PREFIX}{job}{_AFTER_SLASH if slash else chr(0x20)}"


def _first_name(store: ObjectStore, prefix: str, offset: str | None = None) -> str | None:
    if store.capabilities.short_lists:
        short = cast("ShortListingStore", store)
        return next((stat.name for stat in short.list_first(prefix, 1, start_offset=offset)), None)
    return next((stat.name for stat in store.list(prefix, start_offset=offset)), None)


def _is_job(name: str) -> bool:
    try:
        validated_job(name)
    except InvalidInputError:
        return False
    return True
