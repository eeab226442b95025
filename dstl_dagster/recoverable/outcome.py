"""How a commit ended. Owns the values only (`commit` makes them)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dstl_dagster.storage import ObjectStat

__all__ = ["CommitOutcome", "CommitState", "blocked_by"]


class CommitState(StrEnum):
    """How a commit ended."""

    PUBLISHED = "published"  # this run (or a concurrent one) wrote the final object; no source is left
    ALREADY_PUBLISHED = "already_published"  # it existed, provably of this commit; no source is left
    TAKEN_AWAY = "taken_away"  # sources and final object are gone: it was published and removed since
    BLOCKED = "blocked"  # a foreign object has the name; it is untouched, and no byte of ours is lost


@dataclass(frozen=True)
class CommitOutcome:
    """What became of one file.

    Attributes:
        state: see `CommitState`.
        final: the final object, if it exists and is ours.
        reason: for a person to read, where the state needs explaining.
        foreign_generation: of the foreign object, when blocked.
    """

    state: CommitState
    final: ObjectStat | None = None
    reason: str | None = None
    foreign_generation: int | None = None


def blocked_by(stat: ObjectStat, where: str) -> CommitOutcome:
    """A commit that ends at this foreign object."""
    return CommitOutcome(
        CommitState.BLOCKED,
        reason=(
            f"{where!r} is a foreign object (generation {stat.generation}), and was not touched; "
            "keep it, or delete it and commit again"
        ),
        foreign_generation=stat.generation,
    )
