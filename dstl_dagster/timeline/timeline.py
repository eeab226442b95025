"""A job's decisions as consecutive create-only objects: reading them, and winning the next slot.

Owns the race for a slot, what a failed or lost answer means, and when a snapshot is due. Does not own which
record is right (`decisions`), what the records add up to (`replay`), or where reading starts (`tail`).

Why this is safe. A slot is created with "only if absent" and never deleted or reused, so exactly one
record wins it, and everyone reads the same sequence. A record carries a decision id. When the answer to a
creation is lost, or the client's own retry gets a 412, the slot itself is read back: our id means that we
won. Otherwise the decision is made again from the new tail, or dropped.

A job may be dropped, and its store emptied or replaced, while a process has its timeline in memory. The names
of slots carry the timeline's id, so what such a process still appends is no other timeline's. Beside each
record that it creates, and each look that no record follows, it reads the first slot: if that is not its own
timeline's any more, it takes its record back and says so. A drop deletes the first slot, waits for
`DROP_WAIT_SECONDS`, and only then deletes others; an answer that took longer than half of that is asked for
once more.

Every `snapshot_interval` records, the writer that appended the last one adds a snapshot. It is a record like
any other: it competes for its slot, and holds what every record before it adds up to. After a record
of steps 1, 5 and 6, for which a checkpoint is waited for, it may be a little late: another one may come.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.concurrency import both, gather
from dstl_dagster.errors import (
    ConflictError,
    DstlError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from dstl_dagster.format import JobNames
from dstl_dagster.storage import ABSENT, ANY, ObjectStat, ObjectStore
from dstl_dagster.timeline.archive import Archive, in_doubt
from dstl_dagster.timeline.attempt import Attempt
from dstl_dagster.timeline.grace import GraceClock
from dstl_dagster.timeline.lost import hole, lost, unexplained_manifests
from dstl_dagster.timeline.record_codec import copy_in_metadata, encode_record, view_to_plain
from dstl_dagster.timeline.records import (
    Committed,
    Completed,
    Opened,
    Snapshot,
    TimelineRecord,
    timeline_id_of,
)
from dstl_dagster.timeline.replay import next_view
from dstl_dagster.timeline.tail import Beginning, TailReader
from dstl_dagster.timeline.view import TimelineView

_MAX_ROUNDS = 1_000
"""After losing this many slots in a row, something other than contention is wrong."""
_LEAST_INTERVAL = 8
_SEQUENTIAL_READS = 8

DROP_WAIT_SECONDS: Final = 2.0
"""Between the deletion of a job's first slot and that of any other."""
_MAX_SECONDS_OF_PROOF: Final = DROP_WAIT_SECONDS / 2
_WAITED_FOR = (Opened, Completed, Committed)

log = logging.getLogger(__name__)
R = TypeVar("R", bound=TimelineRecord)
T = TypeVar("T")


