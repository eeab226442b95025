"""Correcting a batch: go back to before it, then run it and those after it again.

Owns which batches that are, in which order, and what else it undoes. Does not own running a batch (the caller
does), or the restore (`checkpoint`).

Nothing about a correction is stored, so one that was interrupted is planned again from the timeline alone:
what is to be run is every batch that ever completed after the checkpoint to go back to, and is not applied.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from dstl_dagster.checkpoint import CheckpointCoordinator, Timeline
from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import names_in_words
from dstl_dagster.keyed import name_in_id
from dstl_dagster.timeline import RUN_WINDOW, BatchKey, Completed, TimelineView

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Correction:
    """The plan for correcting a batch.

    Attributes:
        batch: its idempotency key, such as a partition.
        restore_to: the newest checkpoint before it that is retained; 0: none is, or a swap came after it, and
            the job begins anew; `None` if the job was restored to before it already, as by a correction that
            was interrupted.
        batches: the names of those to be run again, in order, `batch` among them.
        keys: their identities; several sources of a job may have a batch of one name.
        not_batches: ids of checkpoints that the restore takes back and that no batch made: bases, which come
            again by themselves, and changes of columns, which have to be made again manually.
    """

    job: str
    batch: str
    restore_to: int | None
    batches: tuple[str, ...]
    not_batches: tuple[int, ...] = ()
    keys: tuple[BatchKey, ...] = ()

    def in_words(self) -> Iterator[str]:
        """Its steps, line by line."""
        if self.restore_to is None:
            yield f"job {self.job!r} was restored to before {self.batch} already"
        elif self.restore_to:
            yield f"job {self.job!r} goes back to checkpoint {self.restore_to}"
        else:
            yield f"job {self.job!r} begins anew"
        yield f"{len(self.batches)} batches run again: {names_in_words(*self.batches)}"
        if self.not_batches:
            ids = ", ".join(map(str, self.not_batches))
            yield f"no batch made the checkpoints {ids}: if they changed columns, change them again"


def plan_correction(coordinator: CheckpointCoordinator, batch: str, until: str | None = None) -> Correction:
    """The plan of `correct`. Reads the timeline only.

    Args:
        batch: a partition, or any idempotency key.
        until: the last batch to be run again (inclusive); by default all that have ever run.

    Raises: NotFoundError (kind `no_checkpoint`: it never completed), InvalidInputError for an `until` that is
    not among those that follow.
    """
    view = coordinator.timeline.tail()
    held = _held_since(view, batch)
    before = [0, *(entry.checkpoint_id for entry in view.retained if entry.checkpoint_id < (held or 0))]
    restore_to = None if held is None else before[-1]
    since = _abandoned_since(coordinator, view, batch) if restore_to is None else restore_to + 1
    later = list(_completed(coordinator.timeline, view, since))
    if restore_to and any(_is_swap(each) and not view.is_abandoned(each.checkpoint_id) for each in later):
        # The checkpoint has the state that the swap replaced, and not what was mended there.
        restore_to, later = 0, list(_completed(coordinator.timeline, view, 1))
    # The same batch may have run several times; it belongs where it ran first.
    keys = [*dict.fromkeys(key for each in later for key in each.batches)]
    if restore_to is None:
        keys = _missing(coordinator, keys)
    batches = tuple(_in_order(keys))
    if until is not None:
        if until not in batches:
            raise InvalidInputError(
                f"batch {until!r} does not follow {batch!r} in job {coordinator.job!r}; those that do are "
                f"{_some(batches)}"
            )
        batches = batches[: batches.index(until) + 1]
    lost = [each for each in later if not each.batches and not view.is_abandoned(each.checkpoint_id)]
    ids = () if restore_to is None else tuple(each.checkpoint_id for each in lost)
    named = {*batches}
    keys = [key for key in keys if key.key in named]
    return Correction(coordinator.job, batch, restore_to, batches, ids, tuple(keys))


def correct(
    coordinator: CheckpointCoordinator,
    plan: Correction,
    run: Callable[[str], None],
    *,
    request_id: uuid.UUID | None = None,
    progress: Progress | None = None,
) -> None:
    """Restore, then `run` each batch in order, as long as each completes.

    Args:
        run: runs one batch to its completed checkpoint, in any process, or raises.
        request_id: of the restore; a correction that is repeated under it restores once, and goes on.
        progress: called with (batches done, batches in total, the last one) after each.

    Raises: as `CheckpointCoordinator.restore`; what `run` raises; NotFoundError (kind `no_checkpoint`) if it
    returns and its batch is in no checkpoint. Plan again to go on.
    """
    if plan.restore_to is not None:
        coordinator.restore(plan.restore_to, request_id=request_id)
    for done, batch in enumerate(plan.batches, 1):
        lost = [key for key in plan.keys if key.key == batch]
        if _missing(coordinator, lost):
            run(batch)
            missing = _missing(coordinator, lost)
            if missing:
                source = name_in_id(missing[0].source)
                of = f" of source {source!r}" if source else ""
                raise NotFoundError(
                    f"batch {batch!r}{of} of job {plan.job!r} ran, but no checkpoint holds it: run that "
                    "source too, under the same key and partitions. Nothing after it was run",
                    kind=ErrorKind.NO_CHECKPOINT,
                )
        if progress is not None:
            progress(done, len(plan.batches), batch)


def _in_order(keys: Iterable[BatchKey]) -> Iterator[str]:
    """Their names as they ran first, but each after those that one of its sources had before it: another
    source may have been far ahead. Where sources have them in contrary orders, as they ran first.
    """
    left: dict[str, OrderedDict[str, None]] = {}  # a dict is not quick to lose its first
    ran: dict[str, int] = {}
    for key in keys:
        left.setdefault(key.source, OrderedDict())[key.key] = None
        ran.setdefault(key.key, len(ran))
    while heads := {next(iter(names)) for names in left.values() if names}:
        ready = {
            name
            for name in heads
            if all(name not in names or name == next(iter(names)) for names in left.values())
        }
        first = min(ready or heads, key=ran.__getitem__)
        yield first
        for names in left.values():
            names.pop(first, None)


def _missing(coordinator: CheckpointCoordinator, keys: Iterable[BatchKey]) -> list[BatchKey]:
    """Those that no checkpoint holds, also not under the id that a source has which began again since; of a
    table's partition another run is another batch, whose rows take the place of the others.
    """
    latest, view = coordinator.latest(), coordinator.timeline.seen()
    sources = {} if latest is None else latest.manifest.sources

    def is_held(key: BatchKey) -> bool:
        again = sources.get(name_in_id(key.source))
        ids = {key.source} if again is None else {key.source, again.id}
        if not key.window.startswith(RUN_WINDOW):
            return any(view.applied_in(replace(key, source=each)) is not None for each in ids)
        # No other batch of this name: another source may have one.
        return any(
            (each.key, each.source) in {(key.key, source) for source in ids}
            for checkpoint_id in _ever_held(view, key.key)
            if not view.is_abandoned(checkpoint_id)
            for each in coordinator.timeline.completed(checkpoint_id).batches
        )

    return [key for key in keys if not is_held(key)]


def _is_swap(completed: Completed) -> bool:
    return completed.base == 0 and completed.batch is None


def _ever_held(view: TimelineView, batch: str) -> list[int]:
    """Every checkpoint, abandoned ones too, that holds a batch of this name: of several sources, or of one
    whose batch was applied anew since. Ascending.
    """
    return [*view.archive.checkpoints_of_key(batch), *view.checkpoints_since_snapshot(batch)]


def _held_since(view: TimelineView, batch: str) -> int | None:
    """The first checkpoint of the chain that does."""
    return next((each for each in _ever_held(view, batch) if not view.is_abandoned(each)), None)


def _abandoned_since(coordinator: CheckpointCoordinator, view: TimelineView, batch: str) -> int:
    """The first of the checkpoints that went together with the one that held this batch."""
    ever = _ever_held(view, batch)
    if not ever:
        coordinator.at(f"partition:{batch}")  # raises, in the usual words
    return next(first for first, last in view.abandoned if first <= min(ever) <= last)


def _completed(timeline: Timeline, view: TimelineView, first_id: int) -> Iterator[Completed]:
    """Every checkpoint that ever completed, from this id on."""
    before = view.checkpoints.get(first_id - 1)
    for record in timeline.records(0 if before is None else before.completed.slot):
        if isinstance(record, Completed) and record.checkpoint_id >= first_id:
            yield record


def _some(names: tuple[str, ...]) -> str:
    shown = names if len(names) <= 12 else [*names[:3], "...", *names[-3:]]
    return ", ".join(shown) or "none"
