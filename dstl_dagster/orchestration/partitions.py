"""Which partition a run is for, or a checkpoint, and the time that it covers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.keyed import name_in_id
from dstl_dagster.orchestration.code_location import asset_source, definition_of
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.timeline import BatchKey, Completed, TimelineView


def partition_of(context: dg.OpExecutionContext) -> str | None:
    """The one partition of the run; `None` in a run without partitions, and of an asset that has none.

    Not by `context.has_partition_key`: a run of a backfill is tagged with a range, so that is False there,
    even if the range is a single partition; and of a run for a partition it is True in each asset.

    Raises: InvalidInputError where the run covers several partitions.
    """
    if not context.has_partition_key and not context.has_partition_key_range:
        return None
    if context.has_assets_def and definition_of(context) is None:
        return None
    covered = context.partition_key_range
    if covered.start != covered.end:
        raise InvalidInputError(
            f"the run covers the partitions {covered.start} to {covered.end}, but a checkpoint holds one: "
            "give the asset BackfillPolicy.multi_run(1), or launch one run for each partition"
        )
    return str(covered.start)


def window_key(at: datetime) -> str:
    """An instant as positions have it: ISO 8601 in UTC."""
    return at.astimezone(UTC).isoformat()


def window_of(definition: dg.PartitionsDefinition[Any] | None, partition: str | None) -> dg.TimeWindow | None:
    """The time of a partition; `None` if it has none."""
    if partition is None or not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return None
    return definition.time_window_for_partition_key(partition)


def interval(window: dg.TimeWindow | None) -> str:
    """As a batch's key has it: two instants; empty for no window."""
    return "" if window is None else f"{window_key(window.start)}/{window_key(window.end)}"


def has_partition(definition: dg.PartitionsDefinition[Any], key: str, instance: dg.DagsterInstance) -> bool:
    """Whether this is one of the definition's keys; dynamic ones are the instance's."""
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        return definition.has_partition_key(key)


def partition_in(
    definition: dg.PartitionsDefinition[str] | None, completed: Completed, instance: dg.DagsterInstance
) -> str | None:
    """The partition of a completed checkpoint: its batch's, where that is one of the definition's."""
    batch = completed.batch
    if definition is None or batch is None or not has_partition(definition, batch.key, instance):
        return None
    return batch.key if is_of(batch, window_of(definition, batch.key)) else None


def is_held(view: TimelineView, definition: dg.PartitionsDefinition[Any] | None, key: str) -> bool:
    """Whether a checkpoint of the current chain holds this partition. Of batches that are in the archive the
    name counts alone.
    """
    known = [batch for batch in view.keys if batch.key == key]
    is_of_time = isinstance(definition, dg.TimeWindowPartitionsDefinition)
    if not known or definition is None or not is_of_time or not definition.has_partition_key(key):
        return view.applied_in(key) is not None
    window = window_of(definition, key)
    return any(is_of(batch, window) and view.applied_in(batch) is not None for batch in known)


def held_by(view: TimelineView, key: str, asset: dg.AssetKey, assets: JobAssets) -> bool | None:
    """The same of what one asset made, by the batches that the view has; `None`: they do not say."""
    made: dict[str, list[int]] = {}
    for batch, ids in view.keys.items():
        if batch.key == key:
            made.setdefault(name_in_id(batch.source), []).extend(ids)
    own = made.get(asset_source(asset))
    if own is not None:
        return not all(map(view.is_abandoned, own))
    # A source may have a name of its own, which no other asset has.
    others = {asset_source(each) for each in assets.state_keys} if asset in assets.state_keys else set()
    return False if made and others.issuperset(made) else None


def is_of(batch: BatchKey, window: dg.TimeWindow | None) -> bool:
    """A batch of time that another definition had may have the same name."""
    return "/" not in batch.window or batch.window == interval(window)
