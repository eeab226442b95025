"""The numbers that Dagster plots: their units, and how many of their digits mean something. Pure."""

from __future__ import annotations

from typing import Any, Final

from dstl_dagster.checkpoint import Checkpoint
from dstl_dagster.storage import CheckpointCost

_MIB: Final = 1024**2


def measure(value: float) -> float:
    """Three significant digits: enough for a plot, down to milliseconds."""
    return float(f"{value:.3g}")


def mebibytes(count: int) -> float:
    """Bytes as MiB. One unit for small and large, because a plot has one axis."""
    return measure(count / _MIB)


def counted_cost(checkpoint: Checkpoint) -> CheckpointCost | None:
    """Of steps 1 to 4; `None` where a driver that opened the attempt elsewhere counted its own alone."""
    cost = checkpoint.manifest.cost
    return cost if cost is not None and {"trigger", "record"} <= set(cost.steps) else None


def cost_measures(checkpoint: Checkpoint) -> dict[str, Any]:
    """Requests; nothing where they were not counted."""
    cost = counted_cost(checkpoint)
    return {} if cost is None else {"requests": cost.total.requests}
