"""Checkpoints as a table for people and as JSON for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from dstl_dagster.checkpoint import Checkpoint
from dstl_dagster.format import readable_bytes

__all__ = ["TABLE_WIDTH", "checkpoint_json", "checkpoint_table"]

TABLE_WIDTH = 100


def checkpoint_table(checkpoints: Iterable[Checkpoint]) -> Table:
    """One row per checkpoint; a numbered column is the seconds of that step. `TABLE_WIDTH` wide."""
    table = Table(
        title="Checkpoints. Seconds of step 3 (persist), 5 (confirm), 6 (compose-commit)",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for name in ("id", "parent", "changes", "changelog", "files", "size", "3", "5", "6"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("position")  # it alone gives way to the width, so no other column is cut
    for checkpoint in checkpoints:
        manifest = checkpoint.manifest
        commit = checkpoint.entry.committed
        table.add_row(
            str(checkpoint.checkpoint_id),
            "-" if checkpoint.parent is None else str(checkpoint.parent),
            f"{manifest.changes:,}",
            readable_bytes(manifest.state_bytes),
            str(len(manifest.files)),
            readable_bytes(manifest.file_bytes),
            f"{manifest.persist_seconds:.1f}",
            f"{checkpoint.entry.completed.seconds:.3f}",
            "-" if commit is None else f"{commit.seconds:.3f}",
            _state(checkpoint),
            _position(checkpoint),
        )
    return table


def checkpoint_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """The same facts for programs; sizes in bytes, times in seconds."""
    manifest = checkpoint.manifest
    commit, rows = checkpoint.entry.committed, manifest.rows
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        "parent": checkpoint.parent,
        "attempt": str(checkpoint.attempt),
        "positions": dict(checkpoint.positions),
        "sources": {name: each.to_json() for name, each in sorted(manifest.sources.items())},
        "idempotency_key": checkpoint.idempotency_key,
        "changes": manifest.changes,
        "state_bytes": manifest.state_bytes,
        "state_rows": None if rows is None else {"least": rows.least, "most": rows.most},
        "files": [file.object_name for file in manifest.files],
        "file_bytes": manifest.file_bytes,
        "persist_seconds": manifest.persist_seconds,
        "confirm_seconds": checkpoint.entry.completed.seconds,
        "compose_commit_seconds": None if commit is None else commit.seconds,
        "state": _state(checkpoint),
    }


def _position(checkpoint: Checkpoint) -> Text:
    """One line, cut with an ellipsis: a stream's positions may be long."""
    positions = ", ".join(str(position) for _, position in sorted(checkpoint.positions.items()))
    return Text(positions, no_wrap=True, overflow="ellipsis")


def _state(checkpoint: Checkpoint) -> str:
    if not checkpoint.committed:
        return "completed"
    return f"{len(checkpoint.blocked)} blocked" if checkpoint.blocked else "committed"
