"""What a checkpoint costs as state and history grow, compared with the alternatives in the same run.

    python benchmarks/checkpoint.py [--quick] [--json FILE] [--only PART]

growth    bytes, requests and seconds of a checkpoint of 10,000 changes on states of 10^5 to 10^7 rows
snapshot  the slowest of 100 such checkpoints on 10^6 rows, folds included, against writing all rows each time
history   requests, and names listed, to find the tail and to decide, after 100 and 100,000 checkpoints
restore   reading 10^7 rows back, against Parquet with the same rows

On a local folder without fsync; ratios are taken within one run. A missed target is printed, and the exit
status is 1.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from conditions import conditions
from folders import fresh_folder
from machine import file_creation_seconds

from dstl_dagster.checkpoint import Attempt, Batch, CheckpointCoordinator, OperatorReport, materialize
from dstl_dagster.format.key_group_ranges import ranges_of_tasks
from dstl_dagster.keyed import KeyedState, write_rows
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import LocalObjectStore, MemoryObjectStore, ObjectStore, WrapperStore
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.testing.virtual_clock import VirtualClock
from dstl_dagster.timeline import BatchKey, Committed, Completed, Opened, Subsumed, TimelineView

JOB, OPERATOR = "bench", "totals"
SCHEMA = StateSchema.of(
    pa.schema({"key": pa.int64(), "total": pa.int64(), "events": pa.int64(), "name": pa.string()}),
    ["key"],
    128,
)
CHANGES = 10_000
TASKS = 2
Numbers = dict[str, Any]


def rows(keys: np.ndarray, round_number: int) -> pa.Table:
    """Rows of these keys: three numbers and a short string, with different values in each round."""
    names = pa.array(np.char.add("customer-", np.char.zfill(keys.astype(str), 8)))
    return pa.table(
        {"key": keys, "total": keys * 31 + round_number, "events": keys % 97 + round_number, "name": names},
        SCHEMA.columns,
    )


def whole_state(row_count: int) -> pa.Table:
    return rows(np.random.default_rng(1).permutation(row_count).astype(np.int64), 0)


def changed_keys(round_number: int) -> np.ndarray:
    """The same keys whatever the size of the state; all of them exist in the smallest."""
    return np.random.default_rng(round_number).permutation(100_000)[:CHANGES].astype(np.int64)


def spread_keys(row_count: int, round_number: int) -> np.ndarray:
    """Keys of a state of so many rows, each as likely as another."""
    return np.random.default_rng(round_number).choice(row_count, CHANGES, replace=False).astype(np.int64)


def coordinator_on(store: ObjectStore, **options: Any) -> CheckpointCoordinator:
    chosen = CheckpointOptions(num_retained=3, **options)
    return CheckpointCoordinator(JOB, store, chosen, owner="bench")


def complete(coordinator: CheckpointCoordinator, attempt: Attempt, *reports: OperatorReport) -> None:
    coordinator.record(attempt, reports, [], {"source": attempt.checkpoint_id})
    coordinator.confirm(attempt)
    coordinator.compose_commit()


def begin(coordinator: CheckpointCoordinator, row_count: int) -> None:
    """The first checkpoint: the whole state, a million rows at a time."""
    attempt = coordinator.trigger()
    table = whole_state(row_count)
    report = write_rows(table, attempt, coordinator.store, operator=OPERATOR, schema=SCHEMA, partitions=TASKS)
    complete(coordinator, attempt, report)


def checkpoint(coordinator: CheckpointCoordinator, table: pa.Table) -> bool:
    """One checkpoint of changed rows, by a batch. Returns whether older ones were merged."""
    batch = Batch.open(coordinator)
    batch.add(
        write_rows(
            table, batch.attempt, coordinator.store, operator=OPERATOR, schema=SCHEMA, partitions=TASKS
        )
    )
    batch.move_position("source", batch.attempt.checkpoint_id)
    batch.merge_due_runs()
    entries = batch.complete().manifest.operators.values()
    return any(entry.merged_bytes for entry in entries)


# -- growth


def measure_growth(row_counts: list[int], rounds: int) -> list[Numbers]:
    """The same changes on states of several sizes, in turns."""
    with fresh_folder() as root:
        jobs = {}
        for row_count in row_counts:
            store = FaultStore(LocalObjectStore(root / str(row_count), durable=False))
            # Snapshots and folds must fall on the same checkpoints for all sizes: here on none.
            coordinator = coordinator_on(store, materialize=False, snapshot_interval=100_000)
            begin(coordinator, row_count)
            jobs[row_count] = store, coordinator
        taken: dict[int, list[tuple[float, int, Counter[str]]]] = {each: [] for each in row_counts}
        for number in range(1, rounds + 1):
            table = rows(changed_keys(number), number)
            for row_count, (store, coordinator) in jobs.items():
                before = len(store.requests)
                gc.collect()
                began = time.perf_counter()
                checkpoint(coordinator, table)
                seconds = time.perf_counter() - began
                requests = Counter(request.method for request in store.requests[before:])
                latest = coordinator.latest()
                assert latest is not None
                taken[row_count].append((seconds, latest.manifest.state_bytes, requests))
    smallest = taken[row_counts[0]]
    return [
        {
            "rows": row_count,
            "rounds": rounds,
            "changelog_bytes": [size for _, size, _ in found][-1],
            "same_bytes": [size for _, size, _ in found] == [size for _, size, _ in smallest],
            "requests": dict(sorted(found[-1][2].items())),
            "same_requests": [each for *_, each in found] == [each for *_, each in smallest],
            "seconds": round(median(seconds for seconds, *_ in found), 4),
            "to_smallest": round(
                median(mine[0] / other[0] for mine, other in zip(found, smallest, strict=True)), 2
            ),
        }
        for row_count, found in taken.items()
    ]


# -- snapshot


def measure_snapshot(row_count: int, checkpoints: int, snapshots: int) -> Numbers:
    """100 checkpoints, including folds, and some that write every row. Steps 1 to 6 of both.

    Nothing is subsumed, so each snapshot of the timeline names all checkpoints so far.
    """

    def taken(coordinator: CheckpointCoordinator, table: pa.Table) -> tuple[float, bool]:
        began = time.perf_counter()
        folded = checkpoint(coordinator, table)
        return time.perf_counter() - began, folded

    with fresh_folder() as root:
        creation_seconds = file_creation_seconds(root / "machine")
        coordinator = coordinator_on(LocalObjectStore(root / "log", durable=False))
        begin(coordinator, row_count)
        changed = [
            taken(coordinator, rows(changed_keys(number), number)) for number in range(1, checkpoints + 1)
        ]
        full = coordinator_on(LocalObjectStore(root / "full", durable=False), materialize=False)
        begin(full, row_count)
        everything = whole_state(row_count)
        whole = [taken(full, everything)[0] for _ in range(snapshots)]
    seconds, folds = [each for each, _ in changed], sum(folded for _, folded in changed)
    ordered = sorted(seconds)
    p99 = ordered[max(0, -(-99 * len(ordered) // 100) - 1)]
    return {
        "rows": row_count,
        "checkpoints": checkpoints,
        "folds": folds,
        "median_seconds": round(median(ordered), 4),
        "p99_seconds": round(p99, 4),
        "slowest_seconds": round(ordered[-1], 4),
        "full_snapshot_seconds": round(median(whole), 4),
        "full_snapshots": snapshots,
        "file_creation_seconds": round(creation_seconds, 6),
        "p99_times_shorter": round(median(whole) / p99, 1),
    }


# -- history


def grow_history(store: ObjectStore, clock: VirtualClock, checkpoints: int) -> None:
    """Write only the records of so many checkpoints, one every ten minutes, the last few retained."""
    timeline = coordinator_on(store).timeline
    for number in range(1, checkpoints + 1):
        clock.advance(600)
        attempt = uuid.uuid4()
        parent = number - 1 or None

        def opened(_: TimelineView, number: int = number, attempt: uuid.UUID = attempt) -> Opened:
            return Opened(
                attempt=attempt,
                checkpoint_id=number,
                parent=parent,  # noqa: B023 - called before the next iteration
                owner="bench",
                batch=BatchKey(f"batch-{number}"),
            )

        def completed(_: TimelineView, number: int = number, attempt: uuid.UUID = attempt) -> Completed:
            return Completed(
                attempt=attempt,
                checkpoint_id=number,
                parent=parent,  # noqa: B023 - called before the next iteration
                manifest=f"dstl/{JOB}/manifests/{number:010d}-{attempt}",
                files=(),
                batch=BatchKey(f"batch-{number}"),
                seconds=0.0,
            )

        def committed(_: TimelineView, number: int = number) -> Committed:
            return Committed(checkpoint_id=number, published=(), blocked=(), seconds=0.0)

        timeline.decide(opened)
        timeline.decide(completed)
        timeline.decide(committed)
        if number > 3:
            oldest = number - 3
            timeline.decide(lambda _, oldest=oldest: Subsumed(checkpoint_ids=(oldest,)))


def look_and_decide(store: ObjectStore) -> Numbers:
    """What a new process asks for: the tail, an old batch, a decision."""
    found: Numbers = {}
    steps: dict[str, Callable[[CheckpointCoordinator], object]] = {
        "first look": lambda coordinator: coordinator.timeline.tail(),
        "known batch": lambda coordinator: coordinator.applied("batch-1"),
        "decision": lambda coordinator: coordinator.timeline.decide(
            lambda view: Subsumed(checkpoint_ids=((view.last_completed_id or 0) - 2,))
        ),
    }
    counting = FaultStore(store)
    coordinator = coordinator_on(counting)
    for name, step in steps.items():
        before = len(counting.requests)
        began = time.perf_counter()
        step(coordinator)
        seconds = time.perf_counter() - began
        requests = Counter(request.method for request in counting.requests[before:])
        found[name] = {"requests": dict(sorted(requests.items())), "seconds": round(seconds, 4)}
    return found


class CountingNames(WrapperStore):
    """A store that counts the names it lists."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.names = 0

    def list(self, prefix: str = "", *, start_offset: str | None = None) -> Iterator[Any]:
        for stat in self._inner.list(prefix, start_offset=start_offset):
            self.names += 1
            yield stat

    def list_first(self, prefix: str, count: int, *, start_offset: str | None = None) -> Sequence[Any]:
        found = super().list_first(prefix, count, start_offset=start_offset)
        self.names += len(found)
        return found


