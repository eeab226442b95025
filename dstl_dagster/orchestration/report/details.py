"""The parts of a checkpoint's page behind a click: sources, operators, cost, manifest; as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint
from dstl_dagster.format import breakable, readable_bytes
from dstl_dagster.orchestration.report.links import NEW_LINE, object_link
from dstl_dagster.settings import StoragePrices

_FOLDED = 1000
"""Characters from which on Dagster's page shows Markdown in a window of its own."""


def checkpoint_details(checkpoint: Checkpoint, store_uri: str, prices: StoragePrices) -> dg.MetadataValue:
    """All of it."""
    manifest = checkpoint.entry.completed.manifest
    sources = _table(
        ("source", "stands at", "measured by", "written last by", "operators"),
        (
            (name, each.stands, str(each.measure), each.by, ", ".join(each.operators))
            for name, each in sorted(checkpoint.manifest.sources.items())
        ),
    )
    place = f"manifest {object_link(manifest, '/'.join([store_uri.rstrip('/'), manifest]))}"
    return _folded(sources, _operators(checkpoint), _cost(checkpoint, prices), place)


def operator_details(checkpoint: Checkpoint) -> dg.MetadataValue:
    """The operators alone: for a page that shows the state."""
    return _folded(_operators(checkpoint))


def state_bytes(checkpoint: Checkpoint) -> int:
    """Of the whole state, as against what this checkpoint added."""
    return sum(entry.state_bytes for entry in checkpoint.manifest.operators.values())


def _folded(*parts: str) -> dg.MetadataValue:
    return dg.MetadataValue.md("\n\n".join(filter(None, parts)).ljust(_FOLDED))


def _operators(checkpoint: Checkpoint) -> str:
    return _table(
        ("operator", "keys", "rows", "upserts", "deletes", "changes", "merged", "state", "runs"),
        (
            (
                name,
                ", ".join(entry.report.key_columns),
                "" if entry.rows is None else entry.rows.in_words(),
                str(entry.report.upserts),
                str(entry.report.deletes),
                readable_bytes(entry.report.stored_bytes),
                readable_bytes(entry.merged_bytes),
                readable_bytes(entry.state_bytes),
                str(len(entry.runs)),
            )
            for name, entry in sorted(checkpoint.manifest.operators.items())
        ),
    )


def _cost(checkpoint: Checkpoint, prices: StoragePrices) -> str:
    """A line for each step that was counted."""
    cost = checkpoint.manifest.cost
    if cost is None:
        return ""
    usd = cost.total.usd(prices)
    lines = [f"step {name}: {step.in_words()}" for name, step in cost.steps.items()]
    return NEW_LINE.join([*lines, *([f"in all {usd:.6f} USD"] if usd else [])])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Empty without rows."""
    lines = [" | ".join(breakable(cell).replace("|", "\\|") for cell in row) for row in rows]
    if not lines:
        return ""
    return "\n".join(f"| {line} |" for line in (" | ".join(head), "|".join("---" for _ in head), *lines))
