"""Checkpoints as a table for people and as JSON for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dstl_dagster.checkpoint import Checkpoint
from dstl_dagster.cli.output import Table, local_time
from dstl_dagster.format import readable_bytes

__all__ = ["checkpoint_json", "checkpoint_table", "savepoints_in_words"]


def checkpoint_table(checkpoints: Iterable[Checkpoint]) -> Table:
    """One row per checkpoint: when it was made, what keeps it, and the seconds of the numbered steps."""
    numbers = ("id", "parent", "changes", "changelog", "files", "size", "3", "5", "6")
    table = Table(
        *("id", "completed", "savepoints", *numbers[1:], "state", "position"),
        title="Checkpoints. Seconds of step 3 (persist), 5 (confirm), 6 (compose-commit)",
        right=numbers,
        cut=("savepoints", "position"),
    )
    for checkpoint in checkpoints:
        manifest = checkpoint.manifest
        commit = checkpoint.entry.committed
        table.add_row(
            str(checkpoint.checkpoint_id),
            local_time(checkpoint.entry.completed.recorded_at),
            ", ".join(savepoints_in_words(checkpoint)),
            "-" if checkpoint.parent is None else str(checkpoint.parent),
            f"{manifest.changes:,}",
            readable_bytes(manifest.state_bytes),
            str(len(manifest.files)),
            readable_bytes(manifest.file_bytes),
            f"{manifest.persist_seconds:.1f}",
            f"{checkpoint.entry.completed.seconds:.3f}",
            "-" if commit is None else f"{commit.seconds:.3f}",
            _state(checkpoint),
            ", ".join(str(position) for _, position in sorted(checkpoint.positions.items())),
        )
    return table


def checkpoint_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """The same facts for programs; sizes in bytes, times in seconds."""
    manifest = checkpoint.manifest
    commit, rows = checkpoint.entry.committed, manifest.rows
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        "completed_at": checkpoint.entry.completed.recorded_at.isoformat(),
        "savepoints": list(checkpoint.savepoints),
        "savepoint_ends": {name: end.isoformat() for name, end in checkpoint.savepoint_ends.items()},
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


def savepoints_in_words(checkpoint: Checkpoint) -> list[str]:
    """The names that keep it, each with the day of its end if it has one."""
    ends = {name: end.astimezone() for name, end in checkpoint.savepoint_ends.items()}
    return [f"{name} (to {ends[name]:%Y-%m-%d})" if name in ends else name for name in checkpoint.savepoints]


def _state(checkpoint: Checkpoint) -> str:
    if not checkpoint.committed:
        return "completed"
    return f"{len(checkpoint.blocked)} blocked" if checkpoint.blocked else "committed"
