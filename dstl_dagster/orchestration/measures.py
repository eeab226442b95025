"""The numbers that Dagster plots: their units, and how many of their digits mean something. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["MICRO", "measure", "mebibytes"]

MICRO: Final = 1_000_000
_MIB: Final = 1024**2


def measure(value: float) -> float:
    """Three significant digits: enough for a plot, down to milliseconds."""
    return float(f"{value:.3g}")


def mebibytes(count: int) -> float:
    """Bytes as MiB. One unit for small and large, because a plot has one axis."""
    return measure(count / _MIB)
