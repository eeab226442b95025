"""Dropping a job: everything that it keeps for itself goes, and nothing that it published.

Owns the order in which its objects go. Does not own which objects are a job's (`format.names`).

Why this can be killed at any point, and run again. The drop first opens an attempt of its own, so every other
run of the job is refused while it lasts. Then the timeline's first record goes, and nothing else for
`DROP_WAIT_SECONDS`: a process that has the timeline in memory finds out by it, and takes back what it
appends (`timeline`). What manifests name goes before the manifests, and those before the timeline. The
timeline's last record goes last of all records: a reader of the rest either sees the drop's attempt
open or misses a slot, which is an error, and never an older state of the job. The hint, which says where to
look for that record, goes after it. Each object is deleted by the listed generation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from dstl_dagster.checkpoint import (
    CheckpointCoordinator,
    attempts_of_original,
    buckets_of_components,
    listed_components,
)
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import (
    ConflictError,
    DstlError,
    ErrorKind,
    FormatError,
    NotFoundError,
    UnavailableError,
)
from dstl_dagster.format import JobNames, attempt_half, attempt_of_component
from dstl_dagster.settings import JobOptions, Options
from dstl_dagster.storage import Generation, ObjectStat, ObjectStore, delete_each
from dstl_dagster.timeline import DROP_WAIT_SECONDS, Completed, Opened, TimelineView, missing_job


@dataclass(frozen=True)
class Drop:
    """What goes, or went, with a job.

    Attributes:
        objects, size_bytes: of all of it.
        kinds: number of objects by kind: `timeline`, `manifests`, `attempts` (reports and changelog files),
            `archive`, `components` (of files that are not published), ...
        checkpoints: ids of those that could be restored to.
        savepoints: checkpoint ids by name.
        open_owner: of the checkpoint in progress; only `force` drops the job nevertheless.
        problem: why its timeline cannot be read; only `force` drops the job nevertheless.
        left: objects that were written or replaced meanwhile: run it again.
        done: it was carried out.
    """

    job: str
    objects: int
    size_bytes: int
    kinds: dict[str, int]
    checkpoints: tuple[int, ...] = ()
    savepoints: dict[str, int] = field(default_factory=dict)
    open_owner: str | None = None
    problem: str | None = None
    left: int = 0
    done: bool = False


def plan_drop(store: ObjectStore, job: str, options: Options | None = None) -> Drop:
    """What `drop_job` would delete. Writes nothing; lists all objects of the job.

    Raises: NotFoundError if the store has no object of the job, naming those that it has; UnavailableError.
    """
    return _Plan.of(store, job, JobOptions.of(options)).drop


def drop_job(
    store: ObjectStore,
    job: str,
    options: Options | None = None,
    *,
    owner: str,
    force: bool = False,
    clock: Clock | None = None,
) -> Drop:
    """Delete all that the job keeps for itself. What it published stays, as do exports.

    First publishes what the last checkpoint has not published yet, as any run does. Call it again to finish a
    drop that was interrupted.

    Args:
        owner: of the drop: the same one may go on with an interrupted drop.
        force: also while another owner's attempt is open (its process fails at its next step), or if the job
            cannot be read or finished.
        clock: to wait by.

    Raises: NotFoundError; ConflictError (kind `attempt_open`, or of what the last checkpoint waits for);
    FormatError (a damaged timeline), unless `force`; UnavailableError (call it again).
    """
    job_options = JobOptions.of(options)
    found = _Plan.of(store, job, job_options)
    if found.has_anything_to_lose:
        coordinator = CheckpointCoordinator(job, store, job_options, owner=owner)
        try:
            coordinator.trigger(take_over=force)
        except UnavailableError:
            raise
        except DstlError as error:
            if not force:
                raise _refused(error, found.drop) from error
        found = _Plan.of(store, job, job_options)  # with what the attempt and those before it have written
    threads = store.capabilities.useful_threads(job_options.checkpoint.commit_threads)
    for home, objects in found.in_order():
        pinned = [(stat.name, Generation(stat.generation)) for stat in objects]
        for _ in delete_each(home, pinned, threads=threads):
            pass
        if any(stat.name == found.names.root_slot for stat in objects):
            (clock or SystemClock()).sleep_seconds(DROP_WAIT_SECONDS)
    return replace(found.drop, left=len(_objects(store, found.names)), done=True)


def _objects(store: ObjectStore, names: JobNames) -> list[ObjectStat]:
    return [stat for stat in store.list(names.root) if names.has(stat.name)]


def _refused(error: DstlError, drop: Drop) -> DstlError:
    if isinstance(error, FormatError | NotFoundError):
        return type(error)(
            f"{error.message}; to drop the job nevertheless: force (--force)", ErrorKind(error.kind)
        )
    if error.kind != ErrorKind.ATTEMPT_OPEN:
        return error
    return ConflictError(
        f"job {drop.job!r} is running: {drop.open_owner!r} makes a checkpoint of it. Wait for it or, if it "
        "is dead, drop the job with force (--force)",
        kind=ErrorKind.ATTEMPT_OPEN,
    )


@dataclass(frozen=True)
class _Plan:
    store: ObjectStore
    names: JobNames
    own: list[ObjectStat]
    components: list[tuple[ObjectStore, list[ObjectStat]]]
    view: TimelineView | None
    problem: str | None

    @classmethod
    def of(cls, store: ObjectStore, job: str, options: JobOptions) -> _Plan:
        names = JobNames(job)
        own = _objects(store, names)
        if not own:
            raise missing_job(store, job)
        view, problem = None, None
        timeline = CheckpointCoordinator(job, store, options).timeline
        try:
            view = timeline.tail()
        except UnavailableError:
            raise
        except DstlError as error:
            problem = error.message
        records = timeline.all_there()
        opened = [each for each in records if isinstance(each, Opened)]
        completed = (each for each in records if isinstance(each, Completed))
        halves = {*_halves(names, own, opened)}
        components = []
        for bucket in buckets_of_components(store, options.files, completed):
            mine = halves - attempts_of_original(opened, store, bucket)
            listed = listed_components(store, bucket, options.files)
            components.append((bucket, [each for each in listed if attempt_of_component(each.name) in mine]))
        return cls(store, names, own, components, view, problem)

    @property
    def has_anything_to_lose(self) -> bool:
        """False for what a drop leaves that is interrupted: nothing can go on without the first record."""
        return any(stat.name == self.names.root_slot for stat in self.own)

    @property
    def drop(self) -> Drop:
        kinds = Counter(stat.name.removeprefix(self.names.root).partition("/")[0] for stat in self.own)
        components = [stat for _, stats in self.components for stat in stats]
        if components:
            kinds["components"] = len(components)
        view = self.view or TimelineView()
        return Drop(
            self.names.job,
            objects=len(self.own) + len(components),
            size_bytes=sum(stat.size for stat in (*self.own, *components)),
            kinds=dict(sorted(kinds.items())),
            checkpoints=tuple(entry.checkpoint_id for entry in view.retained),
            savepoints=dict(view.savepoints),
            open_owner=None if view.open_attempt is None else view.open_attempt.owner,
            problem=self.problem,
        )

    def in_order(self) -> Iterator[tuple[ObjectStore, list[ObjectStat]]]:
        """What goes together, group after group."""
        groups: dict[str, list[ObjectStat]] = {
            kind: [] for kind in ("root", "other", "manifest", "record", "hint")
        }
        for stat in self.own:
            groups[self._kind(stat.name)].append(stat)
        records = sorted(groups["record"], key=lambda stat: stat.name)
        yield self.store, groups["root"]
        yield from self.components
        # A manifest goes after what only it names.
        for group in (groups["other"], groups["manifest"], records[:-1], records[-1:], groups["hint"]):
            yield self.store, group

    def _kind(self, name: str) -> str:
        if name in (self.names.root_slot, self.names.hint):
            return "root" if name == self.names.root_slot else "hint"
        if name.startswith(self.names.timeline_prefix):
            return "record"
        return "manifest" if name.startswith(self.names.manifests_prefix) else "other"


def _halves(names: JobNames, own: Iterable[ObjectStat], opened: Iterable[Opened]) -> Iterator[int]:
    """The job's attempts, by the half of their UUIDs that components carry: also of damaged records."""
    written = (names.attempt_of(stat.name) for stat in own)
    for attempt in (*written, *(each.attempt for each in opened)):
        if attempt is not None:
            yield attempt_half(attempt)
