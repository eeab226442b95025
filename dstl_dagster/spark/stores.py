"""Stores that Spark's driver and its tasks open, and the cost of their requests on its way to the batch.

Owns the check that both see one store, and both ways back of the cost. Does not own stores or what is
counted (`storage`). Imports pyspark for types alone: tasks and the planner of a read need it.

A task that writes returns its cost with its outcome: counted once, however often Spark ran it. A task that
reads returns rows and nothing else, so its cost goes to a `ReadCost`: once for each time that the task
ended well. Requests of a task that died are in no count. A batch takes what came in while it was open, so two
that read at once in one driver count each other's reads too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings import GSFileSystemOptions, JobOptions
from dstl_dagster.storage import (
    NO_COST,
    Cost,
    CostMeter,
    ObjectStore,
    metered,
    open_store,
)

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.sql import SparkSession

COST: Final = "cost"
"""Where an outcome holds what its task cost."""


def require_shared(store_uri: str) -> None:
    """Raises: InvalidInputError if only this process sees the store."""
    if store_uri.startswith("memory:"):
        raise InvalidInputError(
            f"Spark's tasks are other processes and cannot see {store_uri}: use file:///folder or gs://bucket"
        )


def open_shared_store(store_uri: str, options: JobOptions) -> ObjectStore:
    """The store, if tasks can open it too. Raises: InvalidInputError."""
    require_shared(store_uri)
    return open_store(store_uri, options.files)


@contextmanager
def counted_store(uri: str, meter: CostMeter, options: GSFileSystemOptions) -> Iterator[ObjectStore]:
    """The store of a task, open in the block; requests to it count in `meter`."""
    with closing(open_store(uri, options)) as store:
        yield metered(store, meter)


@contextmanager
def task_store(uri: str, reads: ReadCost | None, options: GSFileSystemOptions) -> Iterator[ObjectStore]:
    """The store as a task reads it: with what earlier tasks of this Python worker have fetched of it.

    Requests beside that count in `reads`.
    """
    meter = CostMeter()
    with counted_store(uri, meter, options) as store:
        yield store
    if reads is not None:
        reads.add(meter.cost)


def cost_of(outcomes: Iterable[Mapping[str, Any]], part: str = COST) -> Cost:
    """What the tasks with these outcomes cost. `part`: where each holds it, if it does."""
    return Cost.sum_of(Cost.from_json(each.get(part, {})) for each in outcomes)


class _Sum:
    """PySpark's `AccumulatorParam`."""

    def zero(self, value: Cost) -> Cost:  # noqa: ARG002 - Spark's signature
        return NO_COST

    def addInPlace(self, value1: Cost, value2: Cost) -> Cost:  # noqa: N802 - Spark's name
        return value1 + value2


@dataclass(frozen=True, eq=False)
class ReadCost:
    """The sum over the tasks of one Spark context that read; each has a copy that brings its cost there."""

    total: Accumulator[Cost]

    def add(self, cost: Cost) -> None:
        """In a task: once, when it has read."""
        self.total.add(cost)

    @property
    def cost(self) -> Cost:
        """So far. On the driver alone."""
        return self.total.value


_reads: WeakKeyDictionary[SparkContext, ReadCost] = WeakKeyDictionary()
"""Not one for each batch: PySpark keeps every accumulator for ever."""


def read_cost_of(spark: SparkSession) -> ReadCost | None:
    """The sum of the session's context, which begins with the first call.

    `None` in a client of Spark Connect, which does not see the Spark of its tasks: they are not counted.
    """
    context: SparkContext | None = getattr(spark, "sparkContext", None)
    if context is None:
        return None
    if context not in _reads:
        _reads[context] = ReadCost(context.accumulator(NO_COST, _Sum()))  # type: ignore[arg-type] # its methods
    return _reads[context]
