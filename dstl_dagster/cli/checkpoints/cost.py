"""What a checkpoint cost, for people and for programs. Pure.

Owns how it reads. Does not own what is counted (`storage.accounting`) or the prices (`settings.prices`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dstl_dagster.checkpoint import Checkpoint
from dstl_dagster.cli.output import Table
from dstl_dagster.format import readable_bytes
from dstl_dagster.settings import StoragePrices
from dstl_dagster.storage import COMPOSE_COMMIT, CONFIRM, PERSIST, RECORD, TRIGGER, CheckpointCost, Cost

__all__ = ["cost_json", "cost_sections"]

_COLUMNS = ("A", "B", "free", "retries", "uploads", "composes", "up", "down", "seconds", "USD")
_STEPS = {
    TRIGGER: "1 trigger",
    PERSIST: "2, 3 persist",
    RECORD: "4 record",
    CONFIRM: "5 confirm",
    COMPOSE_COMMIT: "6 compose-commit",
}


def cost_sections(
    checkpoint: Checkpoint, later: CheckpointCost, prices: StoragePrices
) -> Iterator[Table | str]:
    """A row for each step, and the sum of the first four; of steps 5 and 6 `later`, or else their seconds."""
    cost = checkpoint.manifest.cost
    if cost is None:
        yield "cost: not counted by the release that wrote this checkpoint"
        return
    listed = f"list prices of {prices.as_of}" if prices.as_of else "prices of the job"
    at = listed if prices.class_a_per_thousand else "no price"
    table = Table("step", *_COLUMNS, title=f"Requests by class, at {at}", right=_COLUMNS)
    for name, step in cost.steps.items():
        table.add_row(_STEPS.get(name, name), *_cells(step, prices))
    table.add_row("1 to 4", *_cells(cost.total, prices))
    entry = checkpoint.entry
    for name, record in ((CONFIRM, entry.completed), (COMPOSE_COMMIT, entry.committed)):
        if name in later.steps:
            table.add_row(_STEPS[name], *_cells(later.steps[name], prices))
        elif record is not None:
            table.add_row(_STEPS[name], *[""] * (len(_COLUMNS) - 2), f"{record.seconds:.3f}", "")
    yield table


def _cells(step: Cost, prices: StoragePrices) -> Iterator[str]:
    for count in (step.class_a, step.class_b, step.free, step.retries, step.uploads, step.composes):
        yield f"{count:,}"
    yield readable_bytes(step.bytes_up)
    yield readable_bytes(step.bytes_down)
    yield f"{step.seconds:.3f}"
    yield f"{step.usd(prices):.6f}"


def cost_json(checkpoint: Checkpoint, later: CheckpointCost, prices: StoragePrices) -> dict[str, Any] | None:
    """The same for programs; `None` if nobody counted. The sums are of `steps`, which are 1 to 4."""
    cost = checkpoint.manifest.cost
    if cost is None:
        return None
    total = cost.total
    return {
        "steps": _steps_json(cost, prices),
        "later_steps": _steps_json(later, prices),
        "requests": total.requests,
        "bytes_up": total.bytes_up,
        "bytes_down": total.bytes_down,
        "usd": total.usd(prices),
        "prices": {
            "class_a_per_thousand": prices.class_a_per_thousand,
            "class_b_per_thousand": prices.class_b_per_thousand,
            "egress_per_gib": prices.egress_per_gib,
            "as_of": None if prices.as_of is None else prices.as_of.isoformat(),
            "source": prices.source,
        },
    }


def _steps_json(cost: CheckpointCost, prices: StoragePrices) -> list[dict[str, Any]]:
    return [{"step": name, **_json(step), "usd": step.usd(prices)} for name, step in cost.steps.items()]


def _json(step: Cost) -> dict[str, Any]:
    """Every count, also those of zero."""
    return {**vars(step)}
