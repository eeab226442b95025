"""What checks of the data find in the manifests of a job, without a look at a row.

Owns these checks: their names, their limits and their sentences. Each warns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from math import inf
from typing import Final

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.clock import Clock
from dstl_dagster.errors import InvalidInputError, NotFoundError
from dstl_dagster.orchestration.report.findings import Finding, of_none

__all__ = ["DATA_CHECKS", "data_finding", "parse_limits"]

_ROWS, _DELETES, _UNCHANGED = "row_drop", "delete_share", "unchanged_days"
DATA_CHECKS: Final[Mapping[str, str]] = {
    _ROWS: "The last checkpoint has at most {:.0%} fewer rows than the one before.",
    _DELETES: "At most {:.0%} of what the last checkpoint changed was deleted.",
    _UNCHANGED: "Something has changed within {:g} days.",
}
"""What each is about, with its limit."""


def parse_limits(data: Mapping[str, float | str]) -> dict[str, float]:
    """The limits by check. Raises: InvalidInputError for another name, or a limit that is none."""
    for name in data.keys() - DATA_CHECKS.keys():
        raise InvalidInputError(f"{name!r} is no check of the data: they are {', '.join(DATA_CHECKS)}")
    limits = {}
    for name, limit in data.items():
        try:
            limits[name] = float(limit)
        except (TypeError, ValueError):
            limits[name] = -1.0
        if not 0 <= limits[name] <= (inf if name == _UNCHANGED else 1):
            unit = "days" if name == _UNCHANGED else "a share, 0 to 1"
            raise InvalidInputError(f"{name} is {unit}, not {limit!r}")
    return limits


def data_finding(
    name: str, limit: float, coordinator: CheckpointCoordinator, latest: Checkpoint | None, clock: Clock
) -> Finding:
    """Of the check of this name."""
    if latest is None:
        return of_none(coordinator, name)
    found, text = _CHECKS[name](coordinator, latest, clock)
    return Finding(name, found <= limit, text, warn=True, measures={name.replace("_", " "): found})


def _row_drop(coordinator: CheckpointCoordinator, latest: Checkpoint, clock: Clock) -> tuple[float, str]:
    """By the bounds of both: a drop that is certain."""
    del clock
    rows, which = latest.manifest.rows, f"checkpoint {latest.checkpoint_id}"
    try:
        before = None if latest.parent is None else coordinator.get(latest.parent)
    except NotFoundError:
        before = None
    if before is None:
        return 0.0, f"{which} has none before it to be compared with"
    were = before.manifest.rows
    if rows is None or rows.most is None or were is None or not were.least:
        return 0.0, f"unknown: the rows of {which}, or of the one before, were not counted"
    drop = max(0.0, 1 - rows.most / were.least)
    return drop, f"{which} has {rows.in_words()} rows, and the one before had {were.in_words()}"


def _delete_share(coordinator: CheckpointCoordinator, latest: Checkpoint, clock: Clock) -> tuple[float, str]:
    del coordinator, clock
    reports = [entry.report for entry in latest.manifest.operators.values()]
    deletes, changes = sum(each.deletes for each in reports), latest.manifest.changes
    text = f"{deletes:,} of {changes:,} changes of checkpoint {latest.checkpoint_id} are deletes"
    return deletes / changes if changes else 0.0, text


def _unchanged_days(
    coordinator: CheckpointCoordinator, latest: Checkpoint, clock: Clock
) -> tuple[float, str]:
    """Since the newest retained checkpoint that changed something; else since before the oldest."""
    changed = latest
    for entry in reversed(coordinator.timeline.seen().retained):
        changed = coordinator.get(entry.checkpoint_id)
        if changed.manifest.changes:
            break
    since = clock.now() - changed.entry.completed.recorded_at
    what = "changed something" if changed.manifest.changes else "is the oldest one, and changed nothing"
    text = f"checkpoint {changed.checkpoint_id} {what}, {timedelta(seconds=round(since.total_seconds()))} ago"
    return since / timedelta(days=1), text


_CHECKS: Final[Mapping[str, Callable[[CheckpointCoordinator, Checkpoint, Clock], tuple[float, str]]]] = {
    _ROWS: _row_drop,
    _DELETES: _delete_share,
    _UNCHANGED: _unchanged_days,
}
