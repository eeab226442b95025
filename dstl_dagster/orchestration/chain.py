"""The chain of a job's checkpoints as a picture, and as a table of those that can be restored. Pure.

Owns the drawing. Dagster's page cuts images out of Markdown unless a web server has them, and draws no
diagrams: what it does show is a block of text in columns, and a table with links.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.timeline import CheckpointEntry, TimelineView

__all__ = ["chain_metadata", "partition_page", "picture"]

_DRAWN = 24
_LISTED = 20


def chain_metadata(
    assets: JobAssets, view: TimelineView, now: datetime, sizes: Mapping[int, str]
) -> dict[str, dg.MetadataValue]:
    """`chain` and `restorable` of a checkpoint's event, as of `view`.

    `sizes`: of the state at a checkpoint, in words, where that is known.
    """
    return {
        "chain": dg.MetadataValue.md(f"```\n{picture(assets, view)}\n```"),
        "restorable": dg.MetadataValue.md(_restorable(assets, view, now, sizes)),
    }


def partition_page(key: dg.AssetKey, partition: str) -> str:
    """The page of one partition of an asset, within Dagster's web server."""
    return f"/assets/{'/'.join(key.path)}?view=partitions&partition={partition}"


def picture(assets: JobAssets, view: TimelineView) -> str:
    """The newest checkpoints, one a line, newest first; those that a restore left behind stand aside."""
    shown = sorted(view.kept, key=lambda entry: entry.checkpoint_id, reverse=True)
    names = _names(view)
    lines: list[str] = []
    aside = False
    for entry in shown[:_DRAWN]:
        left_behind = view.is_abandoned(entry.checkpoint_id)
        if aside and not left_behind:
            lines.append("├─╯")
        aside = left_behind
        lines.append(_line(assets, view, entry, names.get(entry.checkpoint_id, ())))
    if len(shown) > _DRAWN:
        lines.append(f"┆ {len(shown) - _DRAWN} older ones")
    elif shown and shown[-1].completed.parent is not None:
        lines.append("┆ older ones are cleaned up")
    return "\n".join(lines)


def _line(assets: JobAssets, view: TimelineView, entry: CheckpointEntry, names: tuple[str, ...]) -> str:
    left_behind = view.is_abandoned(entry.checkpoint_id)
    completed = entry.completed
    blocked = 0 if entry.committed is None else len(entry.committed.blocked)
    notes = [
        _batch(entry),
        f"{len(completed.files)} files" if completed.files else "",
        "the job resumes from here" if entry.checkpoint_id == view.last_completed_id else "",
        "" if left_behind or entry.committed is not None or not completed.files else "files due in step 6",
        f"{blocked} files blocked" if blocked else "",
        f"savepoint {', '.join(names)}" if names else "",
        f"left behind by a restore, on {completed.parent or 'none'}" if left_behind else "",
    ]
    mark = "│ ○" if left_behind else "●"
    return f"{mark} {assets.partition_key(entry.checkpoint_id)}  {', '.join(filter(None, notes))}".rstrip()


def _restorable(assets: JobAssets, view: TimelineView, now: datetime, sizes: Mapping[int, str]) -> str:
    names = _names(view)
    rows = ["| checkpoint | batch | age | state | kept by |", "|---|---|---|---|---|"]
    retained = list(reversed(view.retained))
    for entry in retained[:_LISTED]:
        partition = assets.partition_key(entry.checkpoint_id)
        kept = names.get(entry.checkpoint_id)
        cells: tuple[Any, ...] = (
            f"[{partition}]({partition_page(assets.checkpoints_key, partition)})",
            _batch(entry).replace("|", "\\|"),
            _age(now - entry.completed.recorded_at),
            sizes.get(entry.checkpoint_id, ""),
            f"savepoint {', '.join(kept)}" if kept else "retention",
        )
        rows.append(f"| {' | '.join(cells)} |")
    if len(retained) > _LISTED:
        rows.append(f"\nand {len(retained) - _LISTED} older ones")
    return "\n".join(rows)


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


def _age(age: timedelta) -> str:
    minutes = max(0, round(age.total_seconds() / 60))
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} days"
