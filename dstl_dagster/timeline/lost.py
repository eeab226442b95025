"""Records that are missing: how it is noticed, and the words.

Owns the errors, and the question which objects no record explains. Does not own the looks that notice it
(`tail`, `timeline`).

A hole shows by the records behind it. The last records leave none, as after half a restored backup, and the
job seems to be an older one. They show by what is written after a record: a hint names an earlier snapshot,
and a manifest carries an attempt, which is on the timeline before it writes anything.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from functools import partial

from dstl_dagster.concurrency import gather
from dstl_dagster.errors import ErrorKind, FormatError
from dstl_dagster.format import JobNames
from dstl_dagster.storage import ObjectStat, ObjectStore
from dstl_dagster.timeline.attempt import is_attempt_of
from dstl_dagster.timeline.view import TimelineView


def hole(job: str, missing: int, later: int) -> FormatError:
    """The error for a slot that is missing while a later one exists: stop rather than fork history."""
    if missing == 1:
        return FormatError(
            f"the first record of job {job!r} is missing, but slot {later} exists: the job is being dropped, "
            "or a drop was interrupted, which `dstl jobs drop` finishes; else restore it from a backup",
            kind=ErrorKind.HISTORY_HOLE,
        )
    return FormatError(
        f"slot {missing} of job {job!r} is missing, but slot {later} exists: a record was deleted. "
        "Restore it from a backup; the job cannot safely continue without it",
        kind=ErrorKind.HISTORY_HOLE,
    )


def lost(store: ObjectStore, names: JobNames, because: str, to_go_on: str) -> FormatError:
    """The error for a timeline without its last records. `to_go_on`: what to delete if there is no backup."""
    where = store.uri_of(names.timeline_prefix.rstrip("/"))
    return FormatError(
        f"the last records of job {names.job!r} are missing: {because}. Put back all of {where} from a "
        f"backup; if the records are lost, delete {to_go_on}, and the job goes on from where they end",
        kind=ErrorKind.HISTORY_HOLE,
    )


def unexplained_manifests(
    names: JobNames, found: Iterable[ObjectStat], view: TimelineView, threads: int
) -> list[str]:
    """Those of checkpoints after the last that completed, by an attempt that the timeline does not know."""
    first = names.manifests_of(view.highest_id + 1)
    later = [stat.name for stat in found if stat.name >= first]
    return unexplained([(name, names.attempt_of(name)) for name in later], view, threads)


def unexplained(
    found: Iterable[tuple[str, uuid.UUID | None]], view: TimelineView, threads: int = 1
) -> list[str]:
    """The objects, each with its attempt, whose attempt was on the timeline and is not. May read the archive.

    What a process writes that outlived an earlier job of this name is explained: its attempt says so.

    `view`: read after the objects were found, as an attempt is on the timeline before it writes.
    """
    known = {entry.completed.attempt for entry in view.checkpoints.values()}
    if view.open_attempt is not None:
        known.add(view.open_attempt.attempt)
    asked = [
        (name, attempt)
        for name, attempt in found
        if attempt is not None
        and attempt not in known
        and (not view.timeline_id or is_attempt_of(attempt, view.timeline_id))
    ]
    fates = gather([partial(view.fate, attempt) for _, attempt in asked], threads, "dstl-timeline")
    return [name for (name, _), fate in zip(asked, fates, strict=True) if fate is None]
