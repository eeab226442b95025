"""Step 7, the act: list the job's objects, classify each by the timeline, delete the garbage.

Owns the order of reading and deleting. Does not own what garbage is (`garbage`), or what retained
checkpoints need (`references`).

Why this is safe. Each page of objects is listed before the timeline that classifies it is read, so the page
holds nothing of an attempt opened later, and every attempt on it is on the timeline. Every deletion is pinned
to the listed generation. A manifest is deleted after the objects that only it names. If killed at any point,
it can be run again: what is deleted stays deleted, and the rest is classified again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from dstl_dagster.checkpoint.garbage import Garbage, plan_garbage
from dstl_dagster.checkpoint.references import References
from dstl_dagster.errors import ConflictError
from dstl_dagster.format import COMPONENTS_PREFIX, JobNames
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import Generation, ObjectStore
from dstl_dagster.timeline import GraceClock, Timeline

__all__ = ["CleanUp", "collect_garbage"]

log = logging.getLogger(__name__)
_PAGE_OBJECTS = 1_000
_NAMES_KEPT = 1_000


@dataclass(frozen=True)
class CleanUp:
    """What step 7 did, or with `dry_run` would do.

    Attributes:
        subsumed: checkpoints subsumed by this run.
        objects: number of objects deleted.
        deleted: the names of the first thousand of them.
        deleted_bytes: the sum of all their sizes.
        oldest: the age of the oldest one, by the server's clock; `None` if none was deleted.
        reasons: number of objects deleted, by reason.
        dry_run: nothing was written or deleted.
    """

    subsumed: tuple[int, ...] = ()
    objects: int = 0
    deleted: tuple[str, ...] = ()
    deleted_bytes: int = 0
    oldest: timedelta | None = None
    reasons: dict[str, int] = field(default_factory=dict)
    dry_run: bool = False


def collect_garbage(
    store: ObjectStore,
    timeline: Timeline,
    names: JobNames,
    file_options: GSFileSystemOptions,
    *,
    reader_grace: timedelta,
    dry_run: bool,
    threads: int,
) -> CleanUp:
    """Delete every object of the job that nothing needs. Memory does not grow with the number of objects.

    Raises: FormatError, NotFoundError if a retained manifest is unreadable: then nothing more is deleted,
    since what that manifest needs is unknown.
    """
    references = References(store, names)
    grace = GraceClock(store, names, reader_grace)
    tally = _Tally(dry_run)
    for place in _places(store, names, file_options):
        listing = place.home.list(place.prefix)
        while page := list(islice(listing, _PAGE_OBJECTS)):
            view = timeline.tail()
            referenced = references.of(view, grace)
            plan = plan_garbage(names, page, view, referenced, grace_is_over=grace.is_over)
            tally.add(_deleted(place.home, list(plan), dry_run=dry_run, threads=threads))
    report = tally.report(grace)
    grace.close()
    return report


@dataclass(frozen=True)
class _Place:
    """A prefix that holds objects of the job."""

    home: ObjectStore
    prefix: str


def _places(store: ObjectStore, names: JobNames, file_options: GSFileSystemOptions) -> list[_Place]:
    """In order of deletion: what manifests name, then the manifests."""
    bucket_name = file_options.writer_temporary_bucket_name or store.bucket_name
    # With entropy a name starts with a UUID, so no prefix but the whole bucket covers them all. The
    # coordinator insists on a temporary bucket then.
    prefix = "" if file_options.filesink_entropy_enabled else COMPONENTS_PREFIX
    return [
        _Place(store.in_bucket(bucket_name), prefix),
        _Place(store, names.attempts_prefix),
        _Place(store, names.manifests_prefix),
    ]


def _deleted(
    home: ObjectStore, garbage: Sequence[Garbage], *, dry_run: bool, threads: int
) -> Iterator[Garbage]:
    if dry_run:
        yield from garbage
    elif threads == 1 or len(garbage) < 2:
        yield from (each for each in garbage if _delete(home, each))
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="dstl-clean-up") as pool:
            gone = pool.map(lambda each: _delete(home, each), garbage)
            yield from (each for each, was_there in zip(garbage, gone, strict=True) if was_there)


def _delete(home: ObjectStore, garbage: Garbage) -> bool:
    name = garbage.stat.name
    try:
        gone = home.delete(name, precondition=Generation(garbage.stat.generation))
    except ConflictError:
        # Overwritten since the listing: not the object that was classified. Left to the next run.
        return False
    log.debug("deleted %s: %s", name, garbage.reason)
    return gone


class _Tally:
    """Sums up what was deleted."""

    def __init__(self, dry_run: bool) -> None:
        self._dry_run = dry_run
        self._names: list[str] = []
        self._objects = 0
        self._bytes = 0
        self._first: datetime | None = None
        self._reasons: Counter[str] = Counter()

    def add(self, garbage: Iterator[Garbage]) -> None:
        for each in garbage:
            if len(self._names) < _NAMES_KEPT:
                self._names.append(each.stat.name)
            self._objects += 1
            self._bytes += each.stat.size
            self._reasons[each.reason] += 1
            self._first = min(self._first or each.stat.updated, each.stat.updated)

    def report(self, clock: GraceClock) -> CleanUp:
        return CleanUp(
            objects=self._objects,
            deleted=tuple(self._names),
            deleted_bytes=self._bytes,
            oldest=None if self._first is None else clock.age_of(self._first),
            reasons=dict(self._reasons),
            dry_run=self._dry_run,
        )
