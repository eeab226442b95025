"""Reading a base with a log behind it: all rows, and one key after another.

    python benchmarks/reading.py [--rows 1e7] [--logs 40] [--rounds 5] [--json FILE]

A base as a fold leaves it; then as many checkpoints of 10,000 changes, as in `checkpoint.py`, which nothing
folds. Told are seconds by the clock and of CPU: of all rows, medians and every round; of one key by an open
state, the first, and median and slowest of those that follow; of a thousand keys at once. On a local folder
without fsync.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from checkpoint import OPERATOR, begin, changed_keys, checkpoint, coordinator_on, rows
from conditions import conditions
from folders import fresh_folder

from dstl_dagster.checkpoint import CheckpointCoordinator, materialize
from dstl_dagster.keyed import KeyedState
from dstl_dagster.storage import LocalObjectStore

LOOK_UPS = 200
Numbers = dict[str, Any]


def taken(act: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of CPU."""
    gc.collect()
    began, began_cpu = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - began, time.process_time() - began_cpu


def opened(coordinator: CheckpointCoordinator) -> KeyedState:
    latest = coordinator.latest()
    assert latest is not None
    state = KeyedState.of(coordinator.store, latest.manifest, OPERATOR)
    assert state is not None
    return state


def all_rows(coordinator: CheckpointCoordinator, row_count: int, rounds: int) -> Numbers:
    def read() -> None:
        assert sum(table.num_rows for table in opened(coordinator).tables()) == row_count

    found = [taken(read) for _ in range(rounds + 1)][1:]
    return {
        "seconds": round(median(each for each, _ in found), 3),
        "cpu": round(median(cpu for _, cpu in found), 3),
        "all": [f"{each:.2f}/{cpu:.2f}" for each, cpu in found],
    }


def one_key(coordinator: CheckpointCoordinator, row_count: int) -> Numbers:
    """The first look-up of an open state, and those that follow, each of a key somewhere else."""
    keys = np.random.default_rng(5).integers(0, row_count, LOOK_UPS).tolist()
    state = opened(coordinator)

    def look_up(key: int) -> None:
        found = state.row({"key": key})
        assert found is not None
        assert found["name"] == f"customer-{key:08d}"

    cold, *warm = [taken(lambda key=key: look_up(key)) for key in keys]
    many = rows(np.random.default_rng(6).permutation(row_count)[:1000], 0).select(["key"])
    together = taken(lambda: state.rows(many))
    return {
        "first_ms": round(1e3 * cold[0], 1),
        "first_cpu_ms": round(1e3 * cold[1], 1),
        "following_ms": round(1e3 * median(each for each, _ in warm), 2),
        "following_cpu_ms": round(1e3 * median(cpu for _, cpu in warm), 2),
        "slowest_ms": round(1e3 * max(each for each, _ in warm), 1),
        "thousand_keys_ms": round(1e3 * together[0], 1),
    }


def measure(row_count: int, logs: int, rounds: int) -> Numbers:
    with fresh_folder() as root:
        coordinator = coordinator_on(LocalObjectStore(root, durable=False), materialize=False)
        begin(coordinator, row_count)
        materialize(coordinator, force=True)
        base = {"all_rows": all_rows(coordinator, row_count, rounds), "key": one_key(coordinator, row_count)}
        for number in range(1, logs + 1):
            checkpoint(coordinator, rows(changed_keys(number), number))
        both = {"all_rows": all_rows(coordinator, row_count, rounds), "key": one_key(coordinator, row_count)}
    return {
        "rows": row_count,
        "logs": logs,
        "base": base,
        "base_and_logs": both,
        "cpu_to_base": round(both["all_rows"]["cpu"] / base["all_rows"]["cpu"], 2),
        "seconds_to_base": round(both["all_rows"]["seconds"] / base["all_rows"]["seconds"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=10**7)
    parser.add_argument("--logs", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    arguments = parser.parse_args()
    print(conditions("pyarrow", "numpy"), flush=True)
    found = measure(arguments.rows, arguments.logs, arguments.rounds)
    print(json.dumps(found, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
