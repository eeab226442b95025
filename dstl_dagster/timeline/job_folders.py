"""The jobs of a store, found by walking over their folders.

Owns the walk. Does not own what is shown of a job (`jobs.listing`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import JOBS_PREFIX, validated_job
from dstl_dagster.storage import ObjectStore, ShortListingStore

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
        if slash and _is_job(job):
            yield job
        offset = f"{JOBS_PREFIX}{job}{_AFTER_SLASH if slash else chr(0x20)}"


def first_name(store: ObjectStore, prefix: str, offset: str | None = None) -> str | None:
    """The first object under a prefix, from `offset` on; `None` if there is none. One listing."""
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
