"""Reporting a checkpoint to Dagster once: what the instance holds, and what it lacks.

Owns the question whether an event was written, and which partitions should exist. Reads only. Does not own
what the events say (`lineage`), or who writes them (`steps`, `sensors`).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.orchestration.keys import TAG_ATTEMPT, TAG_TIMELINE, JobAssets
from dstl_dagster.orchestration.lineage import (
    STATE,
    Reporter,
    checkpoint_materialization,
    files_materialization,
    operator_materialization,
    timeline_mark,
)
from dstl_dagster.timeline import TimelineView

__all__ = [
    "PartitionChanges",
    "is_reported",
    "partition_changes",
    "unreported_checkpoint",
    "unreported_files",
]

_NEWEST_EVENTS = 25
"""Enough: a step or a tick that is repeated is repeated soon."""
_STALE_AT_ONCE = 200
"""Each costs a query. The newest first; the next call finds the rest."""


def unreported_checkpoint(
    instance: dg.DagsterInstance, assets: JobAssets, checkpoint: Checkpoint, reporter: Reporter
) -> list[dg.AssetMaterialization]:
    """The events of a completed checkpoint that the instance lacks.

    The checkpoint's own comes last: where it was written, all of them were.
    """
    partition = assets.partition_key(checkpoint.checkpoint_id)
    if is_reported(instance, assets.checkpoints_key, partition, checkpoint.attempt):
        return []
    operators = [
        operator_materialization(assets, checkpoint, operator, reporter)
        for operator in assets.operators
        if operator in checkpoint.manifest.operators
    ]
    missing = [
        event for event in operators if not is_reported(instance, event.asset_key, None, checkpoint.attempt)
    ]
    sizes = {} if reporter.view is None else _sizes_shown(instance, assets, reporter.view)
    return [*missing, checkpoint_materialization(assets, checkpoint, reporter, sizes)]


def _sizes_shown(instance: dg.DagsterInstance, assets: JobAssets, view: TimelineView) -> dict[int, str]:
    """The size of the state at each retained checkpoint, as its own event says; no request to the store."""
    ids = {assets.partition_key(entry.checkpoint_id): entry.checkpoint_id for entry in view.retained}
    found = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=assets.checkpoints_key, asset_partitions=list(ids)[-_NEWEST_EVENTS:]),
        limit=_NEWEST_EVENTS,
    )
    events = [record.asset_materialization for record in found.records]
    return {
        ids[event.partition]: str(event.metadata[STATE].value)
        for event in events
        if event is not None and event.partition in ids and STATE in event.metadata
    }


def unreported_files(
    instance: dg.DagsterInstance,
    assets: JobAssets,
    checkpoint: Checkpoint,
    reporter: Reporter,
    partition: str | None,
) -> list[dg.AssetMaterialization]:
    """The event of a committed checkpoint's files, if it has any and the instance lacks the event."""
    if not checkpoint.manifest.files or is_reported(
        instance, assets.files_key, partition, checkpoint.attempt
    ):
        return []
    return [files_materialization(assets, checkpoint, reporter, partition)]


def is_reported(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None, attempt: uuid.UUID
) -> bool:
    """Whether the event of this attempt was written: by an earlier try, the sensor or the run."""
    found = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=key, asset_partitions=None if partition is None else [partition]),
        limit=_NEWEST_EVENTS,
    )
    # By attempt: without partitions the events of all checkpoints belong to the same asset.
    return any(
        record.asset_materialization is not None
        and (record.asset_materialization.tags or {}).get(TAG_ATTEMPT) == str(attempt)
        for record in found.records
    )


@dataclass(frozen=True)
class PartitionChanges:
    """What makes the dynamic partitions of a job the checkpoints that can be restored now.

    Attributes:
        missing: keys of retained checkpoints that have no partition, oldest first.
        stale: keys of partitions whose checkpoint is not retained, and that are no other timeline's.
    """

    missing: list[str]
    stale: list[str]


def partition_changes(
    instance: dg.DagsterInstance, assets: JobAssets, coordinator: CheckpointCoordinator
) -> PartitionChanges:
    """The difference between the partitions that exist and the checkpoints that are retained."""
    # The partitions are read first: each existing one has a checkpoint on a timeline that is read later, so
    # a checkpoint that completes in between is never taken for a stale one.
    existing = set(instance.get_dynamic_partitions(assets.partitions_name))
    mark = timeline_mark(assets, coordinator.store.uri)
    retained = [assets.partition_key(entry.checkpoint_id) for entry in coordinator.timeline.tail().retained]
    return PartitionChanges(
        missing=[key for key in retained if key not in existing],
        stale=[
            key
            for key in sorted(existing.difference(retained), reverse=True)[:_STALE_AT_ONCE]
            if not _is_anothers(instance, assets, key, mark)
        ],
    )


def _is_anothers(instance: dg.DagsterInstance, assets: JobAssets, partition: str, mark: str) -> bool:
    """Whether a job of the same name on another store reported it: they share the asset."""
    found = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=assets.checkpoints_key, asset_partitions=[partition]),
        limit=_NEWEST_EVENTS,
    )
    # Events of earlier releases do not say whose they are.
    return any(
        record.asset_materialization is not None
        and (record.asset_materialization.tags or {}).get(TAG_TIMELINE, mark) != mark
        for record in found.records
    )
