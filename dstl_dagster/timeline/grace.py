"""How long ago something happened, by the server's clock alone.

Owns the grace time for readers of a subsumed checkpoint. Does not own what is deleted after it (`garbage`).
The server's clock stamped the record, and any other clock could be an hour off. A store that reports the time
is asked; for another one, the time stamp of a freshly written object is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime, timedelta

from dstl_dagster.format import JobNames
from dstl_dagster.storage import ANY, ObjectStore
from dstl_dagster.timeline.view import CheckpointEntry, TimelineView


class GraceClock:
    """Asks for the time once. For a single run of a step; not thread-safe.

    Slots are filled in order, so ages only fall along them: each one looked at decides for all older or all
    newer ones.

    Args:
        grace: how long a checkpoint stays readable after it was subsumed.
    """

    def __init__(self, store: ObjectStore, names: JobNames, grace: timedelta) -> None:
        self._store = store
        self._names = names
        self._grace = grace
        self._now: datetime | None = None
        self._wrote = False
        self._stamps: dict[int, datetime] = {}
        self._over_up_to = 0
        self._within_from: int | None = None

    def is_over(self, subsumed_slot: int) -> bool:
        """Whether the record in this slot is at least as old as the grace time."""
        if not self._grace or subsumed_slot <= self._over_up_to:
            return True
        if self._within_from is not None and subsumed_slot >= self._within_from:
            return False
        stamp = self._stamp_of(subsumed_slot)
        if stamp is not None and self.age_of(stamp) >= self._grace:
            self._over_up_to = subsumed_slot
            return True
        self._within_from = subsumed_slot
        return False

    def readable(self, view: TimelineView) -> list[CheckpointEntry]:
        """The checkpoints that are not subsumed, or may still have readers; oldest first."""
        entries = view.checkpoints.values()
        self._settle(sorted({each.subsumed.slot for each in entries if each.subsumed is not None}))
        return [each for each in entries if each.subsumed is None or not self.is_over(each.subsumed.slot)]

    def _settle(self, subsumed_slots: Sequence[int]) -> None:
        """Ask what decides for all of these ascending slots, by few requests.

        Gallops from the oldest: most often it is the first, and few are over that were not dropped yet.
        """
        end = 1
        while end <= len(subsumed_slots) and self.is_over(subsumed_slots[end - 1]):
            end *= 2
        bisect_left(
            subsumed_slots, True, hi=min(end, len(subsumed_slots)), key=lambda slot: not self.is_over(slot)
        )

    def age_of(self, updated: datetime) -> timedelta:
        """How long ago, at least, the server stamped an object with this `updated`."""
        return self._server_now() - updated

    def close(self) -> None:
        """Delete the object written to read the server's clock, if one was. No clock depends on another's."""
        if self._wrote:
            self._store.delete(self._names.server_clock, precondition=ANY)

    def _stamp_of(self, slot: int) -> datetime | None:
        """When the record in this slot was created: it never changes."""
        if slot not in self._stamps:
            stat = self._store.stat(self._names.slot(slot))
            if stat is None:
                return None
            self._stamps[slot] = stat.updated
        return self._stamps[slot]

    def _server_now(self) -> datetime:
        if self._now is None:
            self._now = self._store.server_time()
        if self._now is None:
            self._now = self._store.put(self._names.server_clock, b"", precondition=ANY).updated
            self._wrote = True
        return self._now
