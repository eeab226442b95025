"""The cost of requests to a store: operations by the class they are billed under, bytes and seconds.

Owns which request is of which class, the sum (`Cost`), the counter (`CostMeter`), and the sums of a
checkpoint's steps. Does not own where requests are made (`gcs.transport`, `accounting.metered`), or what they
cost in money (`settings.prices`): prices change, and the requests that were made do not.

A manifest has the cost of steps 1 to 4, because it is written in step 4. Steps 5 and 6 leave a note beside
the record that ends them.

Source: Google's price list, "Operations that fall into each class". A request that the service answers with
4xx or 5xx is not charged: it counts as free. One whose answer was lost counts as if it had been carried out.
"""

from __future__ import annotations

import json
import operator
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, StrEnum
from typing import Any, Final

from dstl_dagster.clock import Clock
from dstl_dagster.errors import FormatError
from dstl_dagster.format import counted, readable_bytes
from dstl_dagster.format.envelope import reading
from dstl_dagster.settings import StoragePrices


class RequestClass(StrEnum):
    """The class that Google Cloud Storage bills a request under."""

    A = "A"
    B = "B"
    FREE = "free"


class Operation(Enum):
    """One kind of request."""

    INSERT = "objects.insert"  # a whole object, or the start of an upload session
    SESSION = "upload session"  # any further request of a session: chunk, end, status, cancellation
    COMPOSE = "objects.compose"
    REWRITE = "objects.rewrite"
    REWRITE_ON = "objects.rewrite, continued"
    LIST = "objects.list"  # one page
    STAT = "objects.get"
    READ = "objects.get, media"
    BUCKET = "buckets.get"
    PERMISSIONS = "buckets.testIamPermissions"
    DELETE = "objects.delete"  # each part of a batch is one


OPERATION_CLASSES: Final[Mapping[Operation, RequestClass]] = {
    Operation.INSERT: RequestClass.A,
    Operation.SESSION: RequestClass.FREE,  # an upload is one operation, however many requests it takes
    Operation.COMPOSE: RequestClass.A,
    Operation.REWRITE: RequestClass.A,
    Operation.REWRITE_ON: RequestClass.FREE,  # as for an upload
    Operation.LIST: RequestClass.A,
    Operation.STAT: RequestClass.B,
    Operation.READ: RequestClass.B,
    Operation.BUCKET: RequestClass.B,
    Operation.PERMISSIONS: RequestClass.B,
    Operation.DELETE: RequestClass.FREE,
}


@dataclass(frozen=True)
class Cost:
    """A sum of requests, and the time they took. All are 0 or more.

    Attributes:
        class_a, class_b, free: requests by the class they are billed under; refused ones are free. Each part
            of a batch is a request.
        bytes_up, bytes_down: of objects' contents, repeats included; no headers, metadata or listings.
        retries: requests that were made because an earlier one failed or its answer was lost.
        uploads: objects begun to upload, by one request or a session, retries included.
        composes: requests to compose, retries included.
        seconds: of a step, by the clock of the process that drove it; 0 where requests alone are counted.
    """

    class_a: int = 0
    class_b: int = 0
    free: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    retries: int = 0
    uploads: int = 0
    composes: int = 0
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        """Of all classes."""
        return self.class_a + self.class_b + self.free

    def __add__(self, other: Cost) -> Cost:
        return Cost.sum_of((self, other))

    @classmethod
    def sum_of(cls, each: Iterable[Cost]) -> Cost:
        columns = zip(*map(_VALUES, each), strict=True)
        return cls(*map(sum, columns))

    def __sub__(self, earlier: Cost) -> Cost:
        """The cost since `earlier`, an older reading of the same meter."""
        return Cost(*(getattr(self, name) - getattr(earlier, name) for name in _FIELDS))

    def __bool__(self) -> bool:
        return self != NO_COST

    @classmethod
    def of(
        cls,
        operation: Operation,
        *,
        number: int = 1,
        refused: bool = False,
        again: bool = False,
        bytes_up: int = 0,
        bytes_down: int = 0,
    ) -> Cost:
        """`number` requests of one kind. `refused`: answered with an error; `again`: because of a failure."""
        billed = RequestClass.FREE if refused else OPERATION_CLASSES[operation]
        return cls(
            class_a=number if billed is RequestClass.A else 0,
            class_b=number if billed is RequestClass.B else 0,
            free=number if billed is RequestClass.FREE else 0,
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            retries=number if again else 0,
            uploads=number if operation is Operation.INSERT else 0,
            composes=number if operation is Operation.COMPOSE else 0,
        )

    def usd(self, prices: StoragePrices) -> float:
        """In US dollars, at these prices."""
        operations = self.class_a * prices.class_a_per_thousand + self.class_b * prices.class_b_per_thousand
        return operations / 1000 + self.bytes_down * prices.egress_per_gib / _GIB

    def in_words(self) -> str:
        return (
            f"{counted(self.requests, 'request')} (A {self.class_a}, B {self.class_b}, free {self.free}; "
            f"{counted(self.uploads, 'upload')}, {self.retries} retries), "
            f"{readable_bytes(self.bytes_up)} up, {readable_bytes(self.bytes_down)} down, "
            f"{self.seconds:.3f} s"
        )

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object, the inverse of `from_json`; zeros are left out."""
        return {name: getattr(self, name) for name in _FIELDS if getattr(self, name)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Cost:
        """Unknown names, of a later version, are ignored. Raises: FormatError."""
        with reading("a cost is not valid"):
            return cls(**{name: _count(name, plain[name]) for name in plain.keys() & _FIELDS})


def _count(name: str, value: Any) -> Any:
    kinds = (int, float) if name == "seconds" else (int,)
    if not isinstance(value, kinds) or isinstance(value, bool) or not value >= 0:
        raise FormatError(f"{name!r} is {value!r}, not a count")
    return value


_FIELDS: Final = tuple(field.name for field in fields(Cost))
_VALUES: Final = operator.attrgetter(*_FIELDS)
_GIB: Final = 1 << 30
NO_COST: Final = Cost()


class CostMeter:
    """Counts requests. Any thread; only grows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cost = NO_COST

    @property
    def cost(self) -> Cost:
        """All so far."""
        return self._cost

    def add(self, cost: Cost) -> None:
        with self._lock:
            self._cost += cost


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
_NOTE_KEY = "dstl-cost"


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


def cost_note(cost: Cost) -> dict[str, str]:
    """As the metadata of the record whose write ends the step, that write included."""
    return {_NOTE_KEY: json.dumps((cost + OWN_RECORD).to_json())}


def cost_from_note(metadata: Mapping[str, str]) -> Cost | None:
    """`None` if there is none, or it was edited: nothing depends on it."""
    try:
        return Cost.from_json(json.loads(metadata[_NOTE_KEY]))
    except (FormatError, KeyError, RecursionError, TypeError, ValueError):
        return None


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
        seconds = self._clock.monotonic_seconds() - self._began_seconds
        return replace(self._read() - self._before, seconds=seconds)

    def in_words(self) -> str:
        """`so_far`, for a line of a log."""
        return self.so_far().in_words()
