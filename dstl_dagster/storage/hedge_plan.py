"""When a second request for a read that takes too long is worth its load: the decision alone.

Owns the observed latencies, and the share of reads that may be asked for twice. Does not own clocks, threads
or requests (`hedging`).
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["EXTRA_SHARE", "HedgePlan", "read_kind"]

EXTRA_SHARE: Final = 0.1
"""Of all reads, so many at most are asked for twice. By definition one in twenty is slower than the 95th
percentile; the rest is for the times when more are."""

_PERCENTILE: Final = 0.95
_LEAST_KNOWN: Final = 20
_REMEMBERED: Final = 200
_RECKONED_EVERY: Final = 10
_MOST_SAVED: Final = 10.0


def read_kind(size_bytes: int | None) -> str:
    """Reads that take about as long as each other: by size to a factor of four; `None`: a whole object."""
    return "whole" if size_bytes is None else f"range {max(size_bytes, 1).bit_length() // 2}"


class HedgePlan:
    """Not thread-safe: its owner locks.

    What is not spent is saved up to ten requests, so that a store that stalls after a quiet hour is not asked
    twice for everything.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, deque[float]] = {}
        self._unreckoned: dict[str, int] = {}
        self._delays: dict[str, float] = {}
        self._saved = 0.0

    def observe(self, kind: str, seconds: float) -> None:
        """A request of this kind was answered after so long."""
        known = self._seconds.setdefault(kind, deque(maxlen=_REMEMBERED))
        known.append(seconds)
        self._unreckoned[kind] = self._unreckoned.get(kind, 0) + 1
        if len(known) < _LEAST_KNOWN:
            return
        if kind not in self._delays or self._unreckoned[kind] >= _RECKONED_EVERY:
            self._unreckoned[kind] = 0
            self._delays[kind] = sorted(known)[int(_PERCENTILE * (len(known) - 1))]

    def delay_seconds(self, kind: str) -> float | None:
        """How long to wait for an answer: the 95th percentile of the last 200; `None` until 20 are known.

        Every call is one read more, which a tenth of an extra request comes with.
        """
        self._saved = min(_MOST_SAVED, self._saved + EXTRA_SHARE)
        return self._delays.get(kind)

    def spend(self) -> bool:
        """Whether one extra request may be sent; it counts as sent."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
