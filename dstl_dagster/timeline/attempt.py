"""An attempt: the right to work on one checkpoint, as a value that travels between processes.

Owns the value and its JSON form. Does not own whether the attempt is still alive: only the timeline knows.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from dstl_dagster.errors import FormatError, InvalidInputError
from dstl_dagster.format import JobNames, Stored
from dstl_dagster.timeline.records import BatchKey, OfABatch

_SHARED_BITS = (1 << 48) - 1


def attempt_id(random: uuid.UUID, timeline: str) -> uuid.UUID:
    """A new attempt's UUID: random, but for its last 48 bits, which are the last ones of its timeline's id.

    So each object that it writes says of which timeline it is, also after that is gone. The attempt that
    opens a timeline does not know the id: all of its bits are random.
    """
    if not timeline:
        return random
    return uuid.UUID(int=random.int & ~_SHARED_BITS | int(timeline, 16) & _SHARED_BITS)


def is_attempt_of(attempt: uuid.UUID, timeline: str) -> bool:
    """Whether it has been opened on this timeline, by its bits; false for the one that opened it."""
    return attempt.int & _SHARED_BITS == int(timeline, 16) & _SHARED_BITS


@dataclass(frozen=True)
class Attempt(OfABatch, Stored):
    """The result of step 1, which every later step takes.

    Attributes:
        checkpoint_id: the checkpoint in progress, 1 or more.
        attempt: the attempt's UUID; the name of every temporary object it writes carries it.
        parent: the checkpoint it builds on; `None` for a job's first.
        job: the job's name.
        store_uri: the job's store, as `open_store` takes it. Holds no secret.
        batch: identifies the batch; at most one checkpoint of a chain completes with it.
        base: as of a `Completed` record.
        timeline: the id of the job's timeline; empty for an attempt that is its first record.
        snapshot_slot: the newest snapshot on the timeline when it was opened, 0 if there was none; later
            steps begin to read there. `None`: unknown.
    """

    checkpoint_id: int
    attempt: uuid.UUID
    parent: int | None
    job: str = ""
    store_uri: str = ""
    batch: BatchKey | None = None
    base: int | None = None
    timeline: str = field(default="", compare=False)
    snapshot_slot: int | None = field(default=None, compare=False)

    @property
    def names(self) -> JobNames:
        return JobNames(self.job)

    @classmethod
    def from_json(cls, plain: Any) -> Attempt:
        """Inverse of `to_json`. Raises: InvalidInputError if the object is not an attempt."""
        try:
            return super().from_json(plain)
        except FormatError as error:
            raise InvalidInputError(
                "expected a batch's reference, which `update` hands on by `return batch.reference`, not "
                f"{repr(plain)[:80]}"
            ) from error


@dataclass(frozen=True)
class PlannedAttempt:
    """An attempt that step 1 has prepared and that is not open yet. Nothing may be written under it.

    Attributes:
        attempt: as it will be.
        slot: the last slot of the timeline when it was planned. It fences nothing that was opened since.
    """

    attempt: Attempt
    slot: int
