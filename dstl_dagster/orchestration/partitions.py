"""Which partition a run is for, and which one is next: partitions become state in order, without a gap."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dagster import (
    DagsterInstance,
    OpExecutionContext,
    PartitionsDefinition,
    TimeWindow,
    TimeWindowPartitionMapping,
    TimeWindowPartitionsDefinition,
    partition_loading_context,
)

from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError
from dstl_dagster.timeline import Completed

__all__ = [
    "has_partition",
    "interval",
    "next_partition",
    "partition_in",
    "partition_of",
    "previous_partition",
    "require_next_partition",
    "window_key",
    "window_of",
]


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
    """The partition that begins at `position`, or after what the definition itself leaves out from there on.

    `position`: an instant, as the positions of a checkpoint have it; `None`: the definition's first. Returns
    `None` after the last, and where the instant lies within a partition.
    """
    window = _next_window(definition, None if position is None else _instant(position))
    return None if window is None else definition.get_partition_key_for_timestamp(window.start.timestamp())


def previous_partition() -> TimeWindowPartitionMapping:
    """By which an asset depends on its own previous partition, so that a backfill runs them in order."""
    return TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)


def window_key(at: datetime) -> str:
    """An instant as positions have it: ISO 8601 in UTC."""
    return at.astimezone(UTC).isoformat()


def window_of(definition: PartitionsDefinition[Any] | None, partition: str | None) -> TimeWindow | None:
    """The time of a partition; `None` if it has none."""
    if partition is None or not isinstance(definition, TimeWindowPartitionsDefinition):
        return None
    return definition.time_window_for_partition_key(partition)


def interval(window: TimeWindow | None) -> str:
    """As a batch's key has it: two instants; empty for no window."""
    return "" if window is None else f"{window_key(window.start)}/{window_key(window.end)}"


def _next_window(definition: TimeWindowPartitionsDefinition, position: datetime | None) -> TimeWindow | None:
    if position is None or position < definition.start:
        return definition.get_first_partition_window()
    begins = _without_exclusions(definition).get_next_partition_window(position, respect_bounds=False)
    if begins is None or begins.start != position:
        return None
    return definition.get_next_partition_window(position)


def _without_exclusions(definition: TimeWindowPartitionsDefinition) -> TimeWindowPartitionsDefinition:
    if not definition.exclusions:
        return definition
    return TimeWindowPartitionsDefinition(
        start=definition.start,
        fmt=definition.fmt,
        cron_schedule=definition.cron_schedule,
        timezone=definition.timezone,
    )


def _instant(position: Any) -> datetime:
    try:
        found = datetime.fromisoformat(position)
        if found.tzinfo is None:
            raise ValueError("no time zone")
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"position {position!r} is no instant with a time zone: only time partitions follow it"
        ) from error
    return found


def has_partition(definition: PartitionsDefinition[Any], key: str, instance: DagsterInstance) -> bool:
    """Whether this is one of the definition's keys; dynamic ones are the instance's."""
    with partition_loading_context(dynamic_partitions_store=instance):
        return definition.has_partition_key(key)


def partition_in(
    definition: PartitionsDefinition[str] | None, completed: Completed, instance: DagsterInstance
) -> str | None:
    """The partition of a completed checkpoint: its batch's, where that is one of the definition's."""
    batch = completed.batch
    if definition is None or batch is None or not has_partition(definition, batch.key, instance):
        return None
    # A batch of time that another definition had may have the same name.
    is_other = "/" in batch.window and batch.window != interval(window_of(definition, batch.key))
    return None if is_other else batch.key


def require_next_partition(
    definition: PartitionsDefinition[Any] | None, partition: str, position: Any, *, job: str, source: str
) -> None:
    """Refuse a partition other than the one that begins where the source stands.

    Raises: ConflictError (kind `out_of_order`); InvalidInputError where the asset has no time
    partitions.
    """
    if not isinstance(definition, TimeWindowPartitionsDefinition):
        raise InvalidInputError(
            f"job {job!r}: a source that advances by partition needs time partitions (daily, hourly, ...)"
        )
    at = None if position is None else _instant(position)
    window, wanted = definition.time_window_for_partition_key(partition), _next_window(definition, at)
    if wanted is not None and window.start == wanted.start:
        return
    raise ConflictError(
        f"partition {partition} is out of order: {_standing(definition, at, wanted, job, source)}. Nothing "
        f"was changed. {_advice(window, at, wanted)}",
        kind=ErrorKind.OUT_OF_ORDER,
    )


def _standing(
    definition: TimeWindowPartitionsDefinition,
    at: datetime | None,
    wanted: TimeWindow | None,
    job: str,
    source: str,
) -> str:
    following = "nothing: it is the last" if wanted is None else _key(definition, wanted)
    if at is None:
        return f"source {source!r} of job {job!r} has no batch yet; its first partition is {following}"
    stands = f"the state of job {job!r} stands at {at.isoformat()}"
    if wanted is not None:
        return f"{stands}; next is {following}"
    begins = _without_exclusions(definition).get_next_partition_window(at, respect_bounds=False)
    if begins is None or begins.start == at:
        return f"{stands}; next is nothing: it is the last"
    return f"{stands}, where none of its partitions begins: the next one begins at {begins.start.isoformat()}"


def _advice(window: TimeWindow, at: datetime | None, wanted: TimeWindow | None) -> str:
    if at is not None and window.end <= at:
        return "What it covers is in the state already, or was left out"
    if wanted is None and at is not None:
        return "Go on with the former partitions up to where one of these begins, or restore to there"
    return "A backfill runs partitions in order: start one at the next partition"


def _key(definition: TimeWindowPartitionsDefinition, window: TimeWindow) -> str:
    return definition.get_partition_key_for_timestamp(window.start.timestamp())
