"""Deleting what writers without a checkpoint job left behind: first a plan, then, once approved, the sweep.

Owns the sweep of stand-alone writers' temporary objects. Does not own a job's clean-up (`checkpoint`), which
knows its attempts. Age decides nothing here: a writer opened thirty hours ago may still be running. So the
caller names the states and attempts to keep, and reviews the plan first.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.recoverable.commit import Pin, delete_exactly
from dstl_dagster.recoverable.compose_plan import temporary_names
from dstl_dagster.recoverable.recoverables import (
    TEMPORARY_OBJECT_PREFIX,
    GSBlobIdentifier,
    GSCommitRecoverable,
    attempt_of,
)
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ObjectStat, ObjectStore

_UUID_CHARS = 36


@dataclass(frozen=True)
class Leftover:
    """One temporary object that the caller did not ask to keep, and the final object it was written for."""

    bucket_name: str
    stat: ObjectStat
    final: GSBlobIdentifier
    object_id: uuid.UUID


def plan_sweep(
    store: ObjectStore,
    final_bucket_name: str,
    *,
    options: GSFileSystemOptions | None = None,
    object_prefix: str = "",
    keep: Iterable[GSCommitRecoverable] = (),
    keep_attempts: Iterable[uuid.UUID] = (),
) -> list[Leftover]:
    """The temporary objects of final objects under `object_prefix`, except those to keep.

    Args:
        store: any bucket of the account.
        final_bucket_name: the bucket of the final objects.
        options: the writers' options; with entropy a dedicated temporary bucket is required, because such
            names have no common prefix to list by.
        object_prefix: limits the sweep; empty: the whole bucket.
        keep: states that may still be resumed or committed; their components and intermediates stay.
        keep_attempts: attempts still running (`GSRecoverableWriter.attempt`); all their objects stay.

    Raises: InvalidInputError.
    """
    options = options or GSFileSystemOptions()
    temporary_bucket = options.writer_temporary_bucket_name or final_bucket_name
    if options.filesink_entropy_enabled and temporary_bucket == final_bucket_name:
        raise InvalidInputError(
            "a listing cannot tell names with entropy from final objects; "
            "set gs.writer.temporary.bucket.name to a dedicated bucket, and sweep that"
        )
    wanted_names = {
        blob.object_name for recoverable in keep for blob in temporary_names(recoverable, options=options)
    }
    wanted_attempts = {attempt_of(attempt) for attempt in keep_attempts}
    folder = f"{TEMPORARY_OBJECT_PREFIX}/{final_bucket_name}/"
    listed = "" if options.filesink_entropy_enabled else folder + object_prefix
    leftovers: list[Leftover] = []
    for stat in store.in_bucket(temporary_bucket).list(listed):
        parsed = _parse(stat.name, folder)
        if parsed is None or stat.name in wanted_names:
            continue
        object_name, object_id = parsed
        if object_name.startswith(object_prefix) and attempt_of(object_id) not in wanted_attempts:
            final = GSBlobIdentifier(final_bucket_name, object_name)
            leftovers.append(Leftover(temporary_bucket, stat, final, object_id))
    return leftovers


def sweep(store: ObjectStore, plan: Iterable[Leftover]) -> int:
    """Delete what the plan names, by generation. Returns how many this call deleted. Idempotent."""
    return sum(delete_exactly(store.in_bucket(each.bucket_name), Pin.of(each.stat)) for each in plan)


def _parse(name: str, folder: str) -> tuple[str, uuid.UUID] | None:
    """(final object, id) of a temporary name, plain or with entropy; None for any other name."""
    start = name.find(folder)
    path, slash, last = name[start + len(folder) :].rpartition("/") if start >= 0 else ("", "", "")
    entropy = name[: max(0, start)]
    if not slash or not path or entropy not in ("", last) or len(last) != _UUID_CHARS:
        return None
    try:
        object_id = uuid.UUID(last)
    except ValueError:
        return None
    return (path, object_id) if str(object_id) == last else None
