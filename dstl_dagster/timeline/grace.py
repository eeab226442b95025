"""How long ago something happened, by the server's clock alone.

Owns the time that readers of a given-up checkpoint are left. Any other clock could be an hour off the one
that stamped the record; a fresh object asks the server.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime, timedelta

from dstl_dagster.format import JobNames
from dstl_dagster.storage import ANY, ObjectStore

__all__ = ["GraceClock"]


class GraceClock:
    """Asks the server for the time once. For one run of one step; one thread.

    Args:
        grace: how long what a subsumed checkpoint needs stays readable after it was subsumed.
    """

    def __init__(self, store: ObjectStore, names: JobNames, grace: timedelta) -> None:
        self._store = store
        self._names = names
        self._grace = grace
        self._now: datetime | None = None
        self._over: dict[int, bool] = {}

    def is_over(self, subsumed_slot: int) -> bool:
        """Whether the record in this slot has been there for the grace time."""
        if not self._grace:
            return True
        if subsumed_slot not in self._over:
            said = self._store.stat(self._names.slot(subsumed_slot))
            self._over[subsumed_slot] = said is not None and self.age_of(said.updated) >= self._grace
        return self._over[subsumed_slot]

    def first_within(self, subsumed_slots: Sequence[int]) -> int:
        """Of ascending slots, the index of the first whose grace is not over. Asks about few of them."""
        # Slots are filled one after another, so ages only fall.
        return bisect_left(subsumed_slots, True, key=lambda slot: not self.is_over(slot))

    def age_of(self, updated: datetime) -> timedelta:
        """How long ago the server made an object."""
        return self._server_now() - updated

    def close(self) -> None:
        """Remove the object that was asked with. Another one's answer does not depend on it."""
        if self._now is not None:
            self._store.delete(self._names.server_clock, precondition=ANY)

    def _server_now(self) -> datetime:
        if self._now is None:
            self._now = self._store.put(self._names.server_clock, b"", precondition=ANY).updated
        return self._now
