"""A clock that advances only when something waits on it.

Owns time in tests and simulations. Starts no thread.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

__all__ = ["VirtualClock"]


class VirtualClock:
    """Waiting takes no real time: it advances the clock. Safe from any thread.

    Args:
        start: the wall clock's initial value; the monotonic one starts at 0.
    """

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_seconds = 0.0
        self._lock = threading.Lock()

    def now(self) -> datetime:
        with self._lock:
            return self._start + timedelta(seconds=self._elapsed_seconds)

    def monotonic_seconds(self) -> float:
        with self._lock:
            return self._elapsed_seconds

    def sleep_seconds(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance by 0 or more seconds."""
        assert seconds >= 0, "time cannot go backwards"
        with self._lock:
            self._elapsed_seconds += seconds
