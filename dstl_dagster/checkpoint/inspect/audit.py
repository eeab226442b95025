"""Is a job in order? Checks its timeline against the objects in the store.

Owns the checks and the summary. Does not own whether the bytes are right (`verify`): it reads metadata only,
so lengths, and where the store has them anyway checksums. Changes nothing; safe to run concurrently with
anything.

An attempt is on the timeline before it writes anything, and stays there. So an object of an attempt that the
timeline does not know, read after the object was listed, says that records are missing: the last ones, since
a gap is found by any reader.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from dstl_dagster.checkpoint.job import Job
from dstl_dagster.checkpoint.steps.clean_up import CleanUp, collect_garbage
from dstl_dagster.checkpoint.steps.references import References, Written
from dstl_dagster.concurrency import gather
from dstl_dagster.errors import FormatError, NotFoundError
from dstl_dagster.format import JobNames
from dstl_dagster.recoverable import GSBlobIdentifier
from dstl_dagster.storage import ObjectStat, ObjectStore
from dstl_dagster.timeline import (
    CheckpointEntry,
    Opened,
    TimelineView,
    missing_job,
    refuse_renamed,
    unexplained,
)

log = logging.getLogger(__name__)
_FEW = 8
"""So many objects are looked up one by one, concurrently: a listing may have more pages than that."""


@dataclass(frozen=True)
class Damage:
    """An object of a checkpoint that is missing, unreadable or of another length. `what` is for people."""

    checkpoint_id: int
    object_name: str
    what: str


@dataclass(frozen=True)
class Audit:
    """The status of a job.

    Attributes:
        slot: the slot of the timeline's last record; 0 if the job has none.
        latest: the checkpoint that the job resumes from.
        retained: checkpoints that can be restored to, ascending.
        abandoned: checkpoints that a restore abandoned and that are not subsumed yet.
        savepoints: checkpoint ids by name.
        open_attempt: the attempt in progress.
        recorded: it has its manifest: it is between steps 4 and 5, or its `completed` record is lost.
        uncommitted: completed checkpoints whose files are not all published yet.
        blocked: names of files that need a person's resolution, by checkpoint.
        retracting: files of abandoned checkpoints may still be there; the next trigger retracts them.
        damage: what is missing, unreadable, or not as long as it was.
        unexplained: an object of each attempt that no record names: the last records are lost.
        garbage: what a clean-up that subsumes nothing more would delete; `None` if that is unknown because a
            manifest is unreadable.
    """

    slot: int
    latest: int | None
    retained: tuple[int, ...]
    abandoned: tuple[int, ...]
    savepoints: Mapping[str, int]
    open_attempt: Opened | None
    recorded: bool
    uncommitted: tuple[int, ...]
    blocked: Mapping[int, tuple[str, ...]]
    retracting: bool
    damage: tuple[Damage, ...]
    unexplained: tuple[str, ...]
    garbage: CleanUp | None

    @property
    def in_order(self) -> bool:
        """Nothing is damaged or lost, and nothing needs a person."""
        return not self.damage and not self.unexplained and not self.blocked


def audit(job: Job) -> Audit:
    """See `CheckpointCoordinator.audit`."""
    garbage: CleanUp | None = None
    attempts, recorded = _attempts_seen(job.store, job.names)
    view = job.timeline.tail(even_lost=True)
    if not view.slot:
        raise missing_job(job.store, job.name)
    for _ in job.timeline.records():
        pass  # also those that a snapshot sums up: a restore and a clone read them
    for entry in view.kept[:1]:
        refuse_renamed(job.store, job.name, entry.completed.manifest)
    references = References(job.store, threads=job.threads)
    references.read_ahead(view.kept)
    try:
        garbage = collect_garbage(job, dry_run=True, references=references)
    except (FormatError, NotFoundError) as error:
        log.warning("cannot determine the garbage of job %s: %s", job.name, error)
    view = job.timeline.tail()
    damage = _find_damage(job, view, references) + _find_cut(job, view, references)
    found = [(name, attempt) for attempt, name in attempts.items()]
    return Audit(
        slot=view.slot,
        latest=view.last_completed_id,
        retained=tuple(entry.checkpoint_id for entry in view.retained),
        abandoned=tuple(entry.checkpoint_id for entry in view.kept if view.is_abandoned(entry.checkpoint_id)),
        savepoints=dict(view.savepoints),
        open_attempt=view.open_attempt,
        recorded=view.open_attempt is not None and view.open_attempt.attempt in recorded,
        uncommitted=tuple(entry.checkpoint_id for entry in view.uncommitted),
        blocked={
            entry.checkpoint_id: tuple(file.name for file in entry.committed.blocked)
            for entry in view.retained
            if entry.committed is not None and entry.committed.blocked
        },
        retracting=bool(view.retractions),
        damage=tuple(damage),
        unexplained=tuple(sorted(unexplained(found, view, job.lookup_threads))),
        garbage=garbage,
    )


def _find_damage(job: Job, view: TimelineView, references: References) -> list[Damage]:
    """Every object that a stored checkpoint needs and that is missing or has another length, and every
    unreadable manifest.

    Each object is checked once, and reported for the oldest checkpoint that needs it. Checkpoints that a
    restore left behind count only where a savepoint keeps them.

    Raises: UnavailableError: the store did not answer, so nothing is known about the objects.
    """
    damage: list[Damage] = []
    needed: dict[str, int] = {}
    references.read_ahead(view.kept)
    saved = set(view.savepoints.values())
    for entry in view.kept:
        if view.is_abandoned(entry.checkpoint_id) and entry.checkpoint_id not in saved:
            continue  # no restore goes back to it, and the next clean-up deletes it
        try:
            for name in references.needed_by(entry):
                needed.setdefault(name, entry.checkpoint_id)
        except (NotFoundError, FormatError) as error:
            damage.append(Damage(entry.checkpoint_id, entry.completed.manifest, str(error)))
    unsure = [name for name in needed if not references.was_read(name)]
    there = _there(job, unsure)
    sums = not job.store.capabilities.is_local  # there a checksum may take reading
    for name in unsure:
        what = _difference(there.get(name), references.written(name), sums=sums)
        if what is not None:
            damage.append(Damage(needed[name], name, what))
    return damage


def _find_cut(job: Job, view: TimelineView, references: References) -> list[Damage]:
    """Published files that do not have their length. Those that are gone were taken by their consumer."""
    files = [(entry, *file) for entry in view.retained for file in references.files(entry).items()]
    looks = [partial(_of_file, job.store, entry, file) for entry, file, _ in files]
    damage = []
    for (entry, file, size), found in zip(
        files, gather(looks, job.lookup_threads, "dstl-audit"), strict=True
    ):
        what = None if found is None else _difference(found, (size, None), sums=False)
        if what is not None:
            damage.append(Damage(entry.checkpoint_id, file.object_name, f"is published and {what}"))
    return damage


def _of_file(store: ObjectStore, entry: CheckpointEntry, file: GSBlobIdentifier) -> ObjectStat | None:
    """A published file's; in a copied store that of the copy."""
    return entry.completed.origin.located(store).in_bucket(file.bucket_name).stat(file.object_name)


