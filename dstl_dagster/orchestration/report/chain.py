"""The chain of a job's checkpoints as a picture, and as a table of those that can be restored. Pure.

An event keeps its picture for ever, so both say as of when they are, and nothing that the next minute makes
untrue: no age, and not that step 6 is due, which follows at once (a check tells of it where it does not).

Owns the drawing. Dagster's page cuts images out of Markdown unless a web server has them, and draws no
diagrams: what it does show is a block of text in columns, and a table with links.
"""

from __future__ import annotations

from datetime import UTC, datetime

import dagster as dg

from dstl_dagster.format import counted
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.timeline import CheckpointEntry, TimelineView

__all__ = ["chain_metadata", "partition_link", "picture"]

_SHOWN_AT_ONCE = 999
"""Characters of Markdown that Dagster's page shows in place; more is behind a click."""
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_REST = 32
"""Characters for the line that says what is left out."""


def chain_metadata(assets: JobAssets, view: TimelineView, now: datetime) -> dict[str, dg.MetadataValue]:
    """`chain` and `restorable` of a checkpoint's event, as of `view`."""
    return {
        "chain": dg.MetadataValue.md(f"```\nas of {_time(now)}\n{picture(assets, view)}\n```"),
        "restorable": dg.MetadataValue.md(_restorable(assets, view)),
    }


def partition_link(key: dg.AssetKey, partition: str) -> str:
    """In Markdown, to the page of one partition of an asset, within Dagster's web server."""
    return f"[{partition}](/assets/{'/'.join(key.path)}?view=partitions&partition={partition})"


def picture(assets: JobAssets, view: TimelineView) -> str:
    """The newest checkpoints, one a line, newest first; those that a restore left behind stand aside."""
    entries = sorted(view.kept, key=lambda entry: entry.checkpoint_id, reverse=True)
    names = _names(view)
    lines: list[str] = []
    aside = False
    for entry in entries:
        left_behind = view.is_abandoned(entry.checkpoint_id)
        fork = "├─╯\n" if aside and not left_behind else ""
        aside = left_behind
        lines.append(fork + _line(assets, view, entry, names.get(entry.checkpoint_id, ())))
    fence = len(f"```\nas of {_time(_ANY_TIME)}\n\n```")
    shown = _fitting(lines, _SHOWN_AT_ONCE - fence)
    if len(shown) < len(lines):
        shown.append(f"┆ {len(lines) - len(shown)} older ones")
    elif entries and entries[-1].completed.parent is not None:
        shown.append("┆ older ones are cleaned up")
    return "\n".join(shown)


def _fitting(lines: list[str], characters: int) -> list[str]:
    """The first lines that fit together, with room for one more that says what is left out."""
    left = characters - _REST
    for count, line in enumerate(lines):
        left -= len(line) + 1
        if left < 0:
            return lines[:count]
    return lines


def _line(assets: JobAssets, view: TimelineView, entry: CheckpointEntry, names: tuple[str, ...]) -> str:
    left_behind = view.is_abandoned(entry.checkpoint_id)
    completed = entry.completed
    blocked = 0 if entry.committed is None else len(entry.committed.blocked)
    notes = [
        _batch(entry),
        counted(len(completed.files), "file") if completed.files else "",
        "resumes here" if entry.checkpoint_id == view.last_completed_id else "",
        f"{counted(blocked, 'file')} blocked" if blocked else "",
        f"savepoint {', '.join(names)}" if names else "",
        f"undone, on {completed.parent or 'none'}" if left_behind else "",
    ]
    mark = "│ ○" if left_behind else "●"
    return f"{mark} {assets.partition_key(entry.checkpoint_id)}  {', '.join(filter(None, notes))}".rstrip()


def _restorable(assets: JobAssets, view: TimelineView) -> str:
    names = _names(view)
    head = ["| checkpoint | batch | completed | kept by |", "|---|---|---|---|"]
    rows = []
    for entry in reversed(view.retained):
        partition = assets.partition_key(entry.checkpoint_id)
        kept = names.get(entry.checkpoint_id)
        cells = (
            partition_link(assets.checkpoints_key, partition),
            _batch(entry).replace("|", "\\|"),
            _time(entry.completed.recorded_at),
            f"savepoint {', '.join(kept)}" if kept else "retention",
        )
        rows.append(f"| {' | '.join(cells)} |")
    shown = _fitting(rows, _SHOWN_AT_ONCE - sum(len(line) + 1 for line in head))
    more = [f"\nand {len(rows) - len(shown)} older ones"] if len(shown) < len(rows) else []
    return "\n".join([*head, *shown, *more])


def _names(view: TimelineView) -> dict[int, tuple[str, ...]]:
    """The savepoints of each checkpoint, sorted."""
    found: dict[int, tuple[str, ...]] = {}
    for name, checkpoint_id in sorted(view.savepoints.items()):
        found[checkpoint_id] = (*found.get(checkpoint_id, ()), name)
    return found


def _batch(entry: CheckpointEntry) -> str:
    key = entry.completed.idempotency_key or ""
    # A run without partitions names its batch after itself, which says nothing to people.
    return "" if key.startswith("run:") else key


def _time(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
