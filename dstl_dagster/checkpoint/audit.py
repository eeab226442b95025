"""Is a job in order? Checks its timeline against the objects in the store.

Owns the checks and the summary. Does not own whether the bytes are right (`verify`): it reads metadata only.
Changes nothing; safe to run concurrently with anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dstl_dagster.checkpoint.cleanup import CleanUp
from dstl_dagster.checkpoint.references import References, Walked
from dstl_dagster.errors import FormatError, NotFoundError
from dstl_dagster.format import JobNames
from dstl_dagster.storage import ObjectStore, concurrently
from dstl_dagster.timeline import Opened, TimelineView

__all__ = ["Audit", "Damage", "find_damage"]

_FEW = 8
"""So many objects are looked up one by one, concurrently: a listing may have more pages than that."""


@dataclass(frozen=True)
class Damage:
    """An object that a checkpoint needs and that is missing or unreadable. `what` is for people."""

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
        uncommitted: completed checkpoints whose files are not all published yet.
        blocked: names of files that need a person's resolution, by checkpoint.
        retracting: files of abandoned checkpoints may still be there; the next trigger retracts them.
        damage: what is missing or unreadable.
        garbage: what a clean-up that subsumes nothing more would delete; `None` if that is unknown because a
            manifest is unreadable.
    """

    slot: int
    latest: int | None
    retained: tuple[int, ...]
    abandoned: tuple[int, ...]
    savepoints: Mapping[str, int]
    open_attempt: Opened | None
    uncommitted: tuple[int, ...]
    blocked: Mapping[int, tuple[str, ...]]
    retracting: bool
    damage: tuple[Damage, ...]
    garbage: CleanUp | None

    @classmethod
    def of(cls, view: TimelineView, damage: Iterable[Damage], garbage: CleanUp | None) -> Audit:
        """Summarize a view and the findings. Pure."""
        return cls(
            slot=view.slot,
            latest=view.last_completed_id,
            retained=tuple(entry.checkpoint_id for entry in view.retained),
            abandoned=tuple(
                entry.checkpoint_id for entry in view.kept if view.is_abandoned(entry.checkpoint_id)
            ),
            savepoints=dict(view.savepoints),
            open_attempt=view.open_attempt,
            uncommitted=tuple(entry.checkpoint_id for entry in view.uncommitted),
            blocked={
                entry.checkpoint_id: tuple(file.name for file in entry.committed.blocked)
                for entry in view.retained
                if entry.committed is not None and entry.committed.blocked
            },
            retracting=bool(view.retractions),
            damage=tuple(damage),
            garbage=garbage,
        )

    @property
    def in_order(self) -> bool:
        """Nothing is damaged, and nothing needs a person."""
        return not self.damage and not self.blocked


def find_damage(
    store: ObjectStore, names: JobNames, view: TimelineView, references: References, *, threads: int
) -> list[Damage]:
    """Every missing object that a kept checkpoint needs, and every unreadable manifest.

    Each object is checked once, and reported for the oldest checkpoint that needs it.

    Raises: UnavailableError: the store did not answer, so nothing is known about the objects.
    """
    damage: list[Damage] = []
    needed: dict[str, int] = {}
    seen: Walked = {}
    for entry in view.kept:
        manifest = entry.completed.manifest
        try:
            for name in references.needed_by(manifest, seen):
                needed.setdefault(name, entry.checkpoint_id)
        except (NotFoundError, FormatError) as error:
            damage.append(Damage(entry.checkpoint_id, manifest, str(error)))
            seen = {}  # the next one needs what is unreadable too
    unsure = [name for name in needed if not references.was_read(name)]
    there = _there(store, names, unsure, threads)
    return damage + [Damage(needed[name], name, "is missing") for name in unsure if name not in there]


def _there(store: ObjectStore, names: JobNames, wanted: Sequence[str], threads: int) -> set[str]:
    """Those of these objects that exist. A listing tells of a thousand in one request."""
    listed = [name for name in wanted if name.startswith(names.attempts_prefix)]
    found: set[str] = set()
    if len(listed) > _FEW:
        found = set(listed).intersection(stat.name for stat in store.list(names.attempts_prefix))
    rest = [name for name in wanted if name not in found]
    looks = [partial(store.stat, name) for name in rest]
    stats = concurrently(looks, store.capabilities.lookup_threads(threads), "dstl-audit")
    return found.union(name for name, stat in zip(rest, stats, strict=True) if stat is not None)
