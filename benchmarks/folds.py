"""The slowest of 200 checkpoints, folds included, against their median; and what they write.

    python benchmarks/folds.py [--rows 1e6] [--checkpoints 200] [--json FILE]

Each checkpoint changes 10,000 rows of the same 100,000, as in `checkpoint.py`. On a local folder without
fsync. Told are wall-clock and CPU seconds of a checkpoint (median, p99, slowest), the bytes written by kind,
the files that a checkpoint reads at most, the manifests that a reader fetches, and what reading all rows
back takes after that.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from checkpoint import OPERATOR, begin, changed_keys, checkpoint, coordinator_on, rows
from conditions import conditions
from folders import fresh_folder

from dstl_dagster.keyed import KeyedState
from dstl_dagster.storage import LocalObjectStore
from dstl_dagster.testing.fault_schedules import Request
from dstl_dagster.testing.fault_store import FaultStore

Numbers = dict[str, Any]


def spread(seconds: Sequence[float]) -> Numbers:
    """Median, 99th percentile and maximum, in milliseconds, and the last against the first."""
    ordered = sorted(seconds)
    middle, last = median(ordered), ordered[-1]
    p99 = ordered[max(0, -(-99 * len(ordered) // 100) - 1)]
    return {
        "median_ms": round(1e3 * middle, 1),
        "p99_ms": round(1e3 * p99, 1),
        "slowest_ms": round(1e3 * last, 1),
        "slowest_to_median": round(last / middle, 2),
        "sum_seconds": round(sum(ordered), 2),
    }


def kind_of(name: str) -> str:
    """Of an object of the job: by its folder."""
    for kind in ("changelog", "manifests", "timeline"):
        if f"/{kind}/" in name:
            return kind
    return "other"


def files_read(requests: Sequence[Request]) -> int:
    """Changelog files, each once."""
    return len({each.name for each in requests if "/changelog/" in each.name and "get" in each.method})


def bytes_by_kind(root: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in root.rglob("*"):
        if path.is_file():
            found[kind_of(path.relative_to(root).as_posix())] += path.stat().st_size
    return found


def measure(row_count: int, checkpoints: int) -> Numbers:
    """So many checkpoints on a state of `row_count` rows. Nothing is deleted: the folder tells all bytes."""
    with fresh_folder() as root:
        store = FaultStore(LocalObjectStore(root, durable=False))
        coordinator = coordinator_on(store)
        begin(coordinator, row_count)
        loaded = bytes_by_kind(root)
        wall, cpu, reads, folds = [], [], [], 0
        for number in range(1, checkpoints + 1):
            table = rows(changed_keys(number), number)
            gc.collect()
            seen = len(store.requests)
            began, began_cpu = time.perf_counter(), time.process_time()
            folds += checkpoint(coordinator, table)
            wall.append(time.perf_counter() - began)
            cpu.append(time.process_time() - began_cpu)
            own = store.requests[seen:]
            reads.append(files_read(own))
        written = bytes_by_kind(root)
        written.subtract(loaded)
        seen = len(store.requests)
        began_cpu = time.process_time()
        latest = coordinator.latest()
        assert latest is not None
        state = KeyedState.of(store, latest.manifest, OPERATOR)
        assert state is not None
        assert sum(table.num_rows for table in state.tables()) == row_count
        read_cpu = time.process_time() - began_cpu
        own = store.requests[seen:]
    return {
        "rows": row_count,
        "checkpoints": checkpoints,
        "checkpoints_with_folds": folds,
        "wall": spread(wall),
        "cpu": spread(cpu),
        "load_bytes": loaded["changelog"],
        "written_bytes": sum(written.values()),
        "written_by_kind": dict(written),
        "most_files_read": max(reads),
        "read_all_cpu_seconds": round(read_cpu, 2),
        "read_all_handles": len(state.handles),
        "read_all_manifests": sum("/manifests/" in each.name and each.method == "get" for each in own),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(float(text)), action="append")
    parser.add_argument("--checkpoints", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    arguments = parser.parse_args()
    print(conditions("pyarrow", "numpy"), flush=True)
    found = []
    for row_count in arguments.rows or [10**6]:
        found.append(measure(row_count, arguments.checkpoints))
        print(json.dumps(found[-1], indent=1), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