class Timeline:
    """The timeline of one job. Thread-safe; caches what it has read.

    Args:
        job: the job's name (see `format.names.validated_job`).
        store: where the job is stored.
        clock: time stamps for records, for people only.
        new_id: generates decision ids.
        snapshot_interval: records after which a snapshot is due, 8 or more.
        reader_grace: how long a subsumed checkpoint stays readable.
        threads: concurrent requests, at most, when reading many records or archiving facts.
    """

    def __init__(
        self,
        job: str,
        store: ObjectStore,
        *,
        clock: Clock | None = None,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
        snapshot_interval: int = 32,
        reader_grace: timedelta = timedelta(hours=1),
        threads: int = 8,
    ) -> None:
        if snapshot_interval < _LEAST_INTERVAL:
            raise InvalidInputError(
                f"snapshot_interval must be {_LEAST_INTERVAL} or more, not {snapshot_interval}"
            )
        self._store = store
        self._clock = clock or SystemClock()
        self._new_id = new_id
        self._snapshot_interval = snapshot_interval
        self._reader_grace = reader_grace
        self._threads = store.capabilities.lookup_threads(threads)
        # It writes, and one write may be synced while the next is prepared.
        self._archive = Archive(store, JobNames(job), threads=store.capabilities.useful_threads(threads))
        self._tail_reader = TailReader(store, JobNames(job), threads=self._threads)
        self._lock = threading.RLock()
        self._view: TimelineView | None = None
        self._begin: Beginning | None = None

    @property
    def job(self) -> str:
        return self.names.job

    @property
    def names(self) -> JobNames:
        """The job's, with the id of its timeline as far as this object has read or written it."""
        return self._tail_reader.names

    @property
    def was_read(self) -> bool:
        """Whether this object has read the tail before: then `seen` costs no request, and may be stale."""
        return self._view is not None

    def start_at(self, attempt: Attempt) -> None:
        """Begin the first read where the attempt saw the newest snapshot, if it did, without asking the hint:
        one round trip less. If it is not so, it costs one more.
        """
        if attempt.snapshot_slot is not None:
            self._begin = Beginning(attempt.snapshot_slot, attempt.timeline)
        if not self.names.timeline:
            self._tail_reader.names = replace(self.names, timeline=attempt.timeline)

    def records(self, after_slot: int | None = None) -> Iterator[TimelineRecord]:
        """Every record after `after_slot` (exclusive; `None` or 0: from the first), in order.

        Includes snapshots, which add nothing for a caller that reads from the first record.

        Raises: FormatError if a record is unreadable or a slot was deleted; UnavailableError.
        """
        slot = after_slot or 0
        if slot < 0:
            raise InvalidInputError(f"after_slot must be 0 or more, not {after_slot}")
        if not self.names.timeline:
            self._tail_reader.read(1)
        for record in self._walked(slot):
            slot = record.slot
            yield record
        self._refuse_hole(slot + 1)

    def tail(self, *, even_lost: bool = False) -> TimelineView:
        """The view after all records up to now. Reads only what is new since the last call.

        The first call starts at the newest snapshot, so its cost does not grow with the job's age. Beside it
        the manifests are listed, unless an attempt said where to start: if records are missing at the end,
        they show it. `even_lost`: for a caller that looks for such objects itself.

        Raises: NotFoundError (kind `job_gone`: another call has read a timeline that is not there any more),
        FormatError (kind `history_hole`: records are missing), UnavailableError.
        """
        with self._lock:
            if self._view is None:
                return self.tail_to_append(even_lost=even_lost)
            return self.while_it_is_there(self.tail_to_append)

    def tail_to_append(self, *, even_lost: bool = False) -> TimelineView:
        """As `tail`, but a timeline that is gone may go unnoticed: for a caller that creates an object next,
        `while_it_is_there`. One request less.
        """
        with self._lock:
            if self._view is None:
                compared = self._begin is None and not even_lost
                self._view = self._first_look(self._manifests if compared else list)
            else:
                self._view = self._replayed(self._view, self._walked(self._view.slot))
            return self._view

    def _first_look(self, manifests: Callable[[], list[ObjectStat]]) -> TimelineView:
        # Holes are checked for once, on the first read: from then on this object knows what existed.
        records = partial(self._tail_reader.records, self._begin)
        found, there = both(records, manifests, self._threads)
        known = self.names.timeline if found else ""  # an attempt may have named one that is gone
        view = self._replayed(TimelineView(timeline_id=known, archive=self._archive), found)
        if unexplained_manifests(self.names, there, view, self._threads):
            # By now other records may be there, or others' manifests gone.
            there = manifests()
            view = self._replayed(view, self._walked(view.slot))
            names = unexplained_manifests(self.names, there, view, self._threads)
            if names:
                because = f"{names[0]} is of an attempt that the timeline does not know"
                to_go_on = "what `dstl checkpoints audit` lists" if view.slot else "all by `dstl jobs drop`"
                raise lost(self._store, self.names, because, to_go_on)
        return view

    def _manifests(self) -> list[ObjectStat]:
        return [*self._store.list(self.names.manifests_prefix)]

    def _replayed(self, view: TimelineView, records: Iterable[TimelineRecord]) -> TimelineView:
        for record in records:
            view = next_view(view, record)
        return view

    def seen(self) -> TimelineView:
        """The view after this object's last read or append, without a request. Reads if it never has.

        For use after a read in the same step: a decision based on it is still checked against the tail.
        """
        with self._lock:
            return self.tail() if self._view is None else self._view

    def completed(self, checkpoint_id: int) -> Completed:
        """The record of any checkpoint that ever completed, even long after that was subsumed.

        A view no longer holds what a snapshot left out, but slots are never deleted and checkpoint ids ascend
        along them, so a binary search finds it.

        Raises: NotFoundError (kind `no_checkpoint`), FormatError.
        """
        view = self.tail()
        entry = view.checkpoints.get(checkpoint_id)
        if entry is not None:
            return entry.completed
        if not 1 <= checkpoint_id <= view.highest_id:
            raise NotFoundError(
                f"job {self.job!r} has no completed checkpoint {checkpoint_id}", kind=ErrorKind.NO_CHECKPOINT
            )
        low, high = 1, view.slot  # the record is between them, both inclusive
        while low <= high:
            middle = (low + high) // 2
            found = self._last_with_id(low, middle)
            if found is None:
                low = middle + 1
                continue
            if isinstance(found, Completed) and found.checkpoint_id == checkpoint_id:
                return found
            highest = found.checkpoint_id - isinstance(found, Opened)
            low, high = (low, found.slot - 1) if highest >= checkpoint_id else (middle + 1, high)
        raise NotFoundError(
            f"job {self.job!r} never had a checkpoint {checkpoint_id}: one that takes over another job's "
            "state has the id that it had there, or a later one",
            kind=ErrorKind.NO_CHECKPOINT,
        )

    def _last_with_id(self, low: int, high: int) -> Completed | Opened | None:
        """The last record in `low` to `high`, both inclusive, that shows how far checkpoint ids had got."""
        for slot in range(high, low - 1, -1):
            record = next(self.records(slot - 1))
            if isinstance(record, Completed | Opened):
                return record
        return None

    def all_there(self) -> list[TimelineRecord]:
        """Every readable record, in order, be others missing or damaged, as in an interrupted drop."""
        return self._tail_reader.all_there()

    def home(self) -> str:
        """Where the first record was written: bucket and prefix; empty if it is missing or damaged. One
        request.
        """
        with contextlib.suppress(FormatError):
            root = self._tail_reader.read(1)
            if isinstance(root, Opened):
                return root.home
        return ""

    def notes(self, slots: Sequence[int]) -> list[Mapping[str, str]]:
        """The metadata of the records in these slots: the `note` passed to `decide`, and more.

        One request each, concurrently; empty where there is none. For people to read: it can be edited.
        """
        looks = [partial(self._store.stat, self.names.slot(slot)) for slot in slots]
        stats = gather(looks, self._threads, "dstl-timeline")
        return [{} if stat is None else stat.metadata for stat in stats]

    def append(self, record: R, note: Mapping[str, str] | None = None) -> R:
        """Create the record in the slot after the last one that this object has read.

        A record without a decision id gets one. Returns the record as written. `note`: as in `decide`.

        Raises: ConflictError (kind `moved`: a rival won the slot, nothing was written), UnavailableError
        (unknown outcome: append the same record again, which its decision id makes safe if it had one),
        NotFoundError (kind `job_gone`).
        """
        with self._lock:
            view = self.seen()
            stamped = dataclasses.replace(
                record,
                slot=view.slot + 1,
                decision_id=record.decision_id if record.decision_id.int else self._new_id(),
                recorded_at=self._clock.now(),
            )
            after = next_view(view, stamped)  # before it is written: a record cannot be undone
            create = partial(self._create, stamped, note or {})
            written = self.while_it_is_there(create, self.names.slot(stamped.slot))
            self._view = after if written is stamped else next_view(view, written)
        log.info("timeline %s: slot %d is %s", self.job, written.slot, written.kind)
        return written

    def decide(
        self,
        rule: Callable[[TimelineView], R | None],
        *,
        request_id: uuid.UUID | None = None,
        from_seen: bool = False,
        note: Callable[[], Mapping[str, str]] | None = None,
    ) -> R | None:
        """Append the record that `rule` returns, or nothing if it returns `None`.

        `rule` is called again with the new tail each time a rival wins the slot; it must be pure.
        With `request_id` (of a savepoint, resolution or restore) the decision is made once, however often it
        is requested: a repeat appends nothing.

        With `from_seen` the first try uses the view of the last read, for a caller that has just read. That
        is safe: if the view is stale, the slot after it is taken and the append loses; and where `rule`
        refuses, it is asked again with the new tail.

        `note`: beside the record on a bucket, in the metadata of its object. No part of it, and nothing
        may depend on it. ASCII, a kilobyte at most.

        Returns: the record as written; `None` if nothing was appended.

        Raises: what `rule` raises; UnavailableError, FormatError.
        """
        decision_id = request_id or self._new_id()
        for round_number in range(_MAX_ROUNDS):
            seen = from_seen and round_number == 0
            with self._lock:
                reads_on = self.was_read and not seen
                view = self.tail_to_append() if reads_on else self.seen()
                try:
                    is_answered = request_id is not None and view.answer(request_id) is not None
                    record = None if is_answered else rule(view)
                except DstlError:
                    if seen:
                        continue
                    if reads_on:
                        self.refuse_if_gone()
                    raise
                if record is None:
                    if reads_on:
                        self.refuse_if_gone()
                    return None
                try:
                    record = dataclasses.replace(record, decision_id=decision_id)
                    appended = self.append(record, None if note is None else note())
                except ConflictError as error:
                    if error.kind != ErrorKind.MOVED:
                        raise
                    continue
                self._add_snapshot_if_due(appended)
                return appended
        raise UnavailableError(
            f"timeline of job {self.job!r}: lost the next slot to another writer {_MAX_ROUNDS} times; "
            "find out who writes so often (`records()`), then try again",
            kind=ErrorKind.CONTENTION,
        )

    def _add_snapshot_if_due(self, appended: TimelineRecord) -> None:
        """Append a snapshot, so that reading starts there. Failing is harmless: the decision is recorded."""
        view = self.seen()
        late = self._snapshot_interval // 4 if isinstance(appended, _WAITED_FOR) else 0
        if view.slot - view.snapshot_slot < self._snapshot_interval + late:
            return
        try:
            self._archive.write(view)
            snapshot = self.append(Snapshot(view=view_to_plain(view, self._still_readable(view))))
        except DstlError as error:
            # A rival that was quicker adds one; any other reason may last, and reads get longer.
            level = logging.INFO if error.kind == ErrorKind.MOVED else logging.WARNING
            log.log(level, "timeline %s: no snapshot after slot %d: %s", self.job, view.slot, error)
            return
        self._tail_reader.write_hint(snapshot.slot, snapshot.recorded_at)

    def _still_readable(self, view: TimelineView) -> set[int]:
        """The subsumed checkpoints whose readers have grace time left."""
        grace = GraceClock(self._store, self.names, self._reader_grace)
        readable = {each.checkpoint_id for each in grace.readable(view) if each.subsumed is not None}
        grace.close()
        return readable

    def _walked(self, after_slot: int) -> Iterator[TimelineRecord]:
        """As `_walk`, but many records are read concurrently: from the ninth on, as far as a listing goes."""
        if self._threads == 1:
            yield from self._walk(after_slot)
            return
        slot = after_slot
        for record in islice(self._walk(after_slot), _SEQUENTIAL_READS):
            slot = record.slot
            yield record
        if slot == after_slot + _SEQUENTIAL_READS:
            for record in self._tail_reader.read_behind(slot):
                slot = record.slot
                yield record
            yield from self._walk(slot)

    def _walk(self, after_slot: int) -> Iterator[TimelineRecord]:
        slot = after_slot + 1
        while (record := self._tail_reader.read(slot)) is not None:
            yield record
            slot += 1

    def _create(self, record: R, note: Mapping[str, str]) -> R:
        """Returns the record as it stands in the slot: of a repeat by another process, the first one's."""
        name = self.names.slot(record.slot)
        payload = encode_record(record)
        # The copy spares readers a round trip. Where a read is a system call, a second write costs more.
        listed = not self._store.capabilities.is_local
        metadata = {**copy_in_metadata(payload), **note} if listed else None
        try:
            self._store.put(name, payload, precondition=ABSENT, metadata=metadata)
        except (ConflictError, UnavailableError) as error:
            # A 412 may answer the client's own retry, and a lost answer proves nothing: only the slot's
            # content decides. It never changes once written, so one read is enough.
            there = self._tail_reader.read(record.slot)
            if isinstance(there, type(record)) and there.decision_id == record.decision_id:
                return there
            if there is not None:
                raise ConflictError(
                    f"slot {record.slot} of job {self.job!r} was taken by {there.kind!r}",
                    kind=ErrorKind.MOVED,
                ) from error
            raise in_doubt(f"{record.kind!r} in slot {record.slot} of job {self.job!r}", error) from error
        if record.slot == 1:
            self._tail_reader.names = replace(self.names, timeline=timeline_id_of(record))
        return record

    def while_it_is_there(self, request: Callable[[], T], written: str = "") -> T:
        """The answer, if this object's timeline was there meanwhile: its first record is read beside it.

        `written`: the object that the request creates, by a name that no other timeline's has.

        Raises: NotFoundError (kind `job_gone`), once that object is deleted; else what `request` raises.
        """
        if self._view is None or not self._view.slot:
            return request()
        began = self._clock.monotonic_seconds()
        result, now = both(request, self._tail_reader.is_replaced, self._threads)
        if now is None and self._clock.monotonic_seconds() - began > _MAX_SECONDS_OF_PROOF:
            now = self._tail_reader.is_replaced()
        if now is None:
            return result
        if written:
            self._take_back(written)
        behind = None if now else self._tail_reader.first_behind(1)
        if behind is not None:
            what = hole(self.job, 1, behind).message
            raise NotFoundError(f"{what}. Nothing was changed", kind=ErrorKind.JOB_GONE)
        begun = "; another job of that name has begun since" if now else ""
        raise NotFoundError(
            f"job {self.job!r}, as this process has read it in {self._store.uri}, is gone: it was dropped, "
            f"or the store was emptied or replaced{begun}. Nothing was changed; start again",
            kind=ErrorKind.JOB_GONE,
        )

    def refuse_if_gone(self) -> None:
        """Raises: NotFoundError (kind `job_gone`) if the timeline that this object has read is not there."""
        self.while_it_is_there(lambda: None)

    def _take_back(self, name: str) -> None:
        try:
            self._store.delete(name, precondition=ANY)
        except DstlError as error:
            log.warning("%s of a job that is gone was left: %s", name, error)

    def _refuse_hole(self, first_missing: int) -> None:
        """A slot after the first missing one means that history was deleted: stop rather than fork it."""
        later = self._tail_reader.first_behind(first_missing - 1)
        # It may have been created between our read and the listing; then the missing one exists by now.
        if later is not None and self._tail_reader.read(first_missing) is None:
            raise self._tail_reader.hole(first_missing, later)
