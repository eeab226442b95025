"""Which partition of a source comes next. Pure: the order in which days become state."""

from __future__ import annotations

from typing import Any

from dagster import PartitionsDefinition, TimeWindowPartitionsDefinition

from dstl_dagster.errors import ConflictError, InvalidInputError

__all__ = ["next_partition", "require_next_partition"]


def next_partition(definition: TimeWindowPartitionsDefinition, position: str | None) -> str | None:
    """The partition behind `position` (the first where it is `None`); `None` behind the last."""
    if position is None:
        return definition.get_first_partition_key()
    window = definition.get_next_partition_window(definition.time_window_for_partition_key(position).end)
    return None if window is None else definition.get_partition_key_for_timestamp(window.start.timestamp())


def require_next_partition(
    definition: PartitionsDefinition[Any] | None, partition: str, position: Any, *, job: str
) -> None:
    """Refuse a partition that is not the one behind the position of the last completed checkpoint.

    Raises: ConflictError (kind `out_of_order`); InvalidInputError where the asset's partitions have no
    order in time.
    """
    if not isinstance(definition, TimeWindowPartitionsDefinition):
        raise InvalidInputError(
            f"job {job!r}: a position by partition needs an asset with time partitions (daily, hourly, ...)"
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
        "order; start it at the next one",
        kind="out_of_order",
    )
