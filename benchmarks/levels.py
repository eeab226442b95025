"""What state in levels costs by its size: bytes and CPU of a checkpoint, and of reads, as one table.

    python benchmarks/levels.py [--rows 1e5 --rows 1e6 ...] [--large] [--checkpoints 200] [--json FILE]

Each checkpoint changes 10,000 rows: of the same 100,000 keys, or of keys spread over the state. On a local
folder without fsync, by default at 10^5, 10^6 and 10^7 rows; `--large` adds 10^8. Seconds are of CPU, of one
process, so a busy machine moves them less; ratios are taken within one run:

change       KB that the changes alone take
written      KB written by a checkpoint, mean, and against the changes
checkpoint   ms, median; slowest against median
read         all rows after the last checkpoint, against the last level alone; the latter against Parquet
look-ups     ms: 1, 100 and 10,000 keys spread over the state, by a state that is opened for each
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from checkpoint import (
    OPERATOR,
    begin,
    changed_keys,
    checkpoint,
    coordinator_on,
    rows,
    spread_keys,
    whole_state,
)
from conditions import conditions
from folders import fresh_folder

from dstl_dagster.checkpoint import CheckpointCoordinator, materialize
from dstl_dagster.keyed import KeyedState
from dstl_dagster.storage import LocalObjectStore

LOOK_UPS = (1, 100, 10_000)
Numbers = dict[str, Any]


def cpu_of(act: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    act()
    return time.process_time() - began


def keys_of(kind: str, row_count: int, number: int) -> np.ndarray:
    """The keys that a checkpoint changes."""
    if kind == "same":
        return changed_keys(number)
    return spread_keys(row_count, number)


def opened(coordinator: CheckpointCoordinator) -> KeyedState:
    latest = coordinator.latest()
    assert latest is not None
    state = KeyedState.of(coordinator.store, latest.manifest, OPERATOR)
    assert state is not None
    return state


def read_all(coordinator: CheckpointCoordinator, row_count: int, rounds: int = 3) -> float:
    def read() -> None:
        assert sum(table.num_rows for table in opened(coordinator).tables()) == row_count

    return median(cpu_of(read) for _ in range(rounds))


def look_up(coordinator: CheckpointCoordinator, row_count: int, count: int, rounds: int = 3) -> float:
    def look() -> None:
        keys = rng.choice(row_count, min(count, row_count), replace=False).astype(np.int64)
        assert opened(coordinator).rows(rows(keys, 0).select(["key"])).num_rows == len(keys)

    rng = np.random.default_rng(count)
    return median(cpu_of(look) for _ in range(rounds))


def parquet_seconds(root: Path, row_count: int) -> float:
    path = root / "rows.parquet"
    pq.write_table(whole_state(row_count), path, compression="zstd")
    found = median(cpu_of(lambda: pq.read_table(path)) for _ in range(3))
    path.unlink()
    return found


def bytes_in(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def measure(kind: str, row_count: int, checkpoints: int) -> Numbers:
    """So many checkpoints on a state of `row_count` rows. Nothing is deleted: the folder tells all bytes."""
    with fresh_folder() as root:
        parquet = parquet_seconds(root, row_count)
        coordinator = coordinator_on(LocalObjectStore(root / "store", durable=False))
        begin(coordinator, row_count)
        materialize(coordinator, force=True)
        last_level = read_all(coordinator, row_count)
        cpu, written, changes = [], [], []
        before = bytes_in(root)
        for number in range(1, checkpoints + 1):
            table = rows(keys_of(kind, row_count, number), number)
            cpu.append(cpu_of(lambda table=table: checkpoint(coordinator, table)))
            now = bytes_in(root)
            written.append(now - before)
            before = now
            latest = coordinator.latest()
            assert latest is not None
            changes.append(latest.manifest.operators[OPERATOR].report.stored_bytes)
        read = read_all(coordinator, row_count)
        found = [look_up(coordinator, row_count, count) for count in LOOK_UPS]
        handles = len(opened(coordinator).handles)
    return {
        "keys": kind,
        "rows": row_count,
        "checkpoints": checkpoints,
        "change_kb": mean(changes) / 1e3,
        "written_kb": mean(written) / 1e3,
        "written_to_change": mean(written) / mean(changes),
        "median_ms": 1e3 * median(cpu),
        "slowest_to_median": max(cpu) / median(cpu),
        "total_seconds": sum(cpu),
        "read_to_last_level": read / last_level,
        "last_level_to_parquet": last_level / parquet,
        "look_up_ms": [1e3 * each for each in found],
        "handles": handles,
    }


COLUMNS = (
    *("keys", "rows", "change", "written", "ratio", "checkpoint", "slowest", "read", "to Parquet"),
    *(f"{count:,} keys" for count in LOOK_UPS),
)


def row_of(found: Numbers) -> str:
    cells = [
        found["keys"],
        f"{found['rows']:,}",
        *(f"{found[name]:.0f} KB" for name in ("change_kb", "written_kb")),
        f"{found['written_to_change']:.1f}",
        f"{found['median_ms']:.0f} ms",
        *(f"{found[name]:.1f}" for name in ("slowest_to_median", "read_to_last_level")),
        f"{found['last_level_to_parquet']:.1f}",
        *(f"{each:.0f} ms" for each in found["look_up_ms"]),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(float(text)), action="append")
    parser.add_argument("--large", action="store_true", help="10^8 rows as well; takes 8 GiB of memory")
    parser.add_argument("--checkpoints", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    arguments = parser.parse_args()
    sizes = arguments.rows or [10**5, 10**6, 10**7]
    print(conditions("pyarrow", "numpy"), flush=True)
    print(f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS), sep="\n", flush=True)
    found = []
    for kind in ("same", "spread"):
        for row_count in [*sizes, *([10**8] if arguments.large else [])]:
            found.append(measure(kind, row_count, arguments.checkpoints))
            print(row_of(found[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
