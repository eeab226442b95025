"""Which partition a run is for, and which one is next: partitions become state in order, without a gap."""

from __future__ import annotations

from typing import Any

from dagster import (
    DagsterInstance,
    OpExecutionContext,
    PartitionsDefinition,
    TimeWindowPartitionsDefinition,
    partition_loading_context,
)

from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError
from dstl_dagster.timeline import Completed

__all__ = ["has_partition", "next_partition", "partition_in", "partition_of", "require_next_partition"]


def partition_of(context: OpExecutionContext) -> str | None:
    """The one partition of the run; `None` in a run without partitions.

    Not by `context.has_partition_key`: a run of a backfill is tagged with a range, so that is False there,
    even if the range is a single partition.

    Raises: InvalidInputError where the run covers several partitions.
    """
    if not context.has_partition_key and not context.has_partition_key_range:
        return None
    covered = context.partition_key_range
    if covered.start != covered.end:
        raise InvalidInputError(
            f"the run covers the partitions {covered.start} to {covered.end}, but a checkpoint holds one: "
            "give the asset BackfillPolicy.multi_run(1), or launch one run for each partition"
        )
    return str(covered.start)


def next_partition(definition: TimeWindowPartitionsDefinition, position: str | None) -> str | None:
    """The partition after `position` (the first one where it is `None`); `None` after the last."""
    if position is None:
        return definition.get_first_partition_key()
    window = definition.get_next_partition_window(definition.time_window_for_partition_key(position).end)
    return None if window is None else definition.get_partition_key_for_timestamp(window.start.timestamp())


def has_partition(definition: PartitionsDefinition[Any], key: str, instance: DagsterInstance) -> bool:
    """Whether this is one of the definition's keys; dynamic ones are the instance's."""
    with partition_loading_context(dynamic_partitions_store=instance):
        return definition.has_partition_key(key)


def partition_in(
    definition: PartitionsDefinition[str] | None, completed: Completed, instance: DagsterInstance
) -> str | None:
    """The partition of a completed checkpoint: its idempotency key, where that is one of the definition's."""
    key = completed.idempotency_key
    if definition is None or key is None or not has_partition(definition, key, instance):
        return None
    return key


def require_next_partition(
    definition: PartitionsDefinition[Any] | None, partition: str, position: Any, *, job: str
) -> None:
    """Refuse a partition other than the one after the position of the last completed checkpoint.

    Raises: ConflictError (kind `out_of_order`); InvalidInputError where the asset has no time
    partitions.
    """
    if not isinstance(definition, TimeWindowPartitionsDefinition):
        raise InvalidInputError(
            f"job {job!r}: a source that advances by partition needs time partitions (daily, hourly, ...)"
        )
    if position is not None and not isinstance(position, str):
        raise InvalidInputError(f"job {job!r}: position {position!r} is not a partition key")
    wanted = next_partition(definition, position)
    if partition == wanted:
        return
    if position is None:
        state = f"job {job!r} has no checkpoint yet; the first partition is {wanted}"
    else:
        state = (
            f"the state of job {job!r} stands at {position}; next is {wanted or 'nothing: it is the last'}"
        )
    raise ConflictError(
        f"partition {partition} is out of order: {state}. Nothing was changed. A backfill runs partitions in "
        "order: start one at the next partition",
        kind=ErrorKind.OUT_OF_ORDER,
    )
