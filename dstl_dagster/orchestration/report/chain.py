"""The chain of a job's checkpoints, and those of it that can be restored, as lines of links. Pure.

An event keeps its picture for ever, so both say as of when they are, and nothing that the next minute makes
untrue: no age, and not that step 6 is due, which follows at once (a check reports it where it does not).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import dagster as dg

from dstl_dagster.format import breakable, counted
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.owners import run_of_batch
from dstl_dagster.orchestration.report.links import NEW_LINE, checkpoint_link, launchpad_link
from dstl_dagster.timeline import CheckpointEntry, Completed, TimelineView

_ROOM = 999 - 64
"""Characters of Markdown that Dagster shows in place, less those of what is left out, and as of when."""
_LINKS = 5
"""Of a long chain; a link is as long as three lines without one."""


def chain_metadata(
    assets: JobAssets, view: TimelineView, now: datetime, restore_job: str | None
) -> dict[str, dg.MetadataValue]:
    """`chain` of a checkpoint's event, as of `view`; with the Dagster job that restores also `restore to`."""
    chain = dg.MetadataValue.md(f"as of {now:%Y-%m-%d %H:%M} UTC{NEW_LINE}{_chain(assets, view)}")
    if restore_job is None:
        return {"chain": chain}
    return {"chain": chain, "restore to": dg.MetadataValue.md(_restorable(assets, view, restore_job))}


def _chain(assets: JobAssets, view: TimelineView) -> str:
    """The newest checkpoints, one a line, newest first; those that a restore left behind stand aside.

    All are links; where there is no room for that, the first ones.
    """
    entries = sorted(view.kept, key=lambda entry: entry.checkpoint_id, reverse=True)
    lines: list[str] = []
    for links in (len(entries), _LINKS):
        lines, aside = [], False
        for count, entry in enumerate(entries):
            left_behind = view.is_abandoned(entry.checkpoint_id)
            fork = f"├─╯{NEW_LINE}" if aside and not left_behind else ""
            aside = left_behind
            lines.append(fork + _line(assets, view, entry, is_link=count < links))
        if sum(len(line) + len(NEW_LINE) for line in lines) <= _ROOM:
            break
    if entries and entries[-1].completed.parent is not None:
        return _fitting(lines, "older ones are cleaned up")
    return _fitting(lines)


def _fitting(lines: list[str], end: str | None = None) -> str:
    """The first lines that are shown at once, and how many are left out; `end` where none is."""
    left = _ROOM
    for count, line in enumerate(lines):
        left -= len(line) + len(NEW_LINE)
        if left < 0:
            return NEW_LINE.join([*lines[:count], f"┆ {len(lines) - count} older ones"])
    return NEW_LINE.join([*lines, *([f"┆ {end}"] if end else [])])


def _line(assets: JobAssets, view: TimelineView, entry: CheckpointEntry, *, is_link: bool) -> str:
    left_behind, number = view.is_abandoned(entry.checkpoint_id), entry.checkpoint_id
    completed = entry.completed
    blocked = 0 if entry.committed is None else len(entry.committed.blocked)
    notes = [
        batch_name(entry.completed),
        counted(len(completed.files), "file") if completed.files else "",
        "resumes here" if number == view.last_completed_id else "",
        f"{counted(blocked, 'file')} blocked" if blocked else "",
        savepoints_of(view, number),
        f"undone, on {completed.parent or 'none'}" if left_behind else "",
    ]
    mark = "│ ○" if left_behind else "●"
    name = checkpoint_link(assets, number) if is_link else assets.partition_key(number)
    return f"{mark} {name} {breakable(', '.join(filter(None, notes)))}".rstrip()


def _restorable(assets: JobAssets, view: TimelineView, restore_job: str) -> str:
    """Each with its launchpad, where what is undone is confirmed as of now: of later ones that is refused."""
    lines = []
    for entry in reversed(view.retained):
        number = entry.checkpoint_id
        name = assets.partition_key(number)
        if number != view.last_completed_id:
            confirm = f"ops:+{{restore:+{{config:+{{confirm:+{view.last_completed_id}->{number}}}}}}}"
            name = launchpad_link(name, restore_job, name, confirm)
        notes = [batch_name(entry.completed), savepoints_of(view, number)]
        lines.append(" ".join(filter(None, [name, *map(breakable, notes)])))
    return _fitting(lines)


def savepoints_of(view: TimelineView, checkpoint_id: int) -> str:
    """In words; empty if there are none."""
    names = sorted(name for name, kept in view.savepoints.items() if kept == checkpoint_id)
    return f"savepoint {', '.join(names)}" if names else ""


def positions_in_words(positions: Mapping[str, Any]) -> str:
    """How far each source is, by its name; empty if none has a position."""
    ordered = sorted(positions.items())
    return "; ".join(f"{name}: {at if isinstance(at, str) else json.dumps(at)}" for name, at in ordered)


def batch_name(completed: Completed) -> str:
    """Empty for that of a run without partitions: it is named after the run, which is shown beside it."""
    key = completed.idempotency_key or ""
    return "" if run_of_batch(key) else key
