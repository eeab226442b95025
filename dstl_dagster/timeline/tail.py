"""Where reading a timeline starts: the newest snapshot, found without reading what precedes it.

Owns the hint object, the search without one, which timeline the job has, and reading the records since the
newest snapshot. Does not own what records add up to (`replay`).

No start is trusted, neither the hint's nor one of a caller that knows where a snapshot was: a slot
without a snapshot counts as no hint. But a hint is written after the record that it names, so one that is
ahead of all records says that the last of them are missing, as after half a restored backup.

What does not depend on each other is asked for together. A listing has the short records themselves, as
copies in the metadata (`record_codec`). So the tail is read in two round trips: the hint, then the snapshot
beside the listing of what follows it. It is one for a caller that knows the slot, and for a job that has no
snapshot yet: the first slots are listed beside the hint, and fewer of them than were asked for are all there
are.

A listing may show slots of other timelines, which a process wrote that outlived its job: their names say so.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from itertools import islice

from dstl_dagster.concurrency import both, gather
from dstl_dagster.errors import DstlError, FormatError, NotFoundError
from dstl_dagster.format import JobNames
from dstl_dagster.format.envelope import decode_document, encode_document, reading
from dstl_dagster.storage import ANY, ObjectStat, ObjectStore
from dstl_dagster.timeline.lost import hole, lost
from dstl_dagster.timeline.record_codec import copy_of_record, decode_record
from dstl_dagster.timeline.records import Snapshot, TimelineRecord, timeline_id_of

log = logging.getLogger(__name__)

_KIND = "hint"
_VERSION = 1
_PAGE = 1_000
_BATCH = 32
_FIRST_SLOTS = 41
"""One more than a job has before its first snapshot, at the default interval, be it late."""
Listed = dict[int, TimelineRecord | None]
"""Slots that exist, ascending, each with its record if the listing had a copy of it."""


@dataclass(frozen=True)
class Beginning:
    """Where a snapshot was seen: its slot, 0 if there was none, and its timeline."""

    slot: int
    timeline: str


class TailReader:
    """Reads the newest snapshot and what follows it. Thread-safe.

    Attributes:
        names: the job's, with the id of its timeline once that is known.

    Args:
        threads: records read concurrently, at most.
    """

    def __init__(self, store: ObjectStore, names: JobNames, *, threads: int = 1) -> None:
        self.names = names
        self._store = store
        self._threads = threads
        self._hint_written: datetime | None = None

    def records(self, begin: Beginning | None = None) -> list[TimelineRecord]:
        """All records from the newest snapshot on (inclusive), or from slot 1 if there is none.

        `begin`: where the caller saw a snapshot; by default the hint is asked.

        Raises: FormatError (kind `history_hole` if a slot between them was deleted).
        """
        first: list[ObjectStat] | None = None
        found = begin
        if found is None:
            found, first = both(self._hinted, self._first_slots, self._threads)
        if found is not None and found.slot:
            self.names = replace(self.names, timeline=found.timeline)
            snapshot, behind = both(
                partial(self.read, found.slot), partial(self._listed, found.slot), self._threads
            )
            if isinstance(snapshot, Snapshot):
                self._hint_written = snapshot.recorded_at
                return self._since_snapshot(found.slot, {found.slot: snapshot, **behind})
            self.names = replace(self.names, timeline="")
            if begin is not None:
                return self.records()
        if first is None:
            first = [*islice(self._store.list(self.names.timeline_prefix), _PAGE)]
        self._know_root(first)
        slots = self._slots_of(first)
        start = 0
        if len(first) == _PAGE:
            start = self._probed_tail(max(slots))
            slots = {start: None, **self._listed(start)}
        if found is not None and found.timeline == self.names.timeline:
            self._refuse_lost(max(slots, default=0), found.slot)
        return self._since_snapshot(start, slots, down_to=1 if start else None)

    def read(self, slot: int) -> TimelineRecord | None:
        """The record in a slot; `None` if there is none. Raises: FormatError."""
        if slot > 1 and not self.names.timeline:
            return None
        name = self.names.slot(slot)
        try:
            payload = self._store.get(name)
        except NotFoundError:
            return None
        record = decode_record(payload, slot, name)
        if slot == 1:
            self.names = replace(self.names, timeline=timeline_id_of(record))
        return record

    def is_replaced(self) -> str | None:
        """Whether the timeline that is known here is gone: `None` if not, else the id of the one that the job
        has now, empty if it has none. One request.
        """
        try:
            root = _decoded(self._store.get(self.names.root_slot), 1, self.names.root_slot)
        except NotFoundError:
            return ""
        now = timeline_id_of(root)
        return None if now == self.names.timeline else now

    def hole(self, missing: int, later: int) -> FormatError:
        """The error for a missing slot. A drop, which may have begun, deletes the first record first."""
        is_dropped = missing > 1 and self.is_replaced() is not None
        return hole(self.names.job, 1 if is_dropped else missing, later)

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
            document = encode_document(_KIND, _VERSION, {"slot": slot, "timeline": self.names.timeline})
            self._store.put(self.names.hint, document, precondition=ANY)
            self._hint_written = recorded_at
        except DstlError as error:
            log.warning("could not write the hint of job %s: %s", self.names.job, error)

    def first_behind(self, slot: int) -> int | None:
        """The first slot that exists after `slot` (exclusive). One listing."""
        offset = self.names.slots_from(slot + 1)
        found = self._store.list_first(self.names.timeline_prefix, 1, start_offset=offset)
        own = self._slots_of(found) or (self._listed(slot) if found else {})
        return next(iter(own), None)

    def read_behind(self, slot: int) -> Iterator[TimelineRecord]:
        """The records after `slot` (exclusive) that a listing finds, up to the first gap, in order."""
        while True:
            stats = [*islice(self._after(slot), _PAGE)]
            listed = self._slots_of(stats)
            there = [each for at, each in enumerate(listed) if each == slot + 1 + at]
            for start in range(0, len(there), _BATCH):
                part = there[start : start + _BATCH]
                yield from self._batch(range(part[0], part[-1] + 1), listed)
            if len(stats) < _PAGE or not there:
                return
            slot = there[-1]

    def all_there(self) -> list[TimelineRecord]:
        """As `Timeline.all_there`, of any timeline."""
        listed = [partial(self._readable, stat) for stat in self._store.list(self.names.timeline_prefix)]
        return [each for each in gather(listed, self._threads, "dstl-timeline") if each is not None]

    def _readable(self, stat: ObjectStat) -> TimelineRecord | None:
        with contextlib.suppress(FormatError, NotFoundError):
            slot, _ = self._slot_of(stat.name)
            return _copy(stat, slot) or decode_record(self._store.get(stat.name), slot, stat.name)
        return None

    def _hinted(self) -> Beginning | None:
        name = self.names.hint
        try:
            _, fields = decode_document(_KIND, _VERSION, self._store.get(name), name)
            with reading("the hint is not valid"):
                return Beginning(max(0, int(fields["slot"])), str(fields["timeline"]))
        except (NotFoundError, FormatError):
            return None

    def _first_slots(self) -> list[ObjectStat] | None:
        """All slots, if they are so few that one short listing shows it; else, or in a folder, `None`."""
        if self._store.capabilities.is_local:
            return None
        found = self._store.list_first(self.names.timeline_prefix, _FIRST_SLOTS)
        return None if len(found) == _FIRST_SLOTS else [*found]

    def _know_root(self, stats: Sequence[ObjectStat]) -> None:
        """Find out which timeline the job has: by the listing of all slots, or of the first ones."""
        root = next((stat for stat in stats if stat.name == self.names.root_slot), None)
        if root is None:
            return
        copy = _copy(root, 1)
        if copy is not None:
            self.names = replace(self.names, timeline=timeline_id_of(copy))
        else:
            self.read(1)

    def _after(self, slot: int) -> Iterator[ObjectStat]:
        return self._store.list(self.names.timeline_prefix, start_offset=self.names.slots_from(slot + 1))

    def _listed(self, slot: int) -> Listed:
        """The objects after `slot` (exclusive). One listing."""
        return self._slots_of(self._after(slot))

    def _slots_of(self, found: Iterable[ObjectStat]) -> Listed:
        """Those of the job's timeline; while none is known, of any: then the first slot is missing."""
        listed: Listed = {}
        for stat in found:
            slot, timeline = self._slot_of(stat.name)
            if slot == 1 or timeline == self.names.timeline or not self.names.timeline:
                listed[slot] = _copy(stat, slot)
        return listed

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
        if slot > 1 and not self.names.timeline:
            return False
        return self._store.stat(self.names.slot(slot)) is not None

    def _refuse_lost(self, last: int, hinted: int) -> None:
        if last < hinted and not self._exists(hinted):
            hint = self._store.uri_of(self.names.hint)
            because = f"slot {last} is the last one, but {hint} names slot {hinted}"
            raise lost(self._store, self.names, because, "the hint")

    def _refuse_holes(self, start: int, listed: Iterable[int]) -> None:
        expected = start + 1
        for slot in listed:
            if slot <= start:
                continue
            while expected < slot:
                # A slot created while the listing ran may be missing from the listing and still exist.
                if not self._exists(expected):
                    raise self.hole(expected, slot)
                expected += 1
            expected += 1

    def _since_snapshot(self, start: int, listed: Listed, down_to: int | None = None) -> list[TimelineRecord]:
        """The listed records, from the newest snapshot on, back to `down_to` at most: by default the first
        listed. Looks for holes after `start` (exclusive).
        """
        self._refuse_holes(start, listed)
        first = down_to or max(1, start)
        found: list[TimelineRecord] = []
        end = max(listed, default=0)
        while end >= first:
            batch = self._batch(range(max(first, end - _BATCH + 1), end + 1), listed)
            newest = next(
                (place for place in reversed(range(len(batch))) if _is_snapshot(batch[place])), None
            )
            if newest is not None:
                return batch[newest:] + found
            found = batch + found
            end -= len(batch)
        return found

    def _batch(self, slots: range, listed: Listed) -> list[TimelineRecord]:
        """The records in these slots; those that the listing did not have are read concurrently."""
        unread = [slot for slot in slots if listed.get(slot) is None]
        read = gather([partial(self.read, slot) for slot in unread], self._threads, "dstl-timeline")
        records = {**listed, **dict(zip(unread, read, strict=True))}
        found = []
        for slot in slots:
            record = records[slot]
            if record is None:
                raise self.hole(slot, slots[-1])
            found.append(record)
        return found

    def _slot_of(self, name: str) -> tuple[int, str]:
        found = self.names.slot_of(name)
        if found is None:
            raise FormatError(f"foreign object {name} on the timeline of {self.names.job!r}: move it away")
        return found


def _copy(stat: ObjectStat, slot: int) -> TimelineRecord | None:
    """The record, by its copy in the metadata; `None` if there is none, or it was edited: then read it."""
    try:
        payload = copy_of_record(stat.metadata)
        return None if payload is None else _decoded(payload, slot, stat.name)
    except FormatError:
        return None


@lru_cache(maxsize=256)
def _decoded(payload: bytes, slot: int, name: str) -> TimelineRecord:
    """A process reads the first record, or lists the same tail, for each decision. They never change."""
    return decode_record(payload, slot, name)


def _is_snapshot(record: TimelineRecord) -> bool:
    return isinstance(record, Snapshot)
