"""What the steps of a checkpoint cost.

Owns the steps' names, the sum by step, and their JSON form, which reports and manifests carry. Does not own
what is counted (`accounting.cost`).

A manifest has steps 1 to 4, because it is written in step 4; what steps 5 and 6 cost is in their log. A step
that was not counted is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dstl_dagster.clock import Clock
from dstl_dagster.format.envelope import reading
from dstl_dagster.storage.accounting.cost import NO_COST, Cost, Operation

TRIGGER: Final = "trigger"
"""Step 1."""
PERSIST: Final = "persist"
"""Steps 2 and 3, in the driver and in its tasks."""
RECORD: Final = "record"
"""Step 4."""
CONFIRM: Final = "confirm"
"""Step 5."""
COMPOSE_COMMIT: Final = "compose-commit"
"""Step 6."""
OWN_WRITE: Final = Cost.of(Operation.INSERT)
"""The write of the document that carries the cost. Its bytes, and a repeat of it, are in no count."""
OWN_RECORD: Final = OWN_WRITE + Cost.of(Operation.READ)
"""The write of a record or manifest, and the look at the timeline's first slot beside it."""


@dataclass(frozen=True)
class CheckpointCost:
    """Of the steps that were counted, by the step's name, in their order."""

    steps: Mapping[str, Cost] = field(default_factory=dict)

    @property
    def total(self) -> Cost:
        """Over all steps."""
        return Cost.sum_of(self.steps.values())

    def with_step(self, name: str, cost: Cost) -> CheckpointCost:
        """The same with this step added to, or after, those that there are."""
        return CheckpointCost({**self.steps, name: self.steps.get(name, NO_COST) + cost})

    def to_json(self) -> list[dict[str, Any]]:
        """A plain JSON array, in the order of the steps; the time of each stands there, also if it is 0."""
        return [
            {"step": name, "seconds": cost.seconds, **cost.to_json()} for name, cost in self.steps.items()
        ]

    @classmethod
    def from_json(cls, plain: Any) -> CheckpointCost:
        """Raises: FormatError."""
        with reading("the cost of a checkpoint is not valid"):
            return cls({str(step["step"]): Cost.from_json(step) for step in plain})


class RunningCost:
    """The cost of a step, from the moment when this is made. Any thread.

    Args:
        read: the meter.
        clock: measures.
    """

    def __init__(self, read: Callable[[], Cost], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._began_seconds = clock.monotonic_seconds()
        self._before = read()

    def so_far(self) -> Cost:
        """Since it was made."""
        seconds = self._clock.monotonic_seconds() - self._began_seconds
        return replace(self._read() - self._before, seconds=seconds)

    def in_words(self) -> str:
        """`so_far`, for a line of a log."""
        return self.so_far().in_words()
