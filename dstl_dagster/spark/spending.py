"""What tasks request of the store: counted in the task, and brought to the batch on the driver.

Owns both ways back. A task that writes returns its count with its outcome: counted once, however often Spark
ran it. A task that reads returns rows and nothing else, so its count goes to a `ReadCounter`: once for each
time that the task ended well. Requests of a task that died are in no count. Imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final, Protocol

from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import (
    NO_TRAFFIC,
    ObjectStore,
    Traffic,
    TrafficMeter,
    metered,
    open_store,
    shared_reads,
)

__all__ = ["TRAFFIC", "ReadCounter", "counted_store", "task_store", "traffic_of"]

TRAFFIC: Final = "traffic"
"""Where an outcome holds what its task requested."""


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
