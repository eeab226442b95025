"""Temporary objects as observed, and deleting exactly these.

Owns the pinned value, and the deletion of what was copied to another bucket. Does not own when an object may
go (`commit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from dstl_dagster.clock import Clock
from dstl_dagster.errors import ConflictError
from dstl_dagster.storage import Generation, ObjectStat, ObjectStore, delete_each, let_settle


@dataclass(frozen=True)
class Pin:
    """One object as observed: no generation but this one is ever read or deleted.

    `updated` is its time stamp by the store's clock, if known.
    """

    name: str
    generation: int
    size: int
    crc32c: int
    updated: datetime | None = None

    @classmethod
    def of(cls, stat: ObjectStat) -> Pin:
        return cls(stat.name, stat.generation, stat.size, stat.crc32c, stat.updated)


@dataclass(frozen=True)
class CopiedSource:
    """A temporary object whose copy in another bucket is the final one: to be deleted by `delete_copied`."""

    store: ObjectStore
    pin: Pin


def all_there(pins: Sequence[Pin | None]) -> list[Pin] | None:
    """The pins; `None` if one is missing."""
    there = [pin for pin in pins if pin is not None]
    return there if len(there) == len(pins) else None


def delete_exactly(store: ObjectStore, pin: Pin) -> bool:
    """Whether this call deleted it."""
    try:
        return store.delete(pin.name, precondition=Generation(pin.generation))
    except ConflictError:
        return False  # another generation has the name: ours is gone, and this one is not ours


def delete_copied(sources: Iterable[CopiedSource], clock: Clock, *, threads: int) -> None:
    """Delete them all, after one wait for the youngest, so that none changes twice within a second.

    Until then the commits that copied them are not done: a rival could copy them again. Idempotent.

    Raises: UnavailableError.
    """
    by_bucket: dict[str, list[CopiedSource]] = {}
    for source in sources:
        by_bucket.setdefault(source.store.bucket_name, []).append(source)
    for copied in by_bucket.values():
        store, pins = copied[0].store, [each.pin for each in copied]
        let_settle(store, (pin.updated for pin in pins if pin.updated is not None), clock)
        for _ in delete_each(
            store, [(pin.name, Generation(pin.generation)) for pin in pins], threads=threads
        ):
            pass  # a conflict: another generation has the name, and ours is gone
