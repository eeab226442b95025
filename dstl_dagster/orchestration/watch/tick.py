"""One tick of the checkpoint sensor: what is new on the timeline, and which events report it.

Owns following the records after a cursor, and where that begins and stops. Does not own the sensor around
it (`sensors`), what events say (`lineage`), or whether they were written before (`reporting`).

Why this is safe. Dagster writes the events of a tick one by one, then partitions, then runs, and the cursor
last: killed in between, the next tick follows the same records again. An event is left out where the
instance holds the same one, partitions are compared with what can be restored at that moment, and a run is
requested only if no other run for the same checkpoint is alive or has succeeded.

It waits for a run that is alive to report what it did itself, but not for ever: a host that dies takes its
runs along without a word, and Dagster shows them as started until `run_monitoring` looks after them.

Why it is cheap. It reads the record that the cursor names, the records after it, one page of a listing, one
manifest for each new checkpoint, and the timeline's newest snapshot, however long the timeline is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.clock import Clock
from dstl_dagster.errors import ConflictError, ErrorKind, NotFoundError
from dstl_dagster.keyed import load_manifest
from dstl_dagster.orchestration.keys import TAG_ATTEMPT, TAG_REPORTER, TAG_SLOT, JobAssets
from dstl_dagster.orchestration.owners import OwnerRuns
from dstl_dagster.orchestration.partitions import partition_in
from dstl_dagster.orchestration.program import state_of
from dstl_dagster.orchestration.report.lineage import Reporter, subsumed_materialization
from dstl_dagster.orchestration.report.marks import Mark
from dstl_dagster.orchestration.report.reporting import (
    are_files_reported,
    blocked_mark,
    is_reported,
    unreported_checkpoint,
    unreported_files,
    unreported_state,
)
from dstl_dagster.orchestration.report.restores import is_restore_told, newest_again, tell_restore
from dstl_dagster.orchestration.timeline_check import compare_timeline
from dstl_dagster.orchestration.watch.cursor import CheckpointCursor
from dstl_dagster.timeline import (
    CheckpointEntry,
    Committed,
    Completed,
    Released,
    Restored,
    Savepoint,
    Subsumed,
    TimelineRecord,
)

__all__ = ["Limits", "Tick", "TimelineFollower"]

_SENSOR = "sensor"
_EVENTS_SEARCHED = 50
_BY_CURSOR = ', or set this cursor to `{"start_over": true}`'


@dataclass(frozen=True)
class Limits:
    """Where a tick stops; the next one continues there. `patience`: how long it waits for a run to report."""

    checkpoints: int
    seconds: float
    patience: timedelta = timedelta(hours=1)


@dataclass
class Tick:
    """What a tick found, oldest first.

    Attributes:
        cursor: where the next tick begins.
        events: to be written in this order.
        restorable_changed: the set of checkpoints that can be restored may have changed.
        marks: to be written before `events`.
        reported: the checkpoints that `events` report.
        published: those whose files they report.
        rolled_back_to: the checkpoints of the restores that they report.
        waiting_for: the owner whose run is alive and will report its checkpoint itself.
        waiting_since: when there was something to report.
        at_end: every record was followed.
    """

    cursor: CheckpointCursor
    events: list[dg.AssetMaterialization | dg.AssetObservation] = field(default_factory=list)
    restorable_changed: bool = False
    marks: list[Mark] = field(default_factory=list)
    reported: list[int] = field(default_factory=list)
    published: list[int] = field(default_factory=list)
    rolled_back_to: list[int] = field(default_factory=list)
    waiting_for: str | None = None
    waiting_since: datetime | None = None
    at_end: bool = False


class TimelineFollower:
    """Follows the timeline of one job for one instance.

    Args:
        partitions_def: of the job's files; a checkpoint's idempotency key is its partition where it is one.
        states: the assets that write the job's state in these definitions, with their partitions.
        patience: how long a run that is alive is waited for, from the record that it should report.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        assets: JobAssets,
        coordinator: CheckpointCoordinator,
        clock: Clock,
        *,
        partitions_def: dg.PartitionsDefinition[str] | None = None,
        states: Mapping[dg.AssetKey, dg.PartitionsDefinition[str] | None] | None = None,
        patience: timedelta = Limits.patience,
    ) -> None:
        self._instance = instance
        self._assets = assets
        self._coordinator = coordinator
        self._clock = clock
        self._partitions_def = partitions_def
        self._states = states or {}
        self._patience = patience
        self._shows_other = False
        self._owners = OwnerRuns(instance)

    def start(self, cursor_text: str | None) -> CheckpointCursor:
        """Where to begin: at the cursor, or without one at what a sensor reported last.

        Raises: InvalidInputError (kind `bad_cursor`), ConflictError (kind `timeline_replaced`).
        """
        cursor = None if cursor_text is None else CheckpointCursor.from_text(cursor_text)
        slot = 0 if cursor is None else cursor.slot
        there = self._record_at(slot)
        known = cursor is not None and slot and there and cursor.decision in (None, there.decision_id)
        found = compare_timeline(self._instance, self._coordinator, followed_to=slot if known else 0)
        start_over = cursor is not None and cursor.start_over
        if found.away is not None and not start_over:
            raise ConflictError(f"{found.away}{_BY_CURSOR}", kind=ErrorKind.TIMELINE_REPLACED)
        self._shows_other = found.difference is not None
        timeline = self._coordinator.timeline.names.timeline
        if cursor is None or start_over:
            cursor = self._before_last_report() or CheckpointCursor()
        elif slot and not known:
            if not found.known or cursor.timeline in ("", timeline):
                what = "it has nothing" if there is None else f"it has another {there.kind!r} record"
                difference = f"{what} in slot {slot}, up to which this sensor followed it"
                raise ConflictError(
                    f"{found.sentence(difference)}{_BY_CURSOR}", kind=ErrorKind.TIMELINE_REPLACED
                )
            cursor = CheckpointCursor()  # a run has started the job over
        elif cursor.shown and not found.known:
            cursor = CheckpointCursor()  # the page was wiped
        return replace(cursor, timeline=timeline, shown=found.known)

    @property
    def _reporter(self) -> Reporter:
        coordinator, timeline = self._coordinator, self._coordinator.timeline
        return Reporter(_SENSOR, coordinator.store.uri, timeline.names.timeline, coordinator.prices)

    def follow(self, start: CheckpointCursor, limits: Limits) -> Tick:
        """Everything that happened after `start`, up to the limits. Writes nothing."""
        tick = Tick(start)
        deadline_seconds = self._clock.monotonic_seconds() + limits.seconds
        for record in self._coordinator.timeline.records(start.slot):
            full = isinstance(record, Completed) and len(tick.reported) >= limits.checkpoints
            if full or self._clock.monotonic_seconds() >= deadline_seconds:
                return tick
            if not self._take(record, tick):
                return tick
            tick.cursor = tick.cursor.after(record)
        tick.at_end = True
        if self._shows_other:
            tick.restorable_changed = True
        if self._shows_other or tick.cursor.slot != start.slot:
            self._show_again(tick)
        return tick

    def _show_again(self, tick: Tick) -> None:
        """The last checkpoint, which was reported long ago, as the newest once more: after another store, and
        after older ones that were reported late.
        """
        last, key = self._coordinator.timeline.seen().last_completed, self._assets.checkpoints_key
        told = [
            event
            for event in tick.events
            if event.asset_key == key and isinstance(event, dg.AssetMaterialization)
        ]
        latest = None if told else self._instance.get_latest_materialization_event(key)
        newest = told[-1] if told else None if latest is None else latest.asset_materialization
        if last is None or newest is None:
            return
        if (newest.tags or {}).get(TAG_ATTEMPT) != str(last.completed.attempt):
            checkpoint = self._coordinator.get(last.checkpoint_id)
            tick.events += newest_again(self._instance, self._assets, checkpoint, self._reporter)

    def _take(self, record: TimelineRecord, tick: Tick) -> bool:
        """Add to the tick what follows from the record; False where the tick has to end before it."""
        match record:
            case Completed():
                return self._completed(record, tick)
            case Committed():
                return self._committed(record, tick)
            case Restored():
                return self._restored(record, tick)
            case Subsumed() | Savepoint() | Released():
                tick.restorable_changed = True
            case _:
                pass  # does not change what Dagster shows
        return True

    def _completed(self, record: Completed, tick: Tick) -> bool:
        assets, partition = self._assets, self._assets.partition_key(record.checkpoint_id)
        owner = tick.cursor.owner

        def reported() -> bool:
            return is_reported(self._instance, assets.checkpoints_key, partition, record)

        if self._run_will_report(owner, record.recorded_at, reported, tick):
            return False
        tick.restorable_changed = True
        checkpoint, reporter = self._checkpoint(record), replace(self._reporter, owner=owner)
        if checkpoint is None:
            if not reported():
                tick.events.append(subsumed_materialization(assets, record, reporter))
                tick.reported.append(record.checkpoint_id)
            return True
        # One look at the tail a tick, for the picture of the chain.
        reporter = replace(reporter, view=self._coordinator.timeline.seen())
        events = unreported_checkpoint(self._instance, assets, checkpoint, reporter)
        if events:
            tick.events += events
            tick.reported.append(record.checkpoint_id)
            tick.cursor = replace(tick.cursor, shown=True)
        return True

    def _committed(self, record: Committed, tick: Tick) -> bool:
        """Report the files, and the state, whose run ends with step 7. A resolved file commits once more."""
        pending, owner = tick.cursor.uncommitted, tick.cursor.owner
        first = pending is not None and pending.checkpoint_id == record.checkpoint_id
        completed = self._record_at(pending.slot) if first and pending else self._completed_of(record)
        if not isinstance(completed, Completed) or self._was_run_again(completed):
            return True
        files_partition = partition_in(self._partitions_def, completed, self._instance)
        assets = self._with_state(completed, record)
        definition = None if assets is None else self._states[assets.state_key]
        in_state = partition_in(definition, completed, self._instance)
        shows_state = assets is not None and (definition is None or in_state is not None)
        assets = assets or self._assets
        if first and owner is not None and self._owners.have_succeeded(owner):
            shows_state = False  # a run that did all its steps reported the state as its own output

        def reported() -> bool:
            return (
                not completed.files
                or are_files_reported(self._instance, self._assets, files_partition, completed, record)
            ) and (not shows_state or is_reported(self._instance, assets.state_key, in_state, completed))

        if first and self._run_will_report(owner, record.recorded_at, reported, tick):
            return False
        checkpoint = None if reported() else self._checkpoint(completed, record)
        if checkpoint is None:
            return True
        given = (
            self._instance,
            assets,
            checkpoint,
            replace(self._reporter, owner=owner if first else None, view=self._coordinator.timeline.seen()),
        )
        files = unreported_files(*given, files_partition)
        mark = blocked_mark(self._assets, checkpoint, files_partition)
        if files and mark is not None:
            tick.marks.append(mark)
        tick.events += [*files, *(unreported_state(*given, in_state) if shows_state else ())]
        tick.published += [record.checkpoint_id] if files else []
        return True

    def _with_state(self, completed: Completed, record: Committed) -> JobAssets | None:
        """The asset that shows this checkpoint's state; `None` where none does."""
        if len(self._states) <= 1:
            return self._assets.of_state(next(iter(self._states))) if self._states else None
        checkpoint = self._checkpoint(completed, record)
        return None if checkpoint is None else state_of(self._assets, checkpoint)

    def _restored(self, record: Restored, tick: Tick) -> bool:
        tick.restorable_changed = True
        if tick.events:
            return False  # what was taken away is seen in what the instance holds: so write that first

        def told() -> bool:
            return is_restore_told(self._instance, self._assets, record)

        if self._run_will_report(record.by, record.recorded_at, told, tick):
            return False
        restore = tell_restore(self._instance, self._assets, self._coordinator, record, self._reporter)
        if restore.events:
            tick.events += restore.events
            tick.marks.append(restore.mark(self._assets))
            tick.rolled_back_to.append(record.checkpoint_id)
        return True

    def _run_will_report(
        self, owner: str | None, since: datetime, is_reported: Callable[[], bool], tick: Tick
    ) -> bool:
        """The run behind the record is alive, has not reported it yet, and there is still time."""
        if owner is None or not self._owners.are_alive(owner) or is_reported():
            return False
        if self._clock.now() - since > self._patience:
            return False
        tick.waiting_for, tick.waiting_since = owner, since
        return True

    def _was_run_again(self, completed: Completed) -> bool:
        """A restore took the batch away, and a later checkpoint holds it: that one's events are the newer."""
        view, key = self._coordinator.timeline.seen(), completed.idempotency_key
        return view.is_abandoned(completed.checkpoint_id) and key is not None and bool(view.applied_in(key))

    def _completed_of(self, record: Committed) -> Completed | None:
        """Where the cursor does not say whose files: it was set by hand, or they were blocked before."""
        entry = self._coordinator.timeline.tail().checkpoints.get(record.checkpoint_id)
        return None if entry is None else entry.completed

    def _checkpoint(self, completed: Completed, committed: Committed | None = None) -> Checkpoint | None:
        """The checkpoint; `None` where clean-up deleted its manifest."""
        try:
            manifest = load_manifest(self._coordinator.store, completed.manifest, completed.manifest_crc32c)
        except NotFoundError:
            return None
        return Checkpoint(CheckpointEntry(completed=completed, committed=committed), manifest)

    def _record_at(self, slot: int) -> TimelineRecord | None:
        return None if slot < 1 else next(self._coordinator.timeline.records(slot - 1), None)

    def _before_last_report(self) -> CheckpointCursor | None:
        """Just before the last checkpoint that a sensor reported: all earlier ones are reported as well."""
        found = self._instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=self._assets.checkpoints_key), limit=_EVENTS_SEARCHED
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
