"""One tick of the checkpoint sensor: the records after its cursor, and what is to be reported of them.

Owns following the records, where that begins and stops, whom it waits for, and the cursor's text, which
people can read and edit. Does not own the sensor around it (`sensors`), or what is reported of a record
(`report.reconcile`).

Why this is safe. Dagster writes the events of a tick one by one, then partitions, then runs, and the cursor
last: killed in between, the next tick follows the same records again, and finds out what was written. A tick
ends where its view of the timeline does, so that it knows of every record which restores undid it before.

It waits for a run that is alive to report what it did itself, but not for ever: a host that dies takes its
runs along without a word, and Dagster shows them as started until `run_monitoring` looks after them.

Why it is cheap. It reads the record that the cursor names, the records after it, one page of a listing, one
manifest for each new checkpoint, and the timeline's newest snapshot, however long the timeline is.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

import dagster as dg

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.clock import Clock
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError
from dstl_dagster.orchestration.keys import TAG_ATTEMPT, TAG_REPORTER, TAG_SLOT
from dstl_dagster.orchestration.owners import OwnerRuns
from dstl_dagster.orchestration.report import events as says
from dstl_dagster.orchestration.report.reconcile import Reconcile, Report
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.orchestration.timeline_check import compare_timeline
from dstl_dagster.timeline import (
    Committed,
    Completed,
    Released,
    Restored,
    Savepoint,
    Subsumed,
    TimelineRecord,
    TimelineView,
)

_SENSOR = "sensor"
MOST_CHECKPOINTS, MOST_SECONDS = 500, 30.0
"""Where a tick stops; the next one continues. Dagster gives it 60 seconds, and writes events after that."""
_EVENTS_SEARCHED = 50
_BY_CURSOR = ', or set this cursor to `{"start_over": true}`'


@dataclass
class Tick:
    """The findings of a tick.

    Attributes:
        restorable_changed: the set of checkpoints that can be restored may have changed.
        reported: the records of which it reports something, oldest first.
        waiting: for whose run, which is alive and will report its checkpoint itself, or commit it.
        at_end: every record was followed.
    """

    cursor: CheckpointCursor
    report: Report = field(default_factory=Report)
    restorable_changed: bool = False
    reported: list[TimelineRecord] = field(default_factory=list)
    waiting: str | None = None
    at_end: bool = False

    def checkpoints(self, of: type[Completed | Committed | Restored]) -> list[int]:
        """Of the records of this type of which it reports something."""
        return [each.checkpoint_id for each in self.reported if isinstance(each, of)]


@dataclass
class TimelineFollower:
    """Follows the timeline of one job for one page. `patience`: how long it waits for a run to report."""

    page: Page
    coordinator: CheckpointCoordinator
    clock: Clock
    patience: timedelta = timedelta(hours=1)
    _shows_other: bool = False

    def start(self, cursor_text: str | None) -> CheckpointCursor:
        """Where to begin: at the cursor, or without one at what a sensor reported last.

        Raises: InvalidInputError, ConflictError (kind `timeline_replaced`).
        """
        cursor = None if cursor_text is None else CheckpointCursor.from_text(cursor_text)
        slot = 0 if cursor is None else cursor.slot
        there = self._record_at(slot)
        known = cursor is not None and slot and there and cursor.decision in (None, there.decision_id)
        page, followed_to = self.page, slot if known else 0
        found = compare_timeline(
            page.instance, self.coordinator, *page.assets.showing_keys, followed_to=followed_to
        )
        start_over = cursor is not None and cursor.start_over
        if found.away is not None and not start_over:
            raise ConflictError(f"{found.away}{_BY_CURSOR}", kind=ErrorKind.TIMELINE_REPLACED)
        self._shows_other = found.difference is not None
        if cursor is None or start_over:
            cursor = self._before_last_report() or CheckpointCursor()
        elif slot and not known:
            if not found.known:
                what = "it has nothing" if there is None else f"it has another {there.kind!r} record"
                difference = f"{what} in slot {slot}, up to which this sensor followed it"
                raise ConflictError(
                    f"{found.sentence(difference)}{_BY_CURSOR}", kind=ErrorKind.TIMELINE_REPLACED
                )
            cursor = CheckpointCursor()  # what was shown since is here: a run has started the job over
        elif cursor.shown and not page.has(page.assets.checkpoints_key, says.state_version(cursor.shown)):
            cursor = CheckpointCursor()  # the page was wiped
        return cursor

    def follow(self, start: CheckpointCursor) -> Tick:
        """Everything that happened after `start`, up to where a tick stops. Writes nothing."""
        tick, view = Tick(start), None
        known: dict[int, Completed] = {}
        deadline_seconds = self.clock.monotonic_seconds() + MOST_SECONDS
        for record in self.coordinator.timeline.records(start.slot):
            full = isinstance(record, Completed) and len(tick.checkpoints(Completed)) >= MOST_CHECKPOINTS
            if full or self.clock.monotonic_seconds() >= deadline_seconds:
                return tick
            if view is None:
                view = self.coordinator.timeline.tail()
            if isinstance(record, Completed):
                known[record.checkpoint_id] = record
            if record.slot > view.slot or not self._take(record, tick, view, known):
                return tick
            tick.cursor = tick.cursor.after(record)
        tick.at_end = True
        if self._shows_other:
            tick.restorable_changed = True
            view = self.coordinator.timeline.tail()
            tick.report = self._reconcile(view).whole_store(tick.report)
        elif view is not None:
            last = view.last_completed
            if last is not None and last.completed.slot <= tick.cursor.slot:  # a later one has its own turn
                tick.report += self._reconcile(view).newest(tick.report)
        return tick

    def _take(
        self, record: TimelineRecord, tick: Tick, view: TimelineView, known: dict[int, Completed]
    ) -> bool:
        """Add to the tick what follows from the record; False where the tick has to end before it."""
        reconcile = self._reconcile(view, known)
        found = reconcile.record(record)
        if isinstance(record, Restored) and view.last_completed_id == record.checkpoint_id:
            found += reconcile.newest(tick.report + found, record)
        made = reconcile.completed(record.checkpoint_id) if isinstance(record, Committed) else record
        # Its run reports the record by itself, while it is alive.
        by = record.by if isinstance(record, Restored) else None
        owner = made.owner if isinstance(made, Completed) else by
        in_time = self.clock.now() - record.recorded_at <= self.patience
        if found and owner is not None and in_time and OwnerRuns(self.page.instance).are_alive(owner):
            at = f"{record.recorded_at:%H:%M:%S} UTC"
            tick.waiting = f"waiting for {owner}, which is alive, to report its checkpoint of {at}"
            return False
        tick.report += found
        if found:
            tick.reported.append(record)
        if isinstance(record, Completed) and tick.cursor.shown is None:
            tick.cursor = replace(tick.cursor, shown=record.attempt)
        tick.restorable_changed |= isinstance(record, (Completed, Restored, Subsumed, Savepoint, Released))
        return True

    def _reconcile(self, view: TimelineView, known: Mapping[int, Completed] | None = None) -> Reconcile:
        return Reconcile(self.page, self.coordinator, view, _SENSOR, known=known or {})

    def _record_at(self, slot: int) -> TimelineRecord | None:
        return None if slot < 1 else next(self.coordinator.timeline.records(slot - 1), None)

    def _before_last_report(self) -> CheckpointCursor | None:
        """Just before the last checkpoint that a sensor reported: all earlier ones are reported as well."""
        found = self.page.instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=self.page.assets.checkpoints_key), limit=_EVENTS_SEARCHED
        )
        for each in found.records:
            event = each.asset_materialization
            tags = {} if event is None or event.tags is None else event.tags
            if tags.get(TAG_REPORTER) != _SENSOR:
                continue
            slot = int(tags[TAG_SLOT])
            completed = self._record_at(slot)
            if not isinstance(completed, Completed) or str(completed.attempt) != tags[TAG_ATTEMPT]:
                return None  # reported from a timeline that was replaced since
            before = self._record_at(slot - 1)
            return CheckpointCursor() if before is None else CheckpointCursor(slot - 1, before.decision_id)
        return None


@dataclass(frozen=True)
class CheckpointCursor:
    """All records up to and including `slot` (0: none) were followed.

    Attributes:
        decision: the id of the record in `slot`; reveals a timeline that was replaced.
        shown: the attempt of the first checkpoint that it followed: if this instance does not show it, its
            page was wiped. Of the last ones a run shows its own, and the one before.
        start_over: a person says that the store is right, though it is not the one that was followed.
    """

    slot: int = 0
    decision: uuid.UUID | None = None
    shown: uuid.UUID | None = None
    start_over: bool = False

    def after(self, record: TimelineRecord) -> CheckpointCursor:
        """The cursor after this record, which must be the next one."""
        return replace(self, slot=record.slot, decision=record.decision_id)

    def to_text(self) -> str:
        """One line of JSON, without what is not set."""
        fields = {
            "slot": self.slot,
            "shown": None if self.shown is None else str(self.shown),
            "start_over": self.start_over or None,
            "decision": None if self.decision is None else str(self.decision),
        }
        return json.dumps({name: value for name, value in fields.items() if value is not None})

    @classmethod
    def from_text(cls, text: str) -> CheckpointCursor:
        """The cursor that `to_text` wrote, or a person typed: `{"slot": 42}` or `{"start_over": true}`.

        Raises: InvalidInputError: silently starting over would hide a mistake.
        """
        try:
            fields = json.loads(text)
            start_over = fields.get("start_over") is True
            slot = 0 if start_over else fields.get("slot")
            if not isinstance(slot, int) or isinstance(slot, bool) or slot < 0:
                raise ValueError(f"slot {slot!r}")
            ids = [fields.get("decision"), fields.get("shown")]
            decision, shown = (None if each is None else uuid.UUID(each) for each in ids)
            return cls(slot, decision, shown, start_over)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(
                f"{text!r} is not a cursor of this sensor ({error!r}). Set it to "
                '{"slot": N} to continue after slot N, or clear it: nothing is reported twice'
            ) from error
