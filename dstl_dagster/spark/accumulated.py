"""The sum of what tasks that read state have requested, by one accumulator for each Spark context.

Owns the accumulator. Does not own what is counted (`spending`), or which batch it belongs to: a batch takes
what came in while it was open, so two that read at once in one driver count each other's reads too.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from pyspark import Accumulator, SparkContext
from pyspark.accumulators import AccumulatorParam

from dstl_dagster.storage import NO_TRAFFIC, Traffic

__all__ = ["SparkReads", "reads_in"]


class _Sum(AccumulatorParam[Traffic]):
    def zero(self, value: Traffic) -> Traffic:  # noqa: ARG002 - Spark's signature
        return NO_TRAFFIC

    def addInPlace(self, value1: Traffic, value2: Traffic) -> Traffic:  # noqa: N802 - Spark's name
        return value1 + value2


@dataclass(frozen=True, eq=False)
class SparkReads:
    """A `ReadCounter` by an accumulator."""

    total: Accumulator[Traffic]

    def add(self, traffic: Traffic) -> None:
        self.total.add(traffic)

    @property
    def traffic(self) -> Traffic:
        """So far. On the driver alone."""
        return self.total.value


_reads: WeakKeyDictionary[SparkContext, SparkReads] = WeakKeyDictionary()
"""Not one for each batch: PySpark keeps every accumulator for ever."""


def reads_in(context: SparkContext) -> SparkReads:
    """The sum of the context, which begins with the first call."""
    if context not in _reads:
        _reads[context] = SparkReads(context.accumulator(NO_TRAFFIC, _Sum()))
    return _reads[context]
