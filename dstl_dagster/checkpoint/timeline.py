"""A job's decisions as consecutive create-only objects: reading them, and being first with the next one.

Owns the race for a slot and what a failed or lost answer means. Does not own which record is right
(`decisions`) or what the records add up to (`view`).

Why this is safe. A slot is created with "only if absent" and never deleted or reused, so exactly one
record wins it, and everybody reads the same sequence. A record carries a decision id. When the answer
to a creation is lost, or a retry inside the client is told 412, the slot itself is asked: our id means
that we won. Otherwise the decision is taken again from the new tail, or dropped.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

from dstl_dagster.checkpoint.records import TimelineRecord, decode_record, encode_record
from dstl_dagster.checkpoint.view import TimelineView, ViewBuilder
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import ConflictError, FormatError, InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.format.names import JobNames
from dstl_dagster.storage import ABSENT, ObjectStore

__all__ = ["Timeline"]

_MAX_ROUNDS = 1_000
"""So many rivals in a row were faster: something else is wrong."""

log = logging.getLogger(__name__)
R = TypeVar("R", bound=TimelineRecord)


class Timeline:
    """The timeline of one job. May be used from several threads; keeps what it has read.

    Args:
        job: the job's name (see `format.names.validated_job`).
        store: where the job lives.
        clock: stamps records, for people.
        new_id: makes decision ids.
    """

    def __init__(
        self,
        job: str,
        store: ObjectStore,
        *,
        clock: Clock | None = None,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self._names = JobNames(job)
        self._store = store
        self._clock = clock or SystemClock()
        self._new_id = new_id
        self._lock = threading.RLock()
        self._builder: ViewBuilder | None = None

    @property
    def job(self) -> str:
        return self._names.job

    def records(self, after_slot: int | None = None) -> Iterator[TimelineRecord]:
        """Every record behind `after_slot` (exclusive; `None` or 0: from the first), in order.

        Raises: FormatError where a record is unreadable or a slot was deleted.
        """
        slot = after_slot or 0
        if slot < 0:
            raise InvalidInputError(f"after_slot must be 0 or more, not {after_slot}")
        for record in self._walk(slot):
            slot = record.slot
            yield record
        self._refuse_hole(slot + 1)

    def tail(self) -> TimelineView:
        """What all records up to now add up to. Reads only what is new since the last call."""
        with self._lock:
            # A hole is looked for once, on the first read: from then on this object knows what was there.
            builder = self._builder or ViewBuilder()
            for record in self.records() if self._builder is None else self._walk(builder.slot):
                builder.add(record)
            self._builder = builder
            return builder.view()

    def append(self, record: R) -> R:
        """Create the record in the slot behind the last one that this object has read.

        A record without a decision id is given one. Returns it as it now stands on the timeline.

        Raises: ConflictError (kind `slot_taken`: a rival was first, nothing was written), UnavailableError
        (unknown; append the *returned or same* record again, its decision id makes that safe).
        """
        with self._lock:
            if self._builder is None:
                self.tail()
            assert self._builder is not None
            stamped = dataclasses.replace(
                record,
                slot=self._builder.slot + 1,
                decision_id=record.decision_id if record.decision_id.int else self._new_id(),
                recorded_at=self._clock.now(),
            )
            self._builder.check(stamped)  # before it is written: a record can never be taken back
            self._create(stamped)
            self._builder.add(stamped)
        log.info("timeline %s: slot %d is %s", self.job, stamped.slot, stamped.kind)
        return stamped

    def decide(self, rule: Callable[[TimelineView], R | None]) -> R | None:
        """Append what `rule` says should come next, or nothing where it says `None`.

        `rule` is called again with the new tail each time a rival took the slot; it must be pure.
        """
        decision_id = self._new_id()
        for _ in range(_MAX_ROUNDS):
            with self._lock:
                record = rule(self.tail())
                if record is None:
                    return None
                try:
                    return self.append(dataclasses.replace(record, decision_id=decision_id))
                except ConflictError as error:
                    if error.kind != "slot_taken":
                        raise
        raise UnavailableError(
            f"timeline of job {self.job!r}: {_MAX_ROUNDS} times another writer took the next slot first; "
            "see who writes so much (`records()`), then try again",
            kind="contention",
        )

    def _walk(self, after_slot: int) -> Iterator[TimelineRecord]:
        slot = after_slot + 1
        while (record := self._read(slot)) is not None:
            yield record
            slot += 1

    def _create(self, record: TimelineRecord) -> None:
        name = self._names.slot(record.slot)
        try:
            self._store.put(name, encode_record(record), precondition=ABSENT)
        except (ConflictError, UnavailableError) as error:
            # 412 may be the answer to the client's own second try, and a lost answer says nothing: only
            # the slot itself knows. It never changes once it is there, so one look decides.
            there = self._read(record.slot)
            if there is not None and there.decision_id == record.decision_id:
                return
            if there is not None:
                raise ConflictError(
                    f"slot {record.slot} of job {self.job!r} was taken by {there.kind!r}", kind="slot_taken"
                ) from error
            raise UnavailableError(
                f"could not learn whether {record.kind!r} was written to slot {record.slot} of job "
                f"{self.job!r}: {error}. Run the step again",
                kind="outcome_unknown",
            ) from error

    def _read(self, slot: int) -> TimelineRecord | None:
        name = self._names.slot(slot)
        try:
            payload = self._store.get(name)
        except NotFoundError:
            return None
        return decode_record(payload, slot, name)

    def _refuse_hole(self, first_missing: int) -> None:
        """A slot behind the first missing one means that history was deleted: stop, do not fork it."""
        later = next(
            iter(self._store.list(self._names.timeline_prefix, start_offset=self._names.slot(first_missing))),
            None,
        )
        if later is None:
            return
        later_slot = self._names.slot_of(later.name)
        if later_slot is None or later_slot < first_missing:
            raise FormatError(f"foreign object {later.name} on the timeline of {self.job!r}: move it away")
        # It may have been created between our read and the listing; then the missing one is there by now.
        if self._read(first_missing) is None:
            raise FormatError(
                f"slot {first_missing} of job {self.job!r} is missing, but slot {later_slot} exists: a "
                "record was deleted. Restore it from a backup; the job cannot go on safely without it",
                kind="history_hole",
            )
