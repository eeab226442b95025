"""How long ago something happened, by the server's clock alone.

Owns the grace time for readers of a subsumed checkpoint. Does not own what is deleted after it (`garbage`).
The server's clock stamped the record, and any other clock could be an hour off; the time stamp of a freshly
written object tells the server's time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime, timedelta

from dstl_dagster.format import JobNames
from dstl_dagster.storage import ANY, ObjectStore

__all__ = ["GraceClock"]


class GraceClock:
    """Asks the server for the time once. For a single run of a step; not thread-safe.

    Args:
        grace: how long a checkpoint stays readable after it was subsumed.
    """

    def __init__(self, store: ObjectStore, names: JobNames, grace: timedelta) -> None:
        self._store = store
        self._names = names
        self._grace = grace
        self._now: datetime | None = None
        self._over: dict[int, bool] = {}

    def is_over(self, subsumed_slot: int) -> bool:
        """Whether the record in this slot is at least as old as the grace time."""
        if not self._grace:
            return True
        if subsumed_slot not in self._over:
            stat = self._store.stat(self._names.slot(subsumed_slot))
            self._over[subsumed_slot] = stat is not None and self.age_of(stat.updated) >= self._grace
        return self._over[subsumed_slot]

    def first_within(self, subsumed_slots: Sequence[int]) -> int:
        """The index of the first of these ascending slots whose grace is not over, by binary search."""
        # Slots are filled in order, so ages only fall along them.
        return bisect_left(subsumed_slots, True, key=lambda slot: not self.is_over(slot))

    def age_of(self, updated: datetime) -> timedelta:
        """How long ago the server stamped an object with this `updated`."""
        return self._server_now() - updated

    def close(self) -> None:
        """Delete the object written to read the server's clock. Concurrent clocks do not depend on it."""
        if self._now is not None:
            self._store.delete(self._names.server_clock, precondition=ANY)

    def _server_now(self) -> datetime:
        if self._now is None:
            self._now = self._store.put(self._names.server_clock, b"", precondition=ANY).updated
        return self._now