def _difference(found: ObjectStat | None, written: Written, *, sums: bool) -> str | None:
    size, crc = written
    if found is None:
        return "is missing"
    if size not in (None, found.size):
        return f"has {found.size:,} bytes, not {size:,}"
    if sums and crc not in (None, found.crc32c):
        return f"has other bytes: their CRC-32C is {found.crc32c:08x}, not {crc:08x}"
    return None


def _there(job: Job, wanted: Sequence[str]) -> dict[str, ObjectStat]:
    """Those of these objects that exist, by name. A listing covers a thousand in one request."""
    store, names = job.store, job.names
    listed = {name for name in wanted if name.startswith(names.attempts_prefix)}
    found: dict[str, ObjectStat] = {}
    if len(listed) > _FEW:
        found = {stat.name: stat for stat in store.list(names.attempts_prefix) if stat.name in listed}
    rest = [name for name in wanted if name not in found]
    looks = [partial(store.stat, name) for name in rest]
    stats = gather(looks, job.lookup_threads, "dstl-audit")
    return found | {stat.name: stat for stat in stats if stat is not None}


def _attempts_seen(store: ObjectStore, names: JobNames) -> tuple[dict[uuid.UUID, str], set[uuid.UUID]]:
    """The attempts that have objects of this job, each with the name of one; and those with a manifest."""
    found: dict[uuid.UUID, str] = {}
    recorded = set()
    for stat in chain(store.list(names.attempts_prefix), store.list(names.manifests_prefix)):
        attempt = names.attempt_of(stat.name)
        if attempt is not None:
            found.setdefault(attempt, stat.name)
            if stat.name.startswith(names.manifests_prefix):
                recorded.add(attempt)
    return found, recorded
