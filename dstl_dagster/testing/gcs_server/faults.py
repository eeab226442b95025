"""Faults of the server, per API method. Owns the rules and their hit counts; the handler performs them."""

from __future__ import annotations

import fnmatch
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["FaultKind", "FaultPlan", "RandomFaults", "ServerFault"]


class FaultKind(Enum):
    """The fate of a request."""

    STATUS = "status"  # no effect; the response has `status`
    MISMATCH = "mismatch"  # no effect; 400, as for a payload damaged in transit
    RESET = "reset"  # no effect; the connection is reset
    STALL = "stall"  # no effect; no response for `seconds`, then a reset
    DROP_ANSWER = "drop_answer"  # the effect happens; the connection is reset before the response
    GARBLE = "garble"  # the effect happens; the response is HTML labelled as JSON, as from a broken proxy
    CUT = "cut"  # the response ends in the middle of its body
    CORRUPT = "corrupt"  # one bit of the response body is flipped
    LATENCY = "latency"  # served normally after `seconds`; a batch as a whole


@dataclass(frozen=True)
class ServerFault:
    """One rule.

    Attributes:
        kind: of the fault.
        method: a glob over `objects.insert`, `objects.get`, `objects.download`, `objects.list`,
            `objects.compose`, `objects.rewrite`, `objects.delete`, `objects.patch`, `upload.start`,
            `upload.chunk` (a part of a resumable upload that does not end it), `upload.finish`,
            `upload.status`, `upload.cancel`, `buckets.*`, `batch`. A call inside a batch is matched by
            itself; where the fault cuts the connection, its part alone is hit, and answered with 503.
        name: a glob over object names.
        status: for STATUS.
        retry_after: for STATUS: the `Retry-After` of the answer, in seconds or as an HTTP date.
        seconds: for STALL and LATENCY.
        times: how many requests it hits; None: all.
        skip: how many matching requests pass before the first hit.

    """

    kind: FaultKind
    method: str = "*"
    name: str = "*"
    status: int = 503
    retry_after: str | None = None
    seconds: float = 0.0
    times: int | None = 1
    skip: int = 0


@dataclass(frozen=True)
class RandomFaults:
    """Hits each request with probability `rate` by one of `faults`; the same seed gives the same choices."""

    seed: int
    rate: float
    faults: Sequence[ServerFault] = (
        ServerFault(FaultKind.STATUS, status=503),
        ServerFault(FaultKind.STATUS, status=429),
        ServerFault(FaultKind.RESET),
        ServerFault(FaultKind.DROP_ANSWER),
    )


class FaultPlan:
    """All rules of one server. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[tuple[ServerFault, list[int]]] = []
        self._random: tuple[random.Random, RandomFaults] | None = None
        self._hits = 0

    @property
    def hits(self) -> int:
        """How many faults have hit requests so far."""
        with self._lock:
            return self._hits

    def add(self, fault: ServerFault) -> None:
        with self._lock:
            self._rules.append((fault, [fault.skip, -1 if fault.times is None else fault.times]))

    def set_random(self, faults: RandomFaults | None) -> None:
        """Make requests fail at random; None stops it."""
        with self._lock:
            seeded = None if faults is None else random.Random(faults.seed)  # noqa: S311 (replayable)
            self._random = None if faults is None or seeded is None else (seeded, faults)

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()
            self._random = None

    def take(self, method: str, name: str) -> list[ServerFault]:
        """The faults that hit this request; counts the hit in each rule."""
        with self._lock:
            hits = [fault for fault, left in self._rules if _hits(fault, left, method, name)]
            if self._random is not None:
                seeded, faults = self._random
                if seeded.random() < faults.rate:
                    hits.append(seeded.choice(list(faults.faults)))
            self._hits += len(hits)
            return hits


def _hits(fault: ServerFault, left: list[int], method: str, name: str) -> bool:
    if not fnmatch.fnmatchcase(method, fault.method) or not fnmatch.fnmatchcase(name, fault.name):
        return False
    if left[0] > 0:
        left[0] -= 1
        return False
    if left[1] == 0:
        return False
    left[1] -= 1
    return True
