"""Cloning a job, and putting a clone's state in the place of its job's: to recompute beside a job that runs.

Owns which state may take another's place. Does not own the checkpoint that takes it over (`adopt`).

A clone is a job of its own, with the state, the positions and the applied batches of one checkpoint, and
without the files that were published. It shares no object with the job that it came from. A swap is one
record on the job's timeline: a checkpoint with the clone's state in place of the job's. Readers see the one
or the other, and followers get the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator, CheckpointReader
from dstl_dagster.concurrency import Progress
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError
from dstl_dagster.keyed import Source, is_keyed, schema_of
from dstl_dagster.settings import Options
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import AtLike, Attempt, BatchKey, Completed, TimelineView

_SHOWN: Final = 5


def clone_job(
    store: ObjectStore,
    job: str,
    new: str,
    options: Options | None = None,
    *,
    at: AtLike = None,
    to: ObjectStore | None = None,
    owner: str,
    progress: Progress | None = None,
) -> Checkpoint:
    """Begin job `new` with a checkpoint of `job`: its state, its positions, the batches that it holds.

    The first checkpoint of `new` has the id that it had in `job`. Call it again under the same owner where it
    was interrupted. As any reader it needs the checkpoint to be there until it is done: retained, or under a
    savepoint.

    Args:
        at: the checkpoint; by default the last one. As for `read_state`.
        to: the store of `new`; by default that of `job`, whose service copies the files by itself.
        progress: called with (files copied, files in total).

    Raises: NotFoundError (no such job or checkpoint), ConflictError (kind `moved`: `new` has checkpoints;
    kind `attempt_open`), FormatError (a file is damaged), UnavailableError (call it again).
    """
    source = CheckpointReader(job, store, options)
    state = source.at(at)
    clone = _taking_over(state, new, to or store, options, owner)
    view = clone.timeline.seen()
    if view.highest_id == state.checkpoint_id and _is_done(clone, view):
        return clone.at()
    if view.highest_id:
        raise ConflictError(
            f"job {new!r} is there already, in {clone.store.uri}: take another name, or drop it first "
            f"(dstl jobs drop {new})",
            kind=ErrorKind.MOVED,
        )
    held = _batches(source, state.checkpoint_id)
    return clone.adopt(state, store, [*held], parent=None, progress=progress)


def swap_job(
    store: ObjectStore,
    job: str,
    clone: str,
    options: Options | None = None,
    *,
    owner: str,
    progress: Progress | None = None,
) -> Checkpoint:
    """Continue `job` from the state of `clone`, a job of the same store, in one checkpoint of `job`.

    `clone` must hold each batch that `job` holds. It stays as it is; drop it after. A restore of `job` to the
    checkpoint before takes the swap back.

    Raises: NotFoundError (no such job), ConflictError (kind `moved`: `clone` does not hold all that `job`
    holds, or `job` went on meanwhile; kind `attempt_open`), InvalidInputError (kind `schema_change`: an
    operator has other keys there), FormatError, UnavailableError (call it again).
    """
    if job == clone:
        raise InvalidInputError(f"job {job!r} cannot take its own place: name its clone")
    other = CheckpointReader(clone, store, options)
    state = other.at()
    live = _taking_over(state, job, store, options, owner)
    last = live.at()
    if _is_done(live, live.timeline.seen()):
        return live.at()
    mine, theirs = _batches(live, last.checkpoint_id), _batches(other, state.checkpoint_id)
    _require_all(live, last, mine, other, state, theirs)
    _require_same_keys(last, state)
    new = [key for key in theirs if key not in mine]
    return live.adopt(state, store, new, parent=last.checkpoint_id, progress=progress)


def _taking_over(
    state: Checkpoint, job: str, store: ObjectStore, options: Options | None, owner: str
) -> CheckpointCoordinator:
    """Of the job that gets this state. Ends what this owner began with an earlier one of the same job.

    By its owner a repeat knows what it has done: a job may be dropped, and another of its name get as far.
    """
    of_job = f"{owner}/{state.manifest.job}@"
    known = f"{of_job}{state.checkpoint_id}/{state.attempt}"
    found = CheckpointCoordinator(job, store, options, owner=known)
    opened = found.timeline.tail().open_attempt
    if opened is not None and opened.owner.startswith(of_job) and opened.owner != known:
        found.abort(Attempt(opened.checkpoint_id, opened.attempt, opened.parent, job), f"{known} begins")
    return found


def _is_done(to: CheckpointCoordinator, view: TimelineView) -> bool:
    """Whether the last checkpoint is the one that was to be made; it is committed then."""
    last = view.last_completed
    if last is None or last.completed.owner != to.owner:
        return False
    to.compose_commit()
    return True


def _batches(reader: CheckpointReader, checkpoint_id: int) -> dict[BatchKey, None]:
    """The batches that this checkpoint holds, in the order in which they were applied first.

    By its parents: a restore may have abandoned it, and its state has its batches nevertheless.
    """
    made = {each.checkpoint_id: each for each in reader.timeline.records() if isinstance(each, Completed)}
    chain = []
    at: int | None = checkpoint_id
    while at is not None:
        chain.append(made[at])
        at = made[at].parent
    return {key: None for completed in reversed(chain) for key in completed.batches}


def _require_all(
    live: CheckpointReader,
    last: Checkpoint,
    mine: Iterable[BatchKey],
    other: CheckpointReader,
    state: Checkpoint,
    theirs: Iterable[BatchKey],
) -> None:
    """Raises: ConflictError (kind `moved`) if a batch that `live` holds is not in `other`, or a source of
    `live` stands elsewhere there and no batch says that it stands further on.
    """
    sources, others = last.manifest.sources, state.manifest.sources
    known, there = {*_named(mine, sources)}, {*_named(theirs, others)}
    missing = sorted({key for _, key, _ in known - there})
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise ConflictError(
            f"job {other.job!r} cannot take the place of {live.job!r}: it does not hold {shown}. Run these "
            "for it too, then swap again",
            kind=ErrorKind.MOVED,
        )
    further = {source for source, _, _ in there - known}  # a driver's batch, of source '', moves any
    for name, source in sources.items():
        here = source.stands or "its beginning"
        if name not in others:
            what = f"it does not have source {name!r}, which stands at {here} here"
        elif others[name].stands != source.stands and not further.intersection((name, "")):
            stands = others[name].stands or "its beginning"
            what = f"source {name!r} stands at {stands} there, and at {here} here"
        else:
            continue
        raise ConflictError(
            f"job {other.job!r} cannot take the place of {live.job!r}: {what}. Run it for {other.job!r} up "
            "to here, then swap again",
            kind=ErrorKind.MOVED,
        )


def _require_same_keys(last: Checkpoint, state: Checkpoint) -> None:
    """Raises: InvalidInputError (kind `schema_change`) for an operator whose keys the next batch of the job
    could not write.
    """
    for name, entry in last.manifest.operators.items():
        there = state.manifest.operators.get(name)
        if there is None or not (is_keyed(entry.report) and is_keyed(there.report)):
            continue
        here, other = (_keys_in_words(schema_of(each.report)) for each in (entry, there))
        if here != other:
            raise InvalidInputError(
                f"job {state.manifest.job!r} cannot take the place of {last.manifest.job!r}: its operator "
                f"{name!r} has the keys {other}, and here they are {here}. Write such rows to an operator of "
                "another name",
                kind=ErrorKind.SCHEMA_CHANGE,
            )


def _keys_in_words(schema: StateSchema) -> str:
    types = (schema.columns.field(name).type for name in schema.key_columns)
    named = ", ".join(f"{name} {kind}" for name, kind in zip(schema.key_columns, types, strict=True))
    return f"{named} in {schema.max_parallelism} key groups"


def _named(keys: Iterable[BatchKey], sources: Mapping[str, Source]) -> Iterable[tuple[str, str, str]]:
    """Source, key and window of each batch: the id of a source that began since may differ in a clone."""
    name_of = {source.id: name for name, source in sources.items()}
    return ((name_of.get(key.source, key.source), key.key, key.window) for key in keys)
