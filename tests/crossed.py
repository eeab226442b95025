"""How many modules of the package one appended row crosses, and how many the plan of a read.

A module counts if a function of it runs. Run from the checkout: `python -m tests.crossed`.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

import dstl_dagster
from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.checkpoint import Batch, CheckpointCoordinator
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.jobs import write_frame
from dstl_dagster.spark.data_source import DstlDataSource
from dstl_dagster.storage import MemoryObjectStore, ObjectStore, open_store

PACKAGE = Path(dstl_dagster.__file__).parent


def crossed(work: Callable[[], object]) -> Counter[str]:
    """Calls by module, in all threads. What is imported and cached by a first time is not counted."""
    work()
    calls: Counter[str] = Counter()

    def note(frame: Any, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            calls[str(path.relative_to(PACKAGE))] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def append_a_row() -> None:
    """One change, made durable by a changelog of its own, whose threads begin with it."""
    with (
        FsStateChangelogStorage("job", MemoryObjectStore()) as storage,
        storage.create_writer("op", KeyGroupRange.of(0, 7)) as writer,
    ):
        writer.append(0, b"change")
        writer.persist(writer.initial_sequence_number(), 1).result()


def checkpoint_a_row(store: ObjectStore) -> None:
    """One row of keyed state in a checkpoint, in this process, without Spark."""
    batch = Batch.open(CheckpointCoordinator("job", store))
    batch.add(write_frame(pa.table({"id": [1], "total": [2]}), batch, operator="totals", keys=["id"]))
    batch.complete()


def plan_a_read(uri: str) -> None:
    """As Spark's planner does: the columns, then the ranges of tasks."""
    source = DstlDataSource({"store": uri, "job": "job", "operator": "totals"})
    source.reader(source.schema()).partitions()


def main() -> None:
    """Print the numbers."""
    with TemporaryDirectory() as folder:
        uri = Path(folder).as_uri()
        works: dict[str, Callable[[], object]] = {
            "a change is appended and persisted": append_a_row,
            "a row is written in a checkpoint": partial(checkpoint_a_row, open_store(uri)),
            "a read is planned": partial(plan_a_read, uri),
        }
        for what, work in works.items():
            calls = crossed(work)
            print(f"{what}: {len(calls)} modules, {calls.total()} calls")
            print("  " + ", ".join(sorted(calls)))


if __name__ == "__main__":
    main()
