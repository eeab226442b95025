"""A clock for tests that wait for hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class LaterClock:
    """Of the wall, and as much later as a test says."""

    later = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.later

    def monotonic_seconds(self) -> float:
        return 0.0
