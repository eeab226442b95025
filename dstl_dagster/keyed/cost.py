"""What the steps of a checkpoint cost: requests, bytes and seconds, never money.

Owns the values and their JSON form, which reports and manifests carry. Does not own what is counted
(`storage.traffic`) or prices (`settings.prices`): those change, and what was requested does not.

A manifest has steps 1 to 4, because it is written in step 4. Steps 5 and 6 leave a note beside the record
that ends them. A step that nobody counted is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dstl_dagster.clock import Clock
from dstl_dagster.errors import FormatError
from dstl_dagster.format import counted, readable_bytes
from dstl_dagster.format.envelope import reading
from dstl_dagster.settings import StoragePrices
from dstl_dagster.storage import NO_TRAFFIC, Operation, Traffic

__all__ = [
    "COMPOSE_COMMIT",
    "CONFIRM",
    "OWN_WRITE",
    "PERSIST",
    "RECORD",
    "TRIGGER",
    "CheckpointCost",
    "Spending",
    "StepCost",
]

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
_NOTE_KEY = "dstl-cost"


@dataclass(frozen=True)
class StepCost:
    """What one step took. `seconds`: by the clock of the process that drove it."""

    traffic: Traffic = NO_TRAFFIC
    seconds: float = 0.0

    def __add__(self, other: StepCost) -> StepCost:
        return StepCost(self.traffic + other.traffic, self.seconds + other.seconds)

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object, the inverse of `from_json`."""
        return {"seconds": self.seconds, **self.traffic.to_json()}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> StepCost:
        """Raises: FormatError."""
        with reading("the cost of a step is not valid"):
            return cls(Traffic.from_json(plain), float(plain["seconds"]))

    def to_note(self) -> dict[str, str]:
        """As the metadata of the object whose write ends the step, that write included."""
        return {_NOTE_KEY: json.dumps((self + _OWN_RECORD).to_json())}

    @classmethod
    def from_note(cls, metadata: Mapping[str, str]) -> StepCost | None:
        """`None` if there is none, or somebody edited it: nothing depends on it."""
        try:
            return cls.from_json(json.loads(metadata[_NOTE_KEY]))
        except (FormatError, KeyError, RecursionError, TypeError, ValueError):
            return None

    def in_words(self) -> str:
        """For a line of a log."""
        spent = self.traffic
        return (
            f"{counted(spent.requests, 'request')} (A {spent.class_a}, B {spent.class_b}, free {spent.free}; "
            f"{spent.retries} retries), {readable_bytes(spent.bytes_up)} up, "
            f"{readable_bytes(spent.bytes_down)} down, {self.seconds:.3f} s"
        )


@dataclass(frozen=True)
class CheckpointCost:
    """What the steps that were counted took, by the step's name, in their order."""

    steps: Mapping[str, StepCost] = field(default_factory=dict)

    @property
    def total(self) -> Traffic:
        """Over all steps."""
        return sum((step.traffic for step in self.steps.values()), NO_TRAFFIC)

    def with_step(self, name: str, cost: StepCost) -> CheckpointCost:
        """The same with this step added to, or after, those that there are."""
        return CheckpointCost({**self.steps, name: self.steps.get(name, StepCost()) + cost})

    def to_json(self) -> list[dict[str, Any]]:
        """A plain JSON array, in the order of the steps."""
        return [{"step": name, **cost.to_json()} for name, cost in self.steps.items()]

    @classmethod
    def from_json(cls, plain: Any) -> CheckpointCost:
        """Raises: FormatError."""
        with reading("the cost of a checkpoint is not valid"):
            return cls({str(step["step"]): StepCost.from_json(step) for step in plain})


def list_price_usd(traffic: Traffic, prices: StoragePrices) -> float:
    """What these requests cost in US dollars. Pure."""
    return prices.usd(class_a=traffic.class_a, class_b=traffic.class_b, bytes_down=traffic.bytes_down)


OWN_WRITE: Final = StepCost(Traffic.of(Operation.INSERT))
"""The write of the document that carries the cost. Its bytes, and a repeat of it, are in no count."""


_OWN_RECORD: Final = OWN_WRITE + StepCost(Traffic.of(Operation.READ))
"""A record's write, and the look at the timeline's first slot beside it."""


class Spending:
    """What is spent from now on. Any thread.

    Args:
        read: the meter.
        clock: measures.
    """

    def __init__(self, read: Callable[[], Traffic], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._began_seconds = clock.monotonic_seconds()
        self._before = read()

    def so_far(self) -> StepCost:
        """Since it was made."""
        seconds = self._clock.monotonic_seconds() - self._began_seconds
        return StepCost(self._read() - self._before, seconds)

    def in_words(self) -> str:
        """`so_far`, for a line of a log."""
        return self.so_far().in_words()
