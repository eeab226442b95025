"""What happens in one world of `queries`, drawn from its seed, and what each writer writes there.

Owns these. Does not own who does it (`queries`), or what must be true afterwards (`queries_oracle`).
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import MemoryObjectStore, ObjectStore

__all__ = ["HEIR", "JOB", "RIGHT", "World", "line", "rows_of"]

JOB = "job"
RIGHT, HEIR = "right", "heir"
KEYS = 12


@dataclass
class World:
    """One job, and everything that works on it.

    Attributes:
        files: the queries and batches write lines to files; otherwise rows of keyed state.
        peaceful: nothing fails but wrong queries, and no other writer is right: the right one meets no error.
        told: the kinds of errors that each of them met.
    """

    seed: int
    files: bool
    peaceful: bool
    batches: int
    handover: int | None
    days: int
    second_driver: bool
    wrong: int
    rate: float
    store: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    told: dict[str, Counter[str]] = field(default_factory=dict)
    spark_log: dict[str, int] = field(default_factory=dict)
    over: bool = False

    @classmethod
    def of(cls, seed: int) -> World:
        chance = random.Random(seed)
        peaceful = chance.random() < 0.4
        batches = chance.randint(2, 5)
        return cls(
            seed=seed,
            files=chance.random() < 0.4,
            peaceful=peaceful,
            batches=batches,
            handover=chance.randint(1, batches) if chance.random() < 0.3 else None,
            days=0 if peaceful else chance.randint(0, 3),
            second_driver=not peaceful and chance.random() < 0.4,
            wrong=chance.randint(1, 2),
            rate=chance.choice([0.0, 0.01, 0.03]),
        )

    def micro_batches(self) -> list[tuple[str, int]]:
        """What the job has to hold, in this order."""
        split = self.batches if self.handover is None else self.handover
        old = [(RIGHT, number) for number in range(split)]
        return old + ([] if self.handover is None else [(HEIR, number) for number in range(self.batches)])

    def coordinator(
        self, store: ObjectStore | None = None, owner: str | None = None
    ) -> CheckpointCoordinator:
        options = CheckpointOptions(num_retained=3, reader_grace=timedelta(0), commit_threads=1)
        return CheckpointCoordinator(JOB, store or self.store, options, owner=owner)


def rows_of(writer: str, number: int) -> list[tuple[int, str]]:
    """The rows of a micro-batch or a day: keys that others write too, and a value that nobody else writes."""
    chance = random.Random(f"{writer} {number}")
    keys = chance.sample(range(KEYS), chance.randint(0, 6))
    return [(key, f"{writer} {number} {key}") for key in sorted(keys)]


def line(row: tuple[int, str]) -> str:
    return f"{row[0]},{row[1]}"
