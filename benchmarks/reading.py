"""What reading keyed state costs on a bucket: requests, bytes and seconds.

Owns the workloads and the table. Sets no targets: the counts that must hold are asserted in tests. Run:
`python benchmarks/reading.py [--latency 0.05]`. The bucket is on the strict server, in a process of its own,
which answers each request that much later. Requests and bytes are exact; seconds include this machine's work.

"at least" is computed: a request for each file of up to 8 MiB, two for each of the larger ones, and one for
each manifest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.format import ChangelogStateHandle
from dstl_dagster.keyed import StateAt, diff_checkpoints, key_history
from dstl_dagster.keyed.keyed_writer import write_rows
from dstl_dagster.settings import CheckpointOptions, FsStateChangelogOptions
from dstl_dagster.state import StateSchema, encode_changes, key_group_of, ranges_of_tasks
from dstl_dagster.storage import ObjectStore, WrapperStore, open_store
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault

SCHEMA = StateSchema.of(pa.schema({"id": pa.int64(), "value": pa.string()}), ["id"], 128)
BUCKET = "gs://bench"


def serve(connection: Connection) -> None:
    """The server: told a latency, it counts from zero; told nothing, it says what it has counted."""
    with GCSServer() as server:
        server.create_bucket("bench")
        connection.send(server.url)
        while (latency := connection.recv()) is not False:
            if latency is None:
                connection.send(sum(server.counts.values()))
                continue
            server.faults.clear()
            if latency:
                server.faults.add(ServerFault(FaultKind.LATENCY, seconds=latency, times=None))
            server.reset_counts()


class Counted(WrapperStore):
    """Counts the bytes that are read."""

    read_bytes = 0

    def get(self, name: str, **how: Any) -> bytes:
        found = super().get(name, **how)
        Counted.read_bytes += len(found)
        return found

    def get_range(self, name: str, start: int, length: int, **how: Any) -> bytes | memoryview:
        found = super().get_range(name, start, length, **how)
        Counted.read_bytes += len(found)
        return found


def rows_of(start: int, count: int, value_bytes: int) -> pa.Table:
    random = np.random.default_rng(start)
    values = [random.bytes(value_bytes // 2).hex() for _ in range(count)]
    return pa.table({"id": np.arange(start, start + count), "value": values})


def shared_files(store: ObjectStore, files: int, sets: int, rows: int, value_bytes: int) -> StateAt:
    """So many uploads, each of one change set of each of so many writers."""
    ranges = ranges_of_tasks(sets, SCHEMA.max_parallelism)
    handles: list[ChangelogStateHandle | None] = []
    for number in range(files):
        table = rows_of(number * 1_000_000, rows * sets, value_bytes)
        groups = key_group_of(table, SCHEMA)
        order = np.argsort(groups, kind="stable")
        table, groups = table.take(pa.array(order)).combine_chunks(), groups[order]
        bounds = [np.searchsorted(groups, [each.start_key_group, each.end_key_group + 1]) for each in ranges]
        encoded = [
            encode_changes(SCHEMA, table.slice(a, b - a), groups[a:b])
            for a, b in (map(int, each) for each in bounds)
        ]
        sizes = [sum(map(len, each.changes.to_pylist())) + len(SCHEMA.to_bytes()) for each in encoded]
        options = FsStateChangelogOptions(
            preemptive_persist_threshold_in_bytes=1 << 30,
            batch_persist_size_threshold_bytes=sum(sizes) - min(sizes) // 2,
            batch_persist_delay=timedelta(seconds=5),
        )
        with FsStateChangelogStorage("bench", store, options) as storage:
            persisted = []
            for key_groups, each in zip(ranges, encoded, strict=True):
                writer = storage.create_writer("op", key_groups)
                writer.append_meta(SCHEMA.to_bytes())
                writer.append_batch(each.key_groups, each.changes)
                persisted.append(writer.persist(writer.initial_sequence_number(), number + 1))
            handles += [each.result().job_manager_owned_snapshot for each in persisted]
    known = tuple(each for each in handles if each is not None)
    assert len({stream.name for each in known for stream in each.streams}) == files
    return StateAt(BUCKET, "bench", files, "op", SCHEMA, known)


def past(store: ObjectStore, checkpoints: int) -> CheckpointCoordinator:
    """A job that rewrote one row in each checkpoint, and added one."""
    coordinator = CheckpointCoordinator(
        "past", store, CheckpointOptions(num_retained=checkpoints, materialize=False), owner="bench"
    )
    for number in range(checkpoints):
        attempt = coordinator.trigger()
        rows = pa.table({"id": [0, number + 1], "value": [f"{number}", "new"]})
        coordinator.record(attempt, [write_rows(store, attempt, "op", SCHEMA, rows)])
        coordinator.confirm(attempt)
        coordinator.compose_commit()
    return coordinator


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument(
        "--latency", type=float, default=0.05, help="seconds that each request takes longer"
    )
    latency = arguments.parse_args().latency
    here, there = multiprocessing.get_context("spawn").Pipe()
    multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True).start()
    os.environ["STORAGE_EMULATOR_HOST"] = here.recv()

    def measured(name: str, at_least: int, work: Callable[[], object]) -> None:
        here.send(latency)
        Counted.read_bytes = 0
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        here.send(None)
        megabytes = Counted.read_bytes / 1e6
        print(f"| {name} | {here.recv():,} | {at_least:,} | {megabytes:.1f} | {seconds:.2f} |", flush=True)
        here.send(0.0)

    with closing(Counted(open_store(f"{BUCKET}/{uuid.uuid4()}"))) as store:
        many = shared_files(store, 100, 5, 80, 180)
        few = shared_files(store, 20, 25, 10, 160)
        large = shared_files(store, 4, 18, 660, 1000)
        job = past(store, 100)
        older, newer = job.get(99).manifest, job.get(100).manifest
        print("| | requests | at least | MB | seconds |\n|---|---|---|---|---|")
        measured("500 change sets in 100 files", 100, lambda: list(many.opened(store).tables()))
        measured("500 change sets in 20 files", 20, lambda: list(few.opened(store).tables()))
        with_store = large.opened(store)
        half = large.ranges(2)[0]
        measured("4 files over 8 MiB, one task of two", 8, lambda: list(with_store.tables(half)))
        measured("4 files over 8 MiB, all, in two passes", 8, lambda: list(with_store.tables()))
        measured("diff 99 100", 200, lambda: list(diff_checkpoints(store, older, newer, "op")))
        measured("history of a key, 100 checkpoints", 200, lambda: key_history(store, newer, "op", {"id": 0}))
        measured("verify, 100 checkpoints", 200, lambda: job.verify())
    here.send(False)


if __name__ == "__main__":
    main()
