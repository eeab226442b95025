"""The outcome of a write in doubt, decided by a read of its object.

Owns the two rules, and the writes that follow them. Does not own retries (`policy.retry`), nor what a caller
does with a rival's object.

The rules:

1. After a *failed precondition* the object exists, and it may be ours: an earlier answer of this very
   write may have been lost.
2. After a *lost answer* nothing is known: only an object that is provably ours is success. None, or
   another's, does not prove that our write failed, and the same write may be sent again.

Provably ours is an object that carries the pairs the write stamped on it (at least a writer id that no
other write has) and has the size and CRC-32C of what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dstl_dagster.errors import ConflictError, UnavailableError
from dstl_dagster.format.crc32c import crc32c
from dstl_dagster.storage.base import (
    ABSENT,
    Absent,
    Buffer,
    Generation,
    ObjectStat,
    ObjectStore,
    Precondition,
)

WRITER_ID_KEY = "dstl-writer-id"
"""The metadata key of a write's id, which is chosen before the first try and reused by every retry."""


@dataclass(frozen=True)
class Expected:
    """The attributes that prove an object ours. `None` is not compared."""

    stamp: Mapping[str, str]
    size: int | None = None
    crc32c: int | None = None

    def matches(self, stat: ObjectStat) -> bool:
        """True if it carries the whole stamp and has the expected bytes. An empty stamp proves nothing."""
        return (
            bool(self.stamp)
            and all(stat.metadata.get(key) == value for key, value in self.stamp.items())
            and self.size in (None, stat.size)
            and self.crc32c in (None, stat.crc32c)
        )


def write_own(
    store: ObjectStore,
    name: str,
    expected: Expected,
    write: Callable[[], ObjectStat],
    *,
    precondition: Precondition = ABSENT,
) -> ObjectStat:
    """Perform one conditional write of `name`; in doubt read back by the two rules.

    Args:
        store: where `name` lies.
        name: the object that `write` makes.
        expected: how to know it again; `write` must stamp exactly this.
        write: sends the write once, with the stamp and `precondition`.
        precondition: what the write demands; it decides whether another's object means that we lost.

    Returns: the stat of the object, made by this call or by an earlier one with the same stamp.

    Raises: ConflictError (the name is another write's, or ours came and is gone), UnavailableError (the
    outcome is unknown: call again with the same stamp).

    """
    try:
        return write()
    except (ConflictError, UnavailableError) as error:
        stat = store.stat(name)
        if stat is not None and expected.matches(stat):
            return stat
        lost = isinstance(error, UnavailableError)
        if lost and stat is not None and not _may_still_arrive(stat, precondition):
            raise ConflictError(
                f"{name!r} is another writer's object (generation {stat.generation}); read it, then decide"
            ) from error
        raise


def _may_still_arrive(stat: ObjectStat, precondition: Precondition) -> bool:
    # Another's object ends a create-only write for as long as it lives. A replacement is still open
    # while the generation it replaces is there.
    match precondition:
        case Absent():
            return False
        case Generation(generation):
            return stat.generation == generation
        case _:
            return True


def put_own(
    store: ObjectStore,
    name: str,
    payload: Buffer,
    *,
    writer_id: str,
    precondition: Precondition = ABSENT,
) -> ObjectStat:
    """Put one object so that a repeat with the same `writer_id` and payload is the same write.

    Raises: as `write_own`.
    """
    pairs = {WRITER_ID_KEY: writer_id}
    expected = Expected(pairs, len(memoryview(payload).cast("B")), crc32c(payload))
    return write_own(
        store,
        name,
        expected,
        lambda: store.put(name, payload, precondition=precondition, metadata=pairs),
        precondition=precondition,
    )