def measure_history(checkpoint_counts: list[int]) -> list[Numbers]:
    found = []
    for count in checkpoint_counts:
        clock = VirtualClock()
        store = MemoryObjectStore(clock=clock)
        began = time.perf_counter()
        grow_history(store, clock, count)
        made_seconds = time.perf_counter() - began
        counting = CountingNames(store)
        measured = look_and_decide(counting)
        found.append(
            {
                "checkpoints": count,
                "records": sum(1 for _ in store.list(f"dstl/{JOB}/timeline/")),
                "snapshot_interval": CheckpointOptions().snapshot_interval,
                "names_listed": counting.names,
                "seconds_to_make": round(made_seconds, 1),
                **measured,
            }
        )
    return found


# -- restore


def restored_rows(where: tuple[Path, int, int]) -> int:
    """What one task of a restore does: load its range of key groups as Arrow tables, and keep them."""
    folder, task, tasks = where
    coordinator = coordinator_on(LocalObjectStore(folder, durable=False))
    latest = coordinator.latest()
    assert latest is not None
    state = KeyedState.of(coordinator.store, latest.manifest, OPERATOR)
    assert state is not None
    tables = list(state.tables([ranges_of_tasks(tasks, SCHEMA.max_parallelism)[task]]))
    return sum(table.num_rows for table in tables)


