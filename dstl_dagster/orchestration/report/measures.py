"""The numbers that Dagster plots: their units, how many of their digits mean something, and what a checkpoint
cost. Pure.
"""

from __future__ import annotations

from typing import Any, Final

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint
from dstl_dagster.format import readable_bytes
from dstl_dagster.keyed import StateRows
from dstl_dagster.settings import StoragePrices
from dstl_dagster.storage import CheckpointCost

__all__ = ["MICRO", "cost_measures", "cost_table", "is_counted", "measure", "mebibytes", "row_measures"]

MICRO: Final = 1_000_000
_MIB: Final = 1024**2


def measure(value: float) -> float:
    """Three significant digits: enough for a plot, down to milliseconds."""
    return float(f"{value:.3g}")


def mebibytes(count: int) -> float:
    """Bytes as MiB. One unit for small and large, because a plot has one axis."""
    return measure(count / _MIB)


def row_measures(rows: StateRows | None, exact: str = "") -> dict[str, Any]:
    """Of the whole state, in words and as a number to plot; nothing where it is not known.

    `exact`: the key of the number, where it is known exactly.
    """
    if rows is None or rows.most is None:
        return {}
    said = {"rows": rows.in_words(), "rows at most": rows.most}
    return {**said, exact: rows.exact} if exact and rows.exact is not None else said


def is_counted(cost: CheckpointCost) -> bool:
    """Whether all of steps 1 to 4 were: a driver that opened the attempt elsewhere counts its own alone."""
    return {"trigger", "record"} <= set(cost.steps)


def cost_measures(checkpoint: Checkpoint, prices: StoragePrices, store_uri: str) -> dict[str, Any]:
    """Of steps 1 to 4; nothing where they were not counted. A folder has no price."""
    cost = checkpoint.manifest.cost
    if cost is None or not is_counted(cost):
        return {}
    requests = {"requests": cost.total.requests}
    if not store_uri.startswith("gs://"):
        return requests
    # Dollars would be too small for the axis of a plot.
    return {**requests, "cost micro-USD": measure(cost.total.usd(prices) * MICRO)}


def cost_table(cost: CheckpointCost, prices: StoragePrices) -> dg.MetadataValue:
    """A row for each step that was counted."""
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "step": name,
                    "class A": step.class_a,
                    "class B": step.class_b,
                    "free": step.free,
                    "retries": step.retries,
                    "uploads": step.uploads,
                    "composes": step.composes,
                    "up": readable_bytes(step.bytes_up),
                    "down": readable_bytes(step.bytes_down),
                    "seconds": measure(step.seconds),
                    "USD": f"{step.usd(prices):.6f}",
                }
            )
            for name, step in cost.steps.items()
        ]
    )
