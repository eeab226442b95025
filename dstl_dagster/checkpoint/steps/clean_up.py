"""Step 7: subsume what retention lets go, then list the job's objects, and delete those that nothing needs.

Owns the order of deciding, reading and deleting. Does not own which checkpoints may go
(`decisions.to_subsume`), what garbage is (`garbage`), or what retained checkpoints need (`references`).

Why this is safe. Each page of objects is listed before the timeline that classifies it is read, so the page
holds nothing of an attempt opened later, and every attempt on it is on the timeline. Every deletion is pinned
to the listed generation. A manifest is deleted after the objects that only it names. If killed at any point,
it can be run again: what is deleted stays deleted, and the rest is classified again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice

from dstl_dagster.checkpoint.job import Job
from dstl_dagster.checkpoint.steps.clean_up_mark import CleanUpMark, Marks, roots_digest
from dstl_dagster.checkpoint.steps.components import (
    attempts_of_original,
    buckets_of_components,
    listed_components,
)
from dstl_dagster.checkpoint.steps.garbage import (
    AttemptFates,
    Garbage,
    deciding,
    halves_to_look_up,
    plan_garbage,
    unsettled,
)
from dstl_dagster.checkpoint.steps.references import References, roots_of
from dstl_dagster.concurrency import both, gather
from dstl_dagster.errors import ErrorKind, FormatError, NotFoundError
from dstl_dagster.format import attempt_of_component
from dstl_dagster.storage import (
    Generation,
    ObjectStat,
    ObjectStore,
    Origin,
    delete_each,
    let_settle,
)
from dstl_dagster.timeline import (
    GraceClock,
    Opened,
    Released,
    Subsumed,
    Timeline,
    TimelineView,
    decisions,
    next_view,
)

log = logging.getLogger(__name__)
_THREADS_NAME = "dstl-clean-up"
_PAGE_OBJECTS = 1_000
_NAMES_KEPT = 1_000
_SUBSUMED_AT_ONCE = 100
"""By one record: a snapshot repeats it for each of them, as long as they have readers."""


@dataclass(frozen=True)
class CleanUp:
    """The outcome of step 7, or with `dry_run` its plan.

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


Deleted = Callable[[str, int], object]
"""Called with the URI and generation of each object before it goes, as the answer of a deletion may be lost;
with `dry_run`, of each that would go."""


def clean_up(job: Job, *, dry_run: bool, num_retained: int | None, deleted: Deleted | None) -> CleanUp:
    """See `CheckpointCoordinator.clean_up`."""
    cost = job.running_cost()
    options = job.options if num_retained is None else replace(job.options, num_retained=num_retained)
    keep = options.num_retained
    marks = Marks(job.store, job.names)
    foreseen = _Foreseen(job.timeline) if dry_run else None
    subsume = partial(_subsume, job, foreseen or job.timeline, keep)
    subsumed, _ = both(subsume, marks.find, job.lookup_threads)
    report = collect_garbage(job, dry_run=dry_run, marks=marks, foreseen=foreseen, deleted=deleted)
    log.info("step 7 clean up: job %s, %d objects deleted", job.name, report.objects)
    log.info("step 7 clean up: %s", cost.in_words())
    return replace(report, subsumed=subsumed)


def _subsume(job: Job, timeline: Timeline | _Foreseen, keep: int) -> tuple[int, ...]:
    subsumed: list[int] = []

    def next_record(view: TimelineView) -> Released | Subsumed | None:
        now = _surely_now(job)
        released = decisions.to_release_ended(view, now)
        if released is not None:
            return released
        before = now - job.options.min_age if job.options.min_age else None
        record = decisions.to_subsume(view, keep, before)
        return record and replace(record, checkpoint_ids=record.checkpoint_ids[:_SUBSUMED_AT_ONCE])

    while True:
        record = timeline.decide(next_record)
        if isinstance(record, Released):
            continue
        ids = record.checkpoint_ids if isinstance(record, Subsumed) else ()
        subsumed += ids
        if len(ids) < _SUBSUMED_AT_ONCE:
            return tuple(subsumed)


def _surely_now(job: Job) -> datetime:
    """By this machine's clock, and by the store's where an answer had it: what one that is ahead would end is
    not put back.
    """
    server, here = job.store.server_time(), job.clock.now()
    return here if server is None else min(here, server)


