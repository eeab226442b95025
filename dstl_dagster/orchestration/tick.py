"""One tick of the checkpoint sensor: what is new on the timeline, and which events report it.

Owns following the records after a cursor, and where that begins and stops. Does not own the sensor around
it (`sensors`), what events say (`lineage`), or whether they were written before (`reporting`).

Why this is safe. Dagster writes the events of a tick one by one, then partitions, then runs, and the cursor
last: killed in between, the next tick follows the same records again. An event is left out where the
instance holds one of the same attempt, partitions are compared with what can be restored at that moment,
and a run is requested only if no other run for the same checkpoint is alive or has succeeded.

Why it is cheap. It reads the record that the cursor names, the records after it, one page of a listing, one
manifest for each new checkpoint, and the timeline's newest snapshot, however long the timeline is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.clock import Clock
from dstl_dagster.errors import ConflictError, ErrorKind, NotFoundError
from dstl_dagster.keyed import load_manifest
from dstl_dagster.orchestration.cursor import CheckpointCursor
from dstl_dagster.orchestration.keys import TAG_ATTEMPT, TAG_REPORTER, TAG_SLOT, JobAssets
from dstl_dagster.orchestration.lineage import Reporter, subsumed_materialization
from dstl_dagster.orchestration.owners import OwnerRuns
from dstl_dagster.orchestration.reporting import is_reported, unreported_checkpoint, unreported_files
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


@dataclass(frozen=True)
class Limits:
    """Where a tick stops; the next one continues there."""

    checkpoints: int
    seconds: float


@dataclass
class Tick:
    """What a tick found, oldest first.

    Attributes:
        cursor: where the next tick begins.
        events: to be written in this order.
        restorable_changed: the set of checkpoints that can be restored may have changed.
        reported: the checkpoints that `events` report.
        waiting_for: the owner whose run is alive and will report its checkpoint itself.
        at_end: every record was followed.
    """

    cursor: CheckpointCursor
    events: list[dg.AssetMaterialization] = field(default_factory=list)
    restorable_changed: bool = False
    reported: list[int] = field(default_factory=list)
    waiting_for: str | None = None
    at_end: bool = False


class TimelineFollower:
    """Follows the timeline of one job for one instance.

    Args:
        partitions_def: of the job's files; a checkpoint's idempotency key is its partition where it is one.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        assets: JobAssets,
        coordinator: CheckpointCoordinator,
        clock: Clock,
        *,
        partitions_def: dg.PartitionsDefinition[str] | None = None,
    ) -> None:
        self._instance = instance
        self._assets = assets
        self._coordinator = coordinator
        self._clock = clock
        self._partitions_def = partitions_def
        self._reporter = Reporter(_SENSOR, coordinator.store.uri, coordinator.prices)
        self._owners = OwnerRuns(instance)

    def start(self, cursor_text: str | None) -> CheckpointCursor:
        """Where to begin: at the cursor, or without one at what a sensor reported last.

        Raises: InvalidInputError (kind `bad_cursor`), ConflictError (kind `timeline_replaced`).
        """
        if cursor_text is None:
            return self._before_last_report() or CheckpointCursor()
        cursor = CheckpointCursor.from_text(cursor_text)
        if cursor.slot == 0:
            return cursor
        there = self._record_at(cursor.slot)
        if there is None or cursor.decision not in (None, there.decision_id):
            found = "nothing is there" if there is None else f"there is another {there.kind!r} record"
            raise ConflictError(
                f"the sensor followed the timeline of job {self._assets.job!r} up to slot {cursor.slot}, but "
                f"now {found}: the store was emptied or replaced. If the job was started over on purpose, "
                "clear the sensor's cursor; otherwise restore the store from a backup",
                kind=ErrorKind.TIMELINE_REPLACED,
            )
        return cursor

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
        return tick

    def _take(self, record: TimelineRecord, tick: Tick) -> bool:
        """Add to the tick what follows from the record; False where a live run has to report it first."""
        match record:
            case Completed():
                return self._completed(record, tick)
            case Committed():
                return self._committed(record, tick)
            case Subsumed() | Restored() | Savepoint() | Released():
                tick.restorable_changed = True
            case _:
                pass  # does not change what Dagster shows
        return True

    def _completed(self, record: Completed, tick: Tick) -> bool:
        assets, partition = self._assets, self._assets.partition_key(record.checkpoint_id)
        if self._run_will_report(tick.cursor.owner, assets.checkpoints_key, partition, record, tick):
            return False
        tick.restorable_changed = True
        checkpoint = self._checkpoint(record)
        if checkpoint is None:
            if not is_reported(self._instance, assets.checkpoints_key, partition, record.attempt):
                tick.events.append(subsumed_materialization(assets, record, self._reporter))
                tick.reported.append(record.checkpoint_id)
            return True
        # One look at the tail a tick, for the picture of the chain.
        reporter = replace(self._reporter, view=self._coordinator.timeline.seen())
        events = unreported_checkpoint(self._instance, assets, checkpoint, reporter)
        if events:
            tick.events += events
            tick.reported.append(record.checkpoint_id)
        return True

    def _committed(self, record: Committed, tick: Tick) -> bool:
        pending = tick.cursor.uncommitted
        if pending is None or pending.checkpoint_id != record.checkpoint_id:
            return True
        completed = self._record_at(pending.slot)
        if not isinstance(completed, Completed) or not completed.files:
            return True
        partition = self._file_partition(completed)
        if self._run_will_report(tick.cursor.owner, self._assets.files_key, partition, completed, tick):
            return False
        checkpoint = self._checkpoint(completed, record)
        if checkpoint is not None:
            tick.events += unreported_files(
                self._instance, self._assets, checkpoint, self._reporter, partition
            )
        return True

    def _run_will_report(
        self, owner: str | None, key: dg.AssetKey, partition: str | None, record: Completed, tick: Tick
    ) -> bool:
        """The run that made the checkpoint is alive and has not reported it yet."""
        if owner is None or not self._owners.are_alive(owner):
            return False
        if is_reported(self._instance, key, partition, record.attempt):
            return False
        tick.waiting_for = owner
        return True

    def _checkpoint(self, completed: Completed, committed: Committed | None = None) -> Checkpoint | None:
        """The checkpoint; `None` where clean-up deleted its manifest."""
        try:
            manifest = load_manifest(self._coordinator.store, completed.manifest, completed.manifest_crc32c)
        except NotFoundError:
            return None
        return Checkpoint(CheckpointEntry(completed=completed, committed=committed), manifest)

    def _file_partition(self, completed: Completed) -> str | None:
        key = completed.idempotency_key
        if self._partitions_def is None or key is None:
            return None
        return key if self._partitions_def.has_partition_key(key) else None

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