def measure_restore(row_count: int, rounds: int, tasks: int) -> Numbers:
    """All rows as Arrow tables in parallel tasks, and through Parquet's own reader with as many threads.

    The state is a base, as a fold leaves it. A task is a process that is already running, as in Spark.
    """
    pa.set_cpu_count(tasks)
    with fresh_folder() as root, ProcessPoolExecutor(tasks) as pool:
        folder = root / "state"
        coordinator = coordinator_on(LocalObjectStore(folder, durable=False))
        begin(coordinator, row_count)
        based = materialize(coordinator, force=True)
        assert based is not None
        path = root / "rows.parquet"
        pq.write_table(whole_state(row_count), path, compression="zstd", row_group_size=1 << 20)
        work = [(folder, task, tasks) for task in range(tasks)]
        taken: list[tuple[float, float]] = []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            assert sum(pool.map(restored_rows, work)) == row_count
            ours = time.perf_counter() - began
            began = time.perf_counter()
            assert pq.read_table(path, use_threads=True).num_rows == row_count
            taken.append((ours, time.perf_counter() - began))
        del taken[0]  # in it the processes start and import
    return {
        "rows": row_count,
        "rounds": rounds,
        "tasks": tasks,
        "state_bytes": based.manifest.state_bytes,
        "rows_per_second": round(row_count / median(ours for ours, _ in taken)),
        "parquet_rows_per_second": round(row_count / median(theirs for _, theirs in taken)),
        "speed_to_parquet": round(median(theirs / ours for ours, theirs in taken), 2),
    }