def collect_garbage(
    job: Job,
    *,
    dry_run: bool,
    marks: Marks | None = None,
    references: References | None = None,
    foreseen: _Foreseen | None = None,
    deleted: Deleted | None = None,
) -> CleanUp:
    """Delete every object of the job that nothing needs. Memory does not grow with the number of objects.

    `foreseen`: the timeline of a dry run.

    Costs a request for each thousand objects, and a few for what is new since the last clean-up and what
    goes.

    `marks`: as they were found. Without them, for a caller that reads all manifests anyway and gives its
    `references`, all is judged, regardless of the last clean-up.

    Raises: FormatError, NotFoundError if a manifest that decides is unreadable: then nothing more is deleted,
    since what that manifest needs is unknown.
    """
    job.timeline.seen()  # the names of its slots have its id
    grace = GraceClock(job.store, job.timeline.names, job.options.reader_grace)
    run = _Run(job, foreseen or job.timeline, grace, marks, references)
    tally = _Tally(dry_run)
    for home, page in run.pages(_places(job)):
        garbage = run.garbage(home, page)
        if deleted is not None:
            for each in garbage:
                deleted(home.uri_of(each.stat.name), each.stat.generation)
        if not dry_run:
            # What a dead attempt wrote a moment ago would be refused, a hundred at a time.
            let_settle(home, (each.stat.updated for each in garbage), job.clock)
        tally.add(_deleted(home, garbage, dry_run=dry_run, threads=run.threads))
    if not dry_run:
        run.leave_mark()
    report = tally.report(grace)
    grace.close()
    return report


