"""What Dagster is told of a restore: which checkpoint counts now, what is gone, and what to run again.

Owns these events, and the marks by which Dagster shows a partition whose batch is gone as failed. Does not
own the restore (`checkpoint`), or who tells of it: its own run (`restore_job`), or the sensor (`tick`).

A day whose checkpoint was left behind would stay green for ever, and a backfill of what is missing would skip
it: so its partition is marked (`marks`).

Why this is safe. An event is left out where the instance holds it, a partition is marked only while its
newest event names a checkpoint that was left behind, and the checkpoint's own event comes last: where it was
written, all of them were. All of it may run any number of times, after the partition ran again too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.orchestration.keys import (
    TAG_ATTEMPT,
    TAG_CHECKPOINT,
    TAG_RESTORED,
    TAG_VERSION,
    JobAssets,
)
from dstl_dagster.orchestration.owners import in_words, owner_link
from dstl_dagster.orchestration.program import state_of
from dstl_dagster.orchestration.report.lineage import (
    Reporter,
    checkpoint_materialization,
    files_event,
    operator_materialization,
    state_materialization,
)
from dstl_dagster.orchestration.report.marks import Mark
from dstl_dagster.orchestration.report.reporting import names_checkpoint, sizes_shown
from dstl_dagster.timeline import Completed, Restored

__all__ = ["RestoreEvent", "ToldRestore", "is_restore_told", "newest_again", "tell_restore"]

RestoreEvent = dg.AssetMaterialization | dg.AssetObservation

_FILES_SHOWN = 50
_NEWEST_EVENTS = 25


@dataclass(frozen=True)
class ToldRestore:
    """What there is to tell of one restore.

    Attributes:
        left_behind: the checkpoints that it abandoned, oldest first.
        run_again: the partitions whose batches are gone, by the asset that still shows them.
        events: those that the instance lacks, to be written in this order.
    """

    restored: Restored
    left_behind: tuple[Completed, ...]
    run_again: Mapping[dg.AssetKey, tuple[str, ...]]
    events: tuple[RestoreEvent, ...]

    @property
    def batches(self) -> tuple[str, ...]:
        """The batches (days) to run again, oldest first."""
        keys = (completed.idempotency_key for completed in self.left_behind)
        return tuple(key for key in keys if key is not None)

    def mark(self, assets: JobAssets) -> Mark:
        """The partitions that Dagster should show as failed until they ran again."""
        restored = self.restored
        return Mark(
            cause=f"restored/{restored.decision_id}",
            about=f"run again after the restore to checkpoint {restored.checkpoint_id}",
            why=f"{assets.job} was rolled back to checkpoint {restored.checkpoint_id}. Run again, oldest "
            f"first: {', '.join(self.batches)}",
            partitions=self.run_again,
            tags={TAG_CHECKPOINT: str(restored.checkpoint_id), TAG_RESTORED: str(restored.slot)},
        )


def is_restore_told(instance: dg.DagsterInstance, assets: JobAssets, restored: Restored) -> bool:
    """Whether the event of the checkpoint that a restore went back to was written: the last one of them."""
    partition = assets.partition_key(restored.checkpoint_id)
    found = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=assets.checkpoints_key, asset_partitions=[partition]),
        limit=_NEWEST_EVENTS,
    )
    events = [record.asset_materialization for record in found.records]
    return any(event is not None and _tells_of(event, restored) for event in events)


def tell_restore(
    instance: dg.DagsterInstance,
    assets: JobAssets,
    coordinator: CheckpointCoordinator,
    restored: Restored,
    reporter: Reporter,
) -> ToldRestore:
    """What Dagster should be told of this restore. Reads only.

    The checkpoint becomes the newest of its asset only while the job still resumes from it: a restore that is
    told late, after newer checkpoints, tells what it took away.
    """
    left = coordinator.left_behind(restored)
    reporter = replace(reporter, restored_in=restored.slot, owner=None)
    batches = {completed.idempotency_key: completed for completed in left if completed.idempotency_key}
    run_again = {
        key: shown
        for key in (*assets.state_keys, assets.files_key)
        if (shown := _still_shown(instance, key, batches))
    }
    events: list[RestoreEvent] = [
        event
        for completed in left
        for event in _gone(assets, restored, completed, run_again)
        if not instance.get_event_tags_for_asset(event.asset_key, {TAG_VERSION: event.tags[TAG_VERSION]})
    ]
    current = coordinator.timeline.tail().last_completed_id == restored.checkpoint_id
    if current and not is_restore_told(instance, assets, restored):
        checkpoint = coordinator.get(restored.checkpoint_id)
        events += _back(instance, assets, checkpoint, restored, left, reporter)
    return ToldRestore(restored, left, run_again, tuple(events))


def _still_shown(
    instance: dg.DagsterInstance, key: dg.AssetKey, batches: Mapping[str, Completed]
) -> tuple[str, ...]:
    """The partitions whose newest materialization is that of a checkpoint that was left behind."""
    shown = instance.get_materialized_partitions(key) if batches else set()
    stale = []
    for partition, completed in batches.items():
        if partition not in shown:
            continue
        found = instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition]), limit=1
        )
        events = [record.asset_materialization for record in found.records]
        if any(event is not None and names_checkpoint(event, completed) for event in events):
            stale.append(partition)
    return tuple(stale)


def _gone(
    assets: JobAssets,
    restored: Restored,
    completed: Completed,
    run_again: Mapping[dg.AssetKey, tuple[str, ...]],
) -> list[dg.AssetObservation]:
    """What is said at each place that still shows the checkpoint."""
    number, batch = completed.checkpoint_id, completed.idempotency_key
    why = f"{assets.job} was rolled back to checkpoint {restored.checkpoint_id}"

    def observed(
        key: dg.AssetKey, partition: str | None, said: str, more: Mapping[str, object]
    ) -> dg.AssetObservation:
        return dg.AssetObservation(
            asset_key=key,
            partition=partition,
            description=f"{why}: {said}",
            tags={
                TAG_CHECKPOINT: str(number),
                TAG_ATTEMPT: str(completed.attempt),
                TAG_RESTORED: str(restored.slot),
                TAG_VERSION: f"{completed.attempt}-left-behind",
            },
            metadata={
                "checkpoint": str(number),
                "rolled back at": in_words(restored.recorded_at),
                "rolled back by": owner_link(restored.by),
                **({} if batch is None else {"run again": batch}),
                **more,  # type: ignore[dict-item] # Dagster takes any
            },
        )

    partition = assets.partition_key(number)
    events = [observed(assets.checkpoints_key, partition, f"checkpoint {number} cannot be restored", {})]
    if completed.files:
        names = [f"* `{file.name}`" for file in completed.files[:_FILES_SHOWN]]
        files = {"files": len(completed.files), "retracted": dg.MetadataValue.md("\n".join(names))}
        shown = run_again.get(assets.files_key, ())
        where = batch if batch in shown else None
        events.append(observed(assets.files_key, where, f"the files of checkpoint {number} are gone", files))
    said = f"{batch} is no longer in the state: run it again"
    events += [observed(key, batch, said, {}) for key in assets.state_keys if batch in run_again.get(key, ())]
    return events


def _back(
    instance: dg.DagsterInstance,
    assets: JobAssets,
    checkpoint: Checkpoint,
    restored: Restored,
    left: tuple[Completed, ...],
    reporter: Reporter,
) -> list[RestoreEvent]:
    """The checkpoint that counts again, as the newest event of each asset of the job. Its own comes last."""
    *events, own = newest_again(instance, assets, checkpoint, reporter)
    lacking = [event for event in events if not _is_newest(instance, event.asset_key, restored)]
    days = [completed.idempotency_key or f"checkpoint {completed.checkpoint_id}" for completed in left]
    said: dict[str, Any] = {
        "rolled back at": in_words(restored.recorded_at),
        "rolled back by": owner_link(restored.by),
        "left behind": ", ".join(assets.partition_key(each.checkpoint_id) for each in left) or "nothing",
        "run again": dg.MetadataValue.md("\n".join(f"* {day}" for day in days) or "nothing"),
    }
    told = dg.AssetMaterialization(
        asset_key=own.asset_key,
        partition=own.partition,
        description=f"{assets.job} was rolled back to checkpoint {checkpoint.checkpoint_id}",
        tags=own.tags,
        metadata={**said, **own.metadata},
    )
    return [*lacking, told]


def newest_again(
    instance: dg.DagsterInstance, assets: JobAssets, checkpoint: Checkpoint, reporter: Reporter
) -> list[RestoreEvent]:
    """The events by which each asset of the job shows this checkpoint as the newest. Its own comes last."""
    events: list[RestoreEvent] = []
    batch = checkpoint.idempotency_key
    shown = state_of(assets, checkpoint)
    if shown is not None and _was_shown(instance, shown.state_key, batch):
        where = _partition_shown(instance, shown.state_key, batch)
        events.append(state_materialization(shown, checkpoint, reporter, where))
    events += [
        operator_materialization(assets, checkpoint, operator, reporter)
        for operator in assets.operators
        if operator in checkpoint.manifest.operators
    ]
    if checkpoint.manifest.files and checkpoint.committed:
        where = _partition_shown(instance, assets.files_key, batch)
        events.append(files_event(assets, checkpoint, reporter, where))
    sizes = {} if reporter.view is None else sizes_shown(instance, assets, reporter.view)
    return [*events, checkpoint_materialization(assets, checkpoint, reporter, sizes)]


def _was_shown(instance: dg.DagsterInstance, key: dg.AssetKey, batch: str | None) -> bool:
    """Whether Dagster shows this asset at all: a job without assets has no state to tell of."""
    newest = instance.get_latest_materialization_event(key)
    if newest is None or newest.asset_materialization is None:
        return False
    partitioned = newest.asset_materialization.partition is not None
    return not partitioned or _partition_shown(instance, key, batch) is not None


def _partition_shown(instance: dg.DagsterInstance, key: dg.AssetKey, batch: str | None) -> str | None:
    return batch if batch is not None and batch in instance.get_materialized_partitions(key) else None


def _is_newest(instance: dg.DagsterInstance, key: dg.AssetKey, restored: Restored) -> bool:
    newest = instance.get_latest_materialization_event(key)
    event = None if newest is None else newest.asset_materialization
    return event is not None and _tells_of(event, restored)


def _tells_of(event: dg.AssetMaterialization, restored: Restored) -> bool:
    return (event.tags or {}).get(TAG_RESTORED) == str(restored.slot)
