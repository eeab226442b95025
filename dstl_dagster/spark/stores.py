"""Stores that Spark's driver and its tasks open, and the count of their requests on its way to the batch.

Owns the check that both see one store, and both ways back of the count. Does not own stores or what is
counted (`storage`). Imports pyspark for types alone: tasks and the planner of a read need it.

A task that writes returns its count with its outcome: counted once, however often Spark ran it. A task that
reads returns rows and nothing else, so its count goes to a `ReadCounter`: once for each time that the task
ended well. Requests of a task that died are in no count. A batch takes what came in while it was open, so two
that read at once in one driver count each other's reads too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.settings import GSFileSystemOptions, JobOptions
from dstl_dagster.storage import (
    NO_TRAFFIC,
    ObjectStore,
    Traffic,
    TrafficMeter,
    metered,
    open_store,
    shared_reads,
)

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.sql import SparkSession

__all__ = [
    "TRAFFIC",
    "ReadCounter",
    "counted_store",
    "open_shared_store",
    "reads_of",
    "require_shared",
    "task_store",
    "traffic_of",
]

TRAFFIC: Final = "traffic"
"""Where an outcome holds what its task requested."""


def require_shared(store_uri: str) -> None:
    """Raises: InvalidInputError (kind `store_not_shared`) if only this process sees the store."""
    if store_uri.startswith("memory:"):
        raise InvalidInputError(
            f"Spark's tasks are other processes and cannot see {store_uri}: use file:///folder or gs://bucket",
            kind=ErrorKind.STORE_NOT_SHARED,
        )


def open_shared_store(store_uri: str, options: JobOptions) -> ObjectStore:
    """The store, if tasks can open it too. Raises: InvalidInputError (kind `store_not_shared`)."""
    require_shared(store_uri)
    return open_store(store_uri, options.files)


class ReadCounter(Protocol):
    """Pickled with a task, it takes the count to the driver."""

    def add(self, traffic: Traffic) -> None:
        """In a task: once, when it has read."""
        ...


@contextmanager
def counted_store(uri: str, meter: TrafficMeter, options: GSFileSystemOptions) -> Iterator[ObjectStore]:
    """The store of a task, open in the block; what is requested of it counts in `meter`."""
    with closing(open_store(uri, options)) as store:
        yield metered(store, meter)


@contextmanager
def task_store(uri: str, counter: ReadCounter | None, options: GSFileSystemOptions) -> Iterator[ObjectStore]:
    """The store as a task reads it: with what earlier tasks of this Python worker have fetched of it.

    What is requested beside that goes to `counter`.
    """
    meter = TrafficMeter()
    with counted_store(uri, meter, options) as store:
        yield shared_reads(store, options.storage_root_url or "")
    if counter is not None:
        counter.add(meter.traffic)


def traffic_of(outcomes: Iterable[Mapping[str, Any]]) -> Traffic:
    """What the tasks with these outcomes requested."""
    return sum((Traffic.from_json(each.get(TRAFFIC, {})) for each in outcomes), NO_TRAFFIC)


class _Sum:
    """PySpark's `AccumulatorParam`."""

    def zero(self, value: Traffic) -> Traffic:  # noqa: ARG002 - Spark's signature
        return NO_TRAFFIC

    def addInPlace(self, value1: Traffic, value2: Traffic) -> Traffic:  # noqa: N802 - Spark's name
        return value1 + value2


@dataclass(frozen=True, eq=False)
class _SparkReads:
    """A `ReadCounter` by an accumulator."""

    total: Accumulator[Traffic]

    def add(self, traffic: Traffic) -> None:
        self.total.add(traffic)

    @property
    def traffic(self) -> Traffic:
        """So far. On the driver alone."""
        return self.total.value


_reads: WeakKeyDictionary[SparkContext, _SparkReads] = WeakKeyDictionary()
"""Not one for each batch: PySpark keeps every accumulator for ever."""


def reads_of(spark: SparkSession) -> _SparkReads | None:
    """The sum of the session's context, which begins with the first call.

    `None` in a client of Spark Connect, which does not see the Spark of its tasks: they are not counted.
    """
    context: SparkContext | None = getattr(spark, "sparkContext", None)
    if context is None:
        return None
    if context not in _reads:
        _reads[context] = _SparkReads(context.accumulator(NO_TRAFFIC, _Sum()))  # type: ignore[arg-type] # its methods
    return _reads[context]
