"""Reporting a checkpoint to Dagster once: what the instance holds, and what it lacks.

Owns the question whether an event was written, and which partitions should exist. Reads only. Does not own
what the events say (`lineage`), or who writes them (`steps`, `sensors`).

An event is found by its data version, which Dagster's storage can search: however many events came after it.
Those without one of ours (what a run of the state's asset reports as its output) are looked for among the
newest ones of the partition.
"""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.orchestration.keys import (
    TAG_ATTEMPT,
    TAG_CHECKPOINT,
    TAG_VERSION,
    JobAssets,
)
from dstl_dagster.orchestration.report.follow_ups import child_follow_up, files_follow_up
from dstl_dagster.orchestration.report.lineage import (
    STATE,
    Reporter,
    checkpoint_materialization,
    files_event,
    files_version,
    operator_materialization,
    state_materialization,
    state_version,
)
from dstl_dagster.orchestration.report.marks import Mark
from dstl_dagster.timeline import Committed, Completed, TimelineView

__all__ = [
    "PartitionChanges",
    "are_files_reported",
    "blocked_mark",
    "is_reported",
    "names_checkpoint",
    "partition_changes",
    "sizes_shown",
    "unreported_checkpoint",
    "unreported_files",
    "unreported_state",
]

Event = dg.AssetMaterialization | dg.AssetObservation

_NEWEST_EVENTS = 25
"""Enough, because a step or a tick that is repeated is repeated soon."""
_CHECKPOINT = "checkpoint"
"""The metadata by which the state's own events have always named their checkpoint."""


def unreported_checkpoint(
    instance: dg.DagsterInstance, assets: JobAssets, checkpoint: Checkpoint, reporter: Reporter
) -> list[Event]:
    """The events of a completed checkpoint that the instance lacks.

    The checkpoint's own comes last: where it was written, all of them were.
    """
    completed, partition = checkpoint.entry.completed, assets.partition_key(checkpoint.checkpoint_id)
    if is_reported(instance, assets.checkpoints_key, partition, completed):
        return []
    operators = [
        operator_materialization(assets, checkpoint, operator, reporter)
        for operator in assets.operators
        if operator in checkpoint.manifest.operators
    ]
    missing = [event for event in operators if not is_reported(instance, event.asset_key, None, completed)]
    sizes = {} if reporter.view is None else sizes_shown(instance, assets, reporter.view)
    follow_up = _lacking(instance, child_follow_up(assets, checkpoint, reporter))
    return [*missing, *follow_up, checkpoint_materialization(assets, checkpoint, reporter, sizes)]


def _lacking(instance: dg.DagsterInstance, events: list[dg.AssetObservation]) -> list[dg.AssetObservation]:
    """Those that were not written by an earlier try."""
    return [
        event
        for event in events
        if not instance.get_event_tags_for_asset(event.asset_key, {TAG_VERSION: event.tags[TAG_VERSION]})
    ]


def sizes_shown(instance: dg.DagsterInstance, assets: JobAssets, view: TimelineView) -> dict[int, str]:
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
) -> list[Event]:
    """The event of a committed checkpoint's files, if it has any and the instance lacks it, and a word on the
    checkpoint's own page.
    """
    entry = checkpoint.entry
    if not checkpoint.manifest.files or are_files_reported(
        instance, assets, partition, entry.completed, entry.committed
    ):
        return []
    follow_up = _lacking(instance, files_follow_up(assets, checkpoint, reporter))
    return [*follow_up, files_event(assets, checkpoint, reporter, partition)]


def blocked_mark(assets: JobAssets, checkpoint: Checkpoint, partition: str | None) -> Mark | None:
    """What lets Dagster show a partition with blocked files as failed; `None` where nothing is blocked."""
    if partition is None or not checkpoint.blocked:
        return None
    names = ", ".join(file.name for file in checkpoint.blocked)
    return Mark(
        cause=f"blocked/{checkpoint.attempt}",
        about=f"blocked files of checkpoint {checkpoint.checkpoint_id}",
        why=f"Files of checkpoint {checkpoint.checkpoint_id} are blocked: {names}. "
        f"`dstl checkpoints resolve {checkpoint.checkpoint_id} NAME` with `--keep` or `--replace`",
        partitions={assets.files_key: (partition,)},
        tags={TAG_CHECKPOINT: str(checkpoint.checkpoint_id), TAG_ATTEMPT: str(checkpoint.attempt)},
    )


def unreported_state(
    instance: dg.DagsterInstance,
    assets: JobAssets,
    checkpoint: Checkpoint,
    reporter: Reporter,
    partition: str | None,
) -> list[dg.AssetMaterialization]:
    """The event of the state, if the instance lacks it: the run died, or was none of Dagster's."""
    if is_reported(instance, assets.state_key, partition, checkpoint.entry.completed):
        return []
    return [state_materialization(assets, checkpoint, reporter, partition)]


def is_reported(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None, completed: Completed
) -> bool:
    """Whether the event of this checkpoint was written: by an earlier try, the sensor or the run."""
    return _holds(instance, key, partition, completed, state_version(completed.attempt))


def are_files_reported(
    instance: dg.DagsterInstance,
    assets: JobAssets,
    partition: str | None,
    completed: Completed,
    committed: Committed | None,
) -> bool:
    """Whether this outcome of step 6 was written: a resolved file makes it another one."""
    return _holds(
        instance, assets.files_key, partition, completed, files_version(completed.attempt, committed)
    )


def _holds(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    partition: str | None,
    completed: Completed,
    version: str,
) -> bool:
    if instance.get_event_tags_for_asset(key, {TAG_VERSION: version}):
        return True
    found = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=key, asset_partitions=None if partition is None else [partition]),
        limit=_NEWEST_EVENTS,
    )
    # What has a data version of ours would have been found by it.
    events = [record.asset_materialization for record in found.records]
    return any(
        event is not None and _has_no_version_of_ours(event) and names_checkpoint(event, completed)
        for event in events
    )


def names_checkpoint(event: dg.AssetMaterialization, completed: Completed) -> bool:
    """Whether the event tells of this checkpoint, in whichever release's words."""
    tags, version = event.tags or {}, state_version(completed.attempt)
    if TAG_ATTEMPT in tags:
        return tags[TAG_ATTEMPT] == str(completed.attempt)
    if tags.get(TAG_VERSION, "").startswith(version):
        return True
    number = event.metadata.get(_CHECKPOINT)
    return (
        _has_no_version_of_ours(event) and number is not None and number.value == str(completed.checkpoint_id)
    )


def _has_no_version_of_ours(event: dg.AssetMaterialization) -> bool:
    """A data version that Dagster made up itself has no dashes, and one of ours begins with a UUID."""
    return "-" not in (event.tags or {}).get(TAG_VERSION, "")


@dataclass(frozen=True)
class PartitionChanges:
    """What makes the dynamic partitions of a job the checkpoints that can be restored now.

    Attributes:
        missing: keys of retained checkpoints that have no partition, oldest first.
        stale: keys of partitions whose checkpoint is not retained.
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
    retained = [assets.partition_key(entry.checkpoint_id) for entry in coordinator.timeline.tail().retained]
    return PartitionChanges(
        missing=[key for key in retained if key not in existing],
        stale=sorted(existing.difference(retained), reverse=True),
    )