# -- targets


def missed_targets(found: Numbers) -> Iterator[str]:
    for row in found.get("growth", []):
        if not (row["same_bytes"] and row["same_requests"]):
            yield f"growth: {row['rows']} rows cost different bytes or requests than the smallest state"
        if row["to_smallest"] > 1.25:
            yield f"growth: {row['rows']} rows take {row['to_smallest']} times as long; the target is 1.25"
    if "snapshot" in found and found["snapshot"]["p99_times_shorter"] < 10:
        yield f"snapshot: p99 {found['snapshot']['p99_times_shorter']} times shorter; the target is 10"
    for row in found.get("history", []):
        # What follows the snapshot, which may be a quarter of the interval late; beside it, as many at first.
        if row["names_listed"] > 2 * (row["snapshot_interval"] * 5 // 4) + 8:
            yield f"history: {row['names_listed']} names listed after {row['checkpoints']} checkpoints"
    if "restore" in found and found["restore"]["speed_to_parquet"] < 0.5:
        yield f"restore: {found['restore']['speed_to_parquet']} of Parquet's speed; the target is 0.5"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the sizes")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--only", action="append", choices=["growth", "snapshot", "history", "restore"])
    arguments = parser.parse_args()
    quick = arguments.quick
    parts: dict[str, Callable[[], Any]] = {
        "growth": lambda: measure_growth([100_000, 200_000] if quick else [10**5, 10**6, 10**7], 15),
        "snapshot": lambda: measure_snapshot(100_000 if quick else 10**6, 100, 3),
        "history": lambda: measure_history([100, 1000] if quick else [100, 100_000]),
        "restore": lambda: measure_restore(10**5 if quick else 10**7, 5, 2),
    }
    print(conditions("pyarrow", "numpy"), flush=True)
    found: Numbers = {}
    for name in arguments.only or parts:
        found[name] = parts[name]()
        print(json.dumps({name: found[name]}, indent=1), flush=True)
    found["missed"] = list(missed_targets(found))
    print(json.dumps({"missed": found["missed"]}, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    sys.exit(1 if found["missed"] else 0)


if __name__ == "__main__":
    main()