class _Foreseen:
    """A timeline as it would be: what is decided on it is not written."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._decided: list[Released | Subsumed] = []

    def decide(
        self, rule: Callable[[TimelineView], Released | Subsumed | None]
    ) -> Released | Subsumed | None:
        record = rule(self.seen() if self._decided else self.tail())
        if record is not None:
            self._decided.append(record)
        return record

    def seen(self) -> TimelineView:
        return self._with_decided(self._timeline.seen())

    def tail(self) -> TimelineView:
        return self._with_decided(self._timeline.tail())

    def _with_decided(self, view: TimelineView) -> TimelineView:
        for record in self._decided:
            view = next_view(view, replace(record, slot=view.slot + 1))
        return view


class _Run:
    """One run: what it has read of the timeline, the manifests and the last mark. Not thread-safe."""

    def __init__(
        self,
        job: Job,
        timeline: Timeline | _Foreseen,
        grace: GraceClock,
        marks: Marks | None,
        references: References | None,
    ) -> None:
        self.threads = job.store.capabilities.useful_threads(job.threads)
        self._lookup_threads = job.lookup_threads
        self._timeline = timeline
        self._names = job.names
        self._grace = grace
        self._looked = False
        self._references = references or References(job.store, threads=job.threads)
        self._job = job
        self._opened: Sequence[Opened] | None = None
        self._marks = marks
        self._mark = None if marks is None else marks.found
        self._began_at: TimelineView = timeline.seen()
        self._began = job.store.server_time()
        self._fates: AttemptFates | None = None
        self._roots: dict[int, str] = {}

    def pages(self, places: Sequence[_Place]) -> Iterator[tuple[ObjectStore, list[ObjectStat]]]:
        """The objects of each place, page by page. The first pages are listed together."""
        listings = [listing for _, listing in places]
        found = gather([partial(_page, each) for each in listings], self._lookup_threads, _THREADS_NAME)
        for (home, _), listing, first in zip(places, listings, found, strict=True):
            page = first
            while page:
                yield home, page
                page = _page(listing) if len(page) == _PAGE_OBJECTS else []

    def garbage(self, home: ObjectStore, page: Sequence[ObjectStat]) -> list[Garbage]:
        """The garbage on a page, by the tail. What became garbage meanwhile may be left to the next run."""
        if not self._suspects(self._timeline.seen(), page):
            return []
        self._looked = True
        view = self._timeline.tail()
        suspects = self._of_here(home, self._suspects(view, page))
        decides = deciding(self._names, suspects, self._fates_of(view))
        referenced: frozenset[str] = frozenset()
        try:
            if decides.own:
                referenced |= self._references.own(decides.own)
            if decides.older:
                saved = {*view.savepoints.values()}
                referenced |= self._references.older(
                    self._grace.readable(view), lambda each: view.is_abandoned(each) and each not in saved
                )
        except (FormatError, NotFoundError) as error:
            raise type(error)(
                f"{error.message}. Nothing more is deleted: it may be needed. Without a copy, end its "
                "checkpoint: restore to before it, release its savepoint, or `dstl checkpoints gc --keep 1`",
                ErrorKind(error.kind),
            ) from error
        return [each for each in suspects if each.stat.name not in referenced]

    def _of_here(self, home: ObjectStore, suspects: Sequence[Garbage]) -> list[Garbage]:
        """Those that are not the components of an original."""
        others = [each for each in suspects if not each.stat.name.startswith(self._names.root)]
        if not others:
            return [*suspects]
        if self._opened is None:
            is_copy = self._job.timeline.home() != Origin.home_of(self._job.store)
            records = self._job.timeline.all_there() if is_copy else []
            self._opened = [each for each in records if isinstance(each, Opened)]
        of_original = attempts_of_original(self._opened, self._job.store, home)
        return [each for each in others if attempt_of_component(each.stat.name) not in of_original]

    def leave_mark(self) -> None:
        """For the next run. Only after all pages: an error in between leaves the last mark as it is."""
        if self._began is None or self._marks is None:
            return
        view = self._began_at
        roots = {self._digest(view), *self._roots.values()}
        the_same = roots.pop() if len(roots) == 1 else ""
        mark = CleanUpMark(view.slot, self._began, _newest_over(view, self._grace), the_same)
        # What had to be looked at would be again, if the last mark stayed: it is as new as that.
        if self._looked or self._mark is None or replace(mark, began=self._mark.began) != self._mark:
            self._marks.write(mark, self._began)

    def _suspects(self, view: TimelineView, page: Sequence[ObjectStat]) -> list[Garbage]:
        """What is garbage unless it is referenced, and that the last clean-up has not judged permanently."""
        fates = self._fates_of(view)
        fresh = list(unsettled(self._names, page, fates, self._mark, self._digest(view)))
        self._look_up(fates, fresh)
        return list(plan_garbage(self._names, fresh, fates, grace_is_over=self._grace.is_over))

    def _look_up(self, fates: AttemptFates, page: Sequence[ObjectStat]) -> None:
        """Ask the archive for all of them concurrently."""
        halves = halves_to_look_up(self._names, page, fates)
        if len(halves) > 1 and self._lookup_threads > 1:
            looks = [partial(fates.archived, half) for half in halves]
            gather(looks, self._lookup_threads, _THREADS_NAME)

    def _fates_of(self, view: TimelineView) -> AttemptFates:
        if self._fates is None or self._fates.view is not view:
            self._fates = AttemptFates(view)
        return self._fates

    def _digest(self, view: TimelineView) -> str:
        if view.slot not in self._roots:
            needed = roots_of(self._grace.readable(view))
            self._roots[view.slot] = roots_digest(entry.completed.manifest for entry in needed)
        return self._roots[view.slot]


def _newest_over(view: TimelineView, grace: GraceClock) -> int:
    over = (entry.subsumed for entry in view.checkpoints.values() if entry.subsumed is not None)
    return max((each.slot for each in over if grace.is_over(each.slot)), default=0)


def _page(listing: Iterator[ObjectStat]) -> list[ObjectStat]:
    return list(islice(listing, _PAGE_OBJECTS))


_Place = tuple[ObjectStore, Iterator[ObjectStat]]
"""A place that holds objects of the job, and their listing."""


def _places(job: Job) -> list[_Place]:
    """In order of deletion: what manifests name, then the manifests."""
    completed = (entry.completed for entry in job.timeline.seen().kept)
    buckets = buckets_of_components(job.store, job.files, completed)
    components = [(each, listed_components(job.store, each, job.files)) for each in buckets]
    own = (job.names.attempts_prefix, job.names.manifests_prefix)
    return [*components, *((job.store, job.store.list(prefix)) for prefix in own)]


def _deleted(
    home: ObjectStore, garbage: Sequence[Garbage], *, dry_run: bool, threads: int
) -> Iterator[Garbage]:
    """Delete each, pinned to the listed generation; yields those that were there."""
    if dry_run:
        yield from garbage
        return
    objects = [(each.stat.name, Generation(each.stat.generation)) for each in garbage]
    for each, answer in zip(garbage, delete_each(home, objects, threads=threads), strict=True):
        # A conflict: overwritten since the listing, so not what was classified. Left to the next run.
        if answer is True:
            log.debug("deleted %s: %s", each.stat.name, each.reason)
            yield each


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
