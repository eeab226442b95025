"""Which request fails, and how.

Owns the vocabulary of faults and the schedules. Does not own their effect (`fault_store`). A schedule is
asked once per request, in the order in which requests are sent, and may keep state.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

__all__ = ["AtRequests", "Fault", "FaultSchedule", "NoFaults", "Request", "SeededFaults", "SimulatedCrash"]


class SimulatedCrash(BaseException):
    """The process died here. No `except Exception` catches it, as none catches SIGKILL."""


class Fault(Enum):
    """The fate of one request. For a request that changes nothing, a lost or late effect is an error."""

    CRASH_BEFORE = "crash_before"  # the process dies; the request was never sent
    CRASH_AFTER = "crash_after"  # the request has its effect; the process dies before the answer
    CRASH_LATE = "crash_late"  # the process dies; the request was in flight, and has its effect later
    ERROR_BEFORE = "error_before"  # no effect; UnavailableError
    LOST_ANSWER = "lost_answer"  # the effect happens; UnavailableError all the same
    LATE_EFFECT = "late_effect"  # UnavailableError now; the effect comes later, if still possible
    REPEATED = "repeated"  # succeeds; but a twin of the request arrives later (the client sent it twice)
    DELAY = "delay"  # succeeds after the clock has advanced
    CORRUPT = "corrupt"  # one bit of what is read is flipped; other requests are unharmed


@dataclass(frozen=True)
class Request:
    """One request that a store was about to send.

    Attributes:
        index: from 0, counted across all buckets of one `FaultStore`.
        method: `put`, `write`, `finish` (the end of a stream), `stat`, `get`, `get_range`, `open_read`,
            `read`, `list`, `compose`, `copy`, `delete`.
        bucket_name: the bucket of `name`.
        name: the object written, read or deleted; the prefix of a list.
        changes: True if it may change what is stored.

    """

    index: int
    method: str
    bucket_name: str
    name: str
    changes: bool


class FaultSchedule(Protocol):
    """Decides which requests fail, without seeing outcomes."""

    def decide(self, request: Request) -> Fault | None:
        """The fault of this request; None: no fault."""
        ...

    def deliver_late_effect(self) -> bool:
        """Asked before each request, for each effect still in flight: does it arrive now?"""
        ...


class NoFaults:
    """No request fails."""

    def decide(self, request: Request) -> Fault | None:
        del request
        return None

    def deliver_late_effect(self) -> bool:
        return False


class AtRequests:
    """Faults at these indexes. Late effects arrive only when the test delivers them."""

    def __init__(self, faults: Mapping[int, Fault]) -> None:
        self._faults = dict(faults)

    def decide(self, request: Request) -> Fault | None:
        return self._faults.get(request.index)

    def deliver_late_effect(self) -> bool:
        return False


class SeededFaults:
    """Each request fails with a probability; the same seed and requests give the same faults.

    Args:
        seed: of the random numbers.
        rate: from 0 to 1, per request.
        faults: equally likely; by default those that a process survives.
    """

    def __init__(
        self,
        seed: int,
        rate: float,
        faults: Sequence[Fault] = (Fault.ERROR_BEFORE, Fault.LOST_ANSWER, Fault.LATE_EFFECT),
    ) -> None:
        self._random = random.Random(seed)  # noqa: S311 (a replayable choice, no secret)
        self._rate = rate
        self._faults = tuple(faults)

    def decide(self, request: Request) -> Fault | None:
        del request
        if self._random.random() >= self._rate:
            return None
        return self._random.choice(self._faults)

    def deliver_late_effect(self) -> bool:
        return self._random.random() < 0.3
