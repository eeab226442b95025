"""Where time comes from. Owns nothing else: in particular, it never decides anything by age.

Every component that waits or writes a time stamp takes a `Clock`, so that a simulation can replay a seed.
Durable decisions never depend on a clock: an old attempt is not a dead one.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time, monotonic time and sleep. Implementations must be thread-safe."""

    def now(self) -> datetime:
        """Wall-clock time, timezone-aware, in UTC. For people to read, never for ordering."""
        ...

    def monotonic_seconds(self) -> float:
        """Seconds since an arbitrary start; never goes backwards. For durations and deadlines."""
        ...

    def sleep_seconds(self, seconds: float) -> None:
        """Wait for `seconds`, 0 or more."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_seconds(self) -> float:
        return time.monotonic()

    def sleep_seconds(self, seconds: float) -> None:
        time.sleep(seconds)
