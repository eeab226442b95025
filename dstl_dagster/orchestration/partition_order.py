"""Which partition is next: time partitions become state in order, without a gap."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import dagster as dg

from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError


def next_partition(definition: dg.TimeWindowPartitionsDefinition, position: str | None) -> str | None:
    """The partition that begins at `position`, or after what the definition itself leaves out from there on.

    `position`: an instant, as the positions of a checkpoint have it; `None`: the definition's first. Returns
    `None` after the last, and where the instant lies within a partition.
    """
    window = _next_window(definition, None if position is None else _instant(position))
    return None if window is None else _key(definition, window)


def previous_partition() -> dg.TimeWindowPartitionMapping:
    """By which an asset depends on its own previous partition, so that a backfill runs them in order."""
    return dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)


def _next_window(
    definition: dg.TimeWindowPartitionsDefinition, position: datetime | None
) -> dg.TimeWindow | None:
    if position is None or position < definition.start:
        return definition.get_first_partition_window()
    begins = _without_exclusions(definition).get_next_partition_window(position, respect_bounds=False)
    if begins is None or not _at(begins, position):
        return None
    return definition.get_next_partition_window(position)


def _at(window: dg.TimeWindow, instant: datetime) -> bool:
    """Whether it begins then. Not by `==`: an hour that comes twice, as clocks go back, equals its double in
    its own zone, and nothing in another one.
    """
    return window.start.timestamp() == instant.timestamp()


def _without_exclusions(definition: dg.TimeWindowPartitionsDefinition) -> dg.TimeWindowPartitionsDefinition:
    if not definition.exclusions:
        return definition
    return dg.TimeWindowPartitionsDefinition(
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


def require_next_partition(
    definition: dg.PartitionsDefinition[Any] | None, partition: str, position: Any, *, job: str, source: str
) -> None:
    """Refuse a partition other than the one that begins where the source stands.

    Raises: ConflictError (kind `out_of_order`); InvalidInputError where the asset has no time
    partitions.
    """
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        raise InvalidInputError(
            f"job {job!r}: a source that advances by partition needs time partitions (daily, hourly, ...)"
        )
    at = None if position is None else _instant(position)
    window, wanted = definition.time_window_for_partition_key(partition), _next_window(definition, at)
    if wanted is not None and _at(window, wanted.start):
        return
    raise ConflictError(
        f"partition {partition} is out of order: {_standing(definition, at, wanted, job, source)}. Nothing "
        f"was changed. {_advice(window, at, wanted)}",
        kind=ErrorKind.OUT_OF_ORDER,
    )


def _standing(
    definition: dg.TimeWindowPartitionsDefinition,
    at: datetime | None,
    wanted: dg.TimeWindow | None,
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
    if begins is None or _at(begins, at):
        return f"{stands}; next is nothing: it is the last"
    return f"{stands}, where none of its partitions begins: the next one begins at {begins.start.isoformat()}"


def _advice(window: dg.TimeWindow, at: datetime | None, wanted: dg.TimeWindow | None) -> str:
    if at is not None and window.end <= at:
        return "What it covers is in the state already, or was left out"
    if wanted is None and at is not None:
        return "Go on with the former partitions up to where one of these begins, or restore to there"
    return "A backfill runs partitions in order: start one at the next partition"


def _key(definition: dg.TimeWindowPartitionsDefinition, window: dg.TimeWindow) -> str:
    return definition.get_partition_key_for_timestamp(window.start.timestamp())
