"""Where reading a timeline starts: the newest snapshot, found without reading what precedes it.

Owns the hint object, the search without one, and reading the records since the newest snapshot. Does not
own what records add up to (`view_builder`).

The hint is never trusted: one that points to a slot without a snapshot counts as no hint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from itertools import islice

from dstl_dagster.errors import DstlError, ErrorKind, FormatError, NotFoundError
from dstl_dagster.format import JobNames
from dstl_dagster.format.envelope import decode_document, encode_document, reading
from dstl_dagster.storage import ANY, ObjectStore, concurrently
from dstl_dagster.timeline.records import Snapshot, TimelineRecord

__all__ = ["TailReader", "hole"]

log = logging.getLogger(__name__)

_KIND = "hint"
_VERSION = 1
_PAGE = 1_000
_BATCH = 32
Read = Callable[[int], TimelineRecord | None]


class TailReader:
    """Reads the newest snapshot and what follows it. Thread-safe.

    Args:
        read: returns the record in a slot, or `None`.
        threads: records read concurrently, at most.
    """

    def __init__(self, store: ObjectStore, names: JobNames, read: Read, *, threads: int = 1) -> None:
        self._store = store
        self._names = names
        self._read = read
        self._threads = threads
        self._hint_written: datetime | None = None

    def records(self) -> list[TimelineRecord]:
        """All records from the newest snapshot on (inclusive), or from slot 1 if there is none.

        Raises: FormatError (kind `history_hole` if a slot between them was deleted).
        """
        start = hinted = self._hinted()
        listed = self._listed_behind(start)
        if start == 0 and len(listed) == _PAGE:
            start = self._probed_tail(listed[-1])
            listed = self._listed_behind(start)
        last = listed[-1] if listed else start
        self._refuse_holes(start, listed)
        return self._back_to_snapshot(last, max(1, hinted))

    def write_hint(self, slot: int, recorded_at: datetime | None = None) -> None:
        """Record that `slot` holds a snapshot. Nothing depends on the hint, so a failure is only logged.

        It stays behind where the store would refuse a change so soon after the last one that is known here.
        """
        interval = self._store.capabilities.seconds_between_updates
        if interval and recorded_at is not None and self._hint_written is not None:
            # By their writers' clocks. Twice the limit: a hint is written some requests after its stamp.
            age = abs((recorded_at - self._hint_written).total_seconds())
            if age < 2 * interval:
                return
        try:
            document = encode_document(_KIND, _VERSION, {"slot": slot})
            self._store.put(self._names.hint, document, precondition=ANY)
            self._hint_written = recorded_at
        except DstlError as error:
            log.warning("could not write the hint of job %s: %s", self._names.job, error)

    def slots_behind(self, slot: int, limit: int | None = None) -> list[int]:
        """The slots that exist after `slot` (exclusive), ascending, at most `limit`. One listing."""
        found = self._store.list(self._names.timeline_prefix, start_offset=self._names.slot(slot + 1))
        return [self._slot_of(stat.name) for stat in islice(found, limit)]

    def read_behind(self, slot: int) -> Iterator[TimelineRecord]:
        """The records after `slot` (exclusive) that a listing finds, up to the first gap, in order."""
        while True:
            listed = self.slots_behind(slot, _PAGE)
            there = [each for at, each in enumerate(listed) if each == slot + 1 + at]
            for start in range(0, len(there), _BATCH):
                yield from self._batch(range(there[start], there[start] + len(there[start : start + _BATCH])))
            if len(there) < _PAGE:
                return
            slot = there[-1]

    def _hinted(self) -> int:
        """The slot that the hint names if it holds a snapshot, else 0."""
        try:
            _, fields = decode_document(_KIND, _VERSION, self._store.get(self._names.hint), self._names.hint)
            with reading("the hint is not valid"):
                slot = int(fields["slot"])
                there = self._read(slot) if slot > 0 else None
                if not isinstance(there, Snapshot):
                    return 0
                self._hint_written = there.recorded_at
                return slot
        except (NotFoundError, FormatError):
            return 0

    def _listed_behind(self, start: int) -> list[int]:
        return self.slots_behind(start, _PAGE if start == 0 else None)

    def _probed_tail(self, present: int) -> int:
        """Without a hint: a slot near the tail, by galloping search from `present`, which exists."""
        step = present
        while self._exists(present + step):
            present += step
            step *= 2
        absent = present + step
        while absent - present > 1:
            middle = (present + absent) // 2
            present, absent = (middle, absent) if self._exists(middle) else (present, middle)
        return present

    def _exists(self, slot: int) -> bool:
        return self._store.stat(self._names.slot(slot)) is not None

    def _refuse_holes(self, start: int, listed: Iterable[int]) -> None:
        expected = start + 1
        for slot in listed:
            while expected < slot:
                # A slot created while the listing ran may be missing from the listing and still exist.
                if not self._exists(expected):
                    raise hole(self._names.job, expected, slot)
                expected += 1
            expected += 1

    def _back_to_snapshot(self, last: int, first: int) -> list[TimelineRecord]:
        """The records up to `last`, from the newest snapshot on, or from `first` (a snapshot, or slot 1)."""
        found: list[TimelineRecord] = []
        end = last
        while end >= first:
            batch = self._batch(range(max(first, end - _BATCH + 1), end + 1))
            newest = next(
                (place for place in reversed(range(len(batch))) if _is_snapshot(batch[place])), None
            )
            if newest is not None:
                return batch[newest:] + found
            found = batch + found
            end -= len(batch)
        return found

    def _batch(self, slots: range) -> list[TimelineRecord]:
        records = concurrently([partial(self._read, slot) for slot in slots], self._threads, "dstl-timeline")
        there = [record for record in records if record is not None]
        if len(there) < len(records):
            raise hole(self._names.job, slots[records.index(None)], slots[-1])
        return there

    def _slot_of(self, name: str) -> int:
        slot = self._names.slot_of(name)
        if slot is None or slot == 0:
            raise FormatError(f"foreign object {name} on the timeline of {self._names.job!r}: move it away")
        return slot


def hole(job: str, missing: int, later: int) -> FormatError:
    """The error for a slot that is missing while a later one exists: stop rather than fork history."""
    return FormatError(
        f"slot {missing} of job {job!r} is missing, but slot {later} exists: a record was deleted. "
        "Restore it from a backup; the job cannot safely continue without it",
        kind=ErrorKind.HISTORY_HOLE,
    )


def _is_snapshot(record: TimelineRecord) -> bool:
    return isinstance(record, Snapshot)
