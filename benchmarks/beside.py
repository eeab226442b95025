"""Another checkout's changelog and this one's in turns, row by row of `changelog.py`.

Owns the pairing. Does not own the workloads (`changelog.py`). Run:

    python benchmarks/beside.py OTHER_CHECKOUT [--pairs 7] [--synced] [ROW ...]

To measure what an optimization is worth, remove it in another checkout. Each checkout has a process of its
own, and the two take turns on the same machine, so that its drift cancels out of the ratio of each pair,
which is what counts. A ratio above 1: the other checkout took longer. `BENCH_DIRECTORY` is where the files
go.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

from changelog import ROWS, Workload, persist_latency_ms, rows_of, write_columns, write_rows
from folders import fresh_folder
from machine import timed

from dstl_dagster.storage import LocalObjectStore

HERE: Final = Path(__file__).resolve()

workload_of = cache(lambda value_bytes: Workload.of(value_bytes, ROWS))
rows = cache(lambda: rows_of(workload_of(100)))


def columns_seconds(store: LocalObjectStore, value_bytes: int, delay_ms: int) -> float:
    workload = workload_of(value_bytes)
    return timed(lambda: write_columns(store, workload, delay_ms))


def rows_seconds(store: LocalObjectStore) -> float:
    as_objects = rows()
    return timed(lambda: write_rows(store, as_objects, ROWS // 5))


MEASURES: Final = {
    "append+persist 100 B, delay 10 ms": lambda store: columns_seconds(store, 100, 10),
    "append+persist 100 B, delay 0": lambda store: columns_seconds(store, 100, 0),
    "append+persist 1000 B, delay 10 ms": lambda store: columns_seconds(store, 1000, 10),
    "append+persist 1000 B, delay 0": lambda store: columns_seconds(store, 1000, 0),
    "append (rows)+persist 100 B, delay 10 ms": rows_seconds,
    "persist of 1,000, delay 10 ms": lambda store: persist_latency_ms(store, 10, 7) / 1e3,
    "persist of 1,000, delay 0": lambda store: persist_latency_ms(store, 0, 7) / 1e3,
}


def serve(*, durable: bool) -> None:
    """Measure the rows named on standard input, one per line, with the package on this process's path."""
    for line in sys.stdin:
        with fresh_folder() as folder:
            print(MEASURES[line.strip()](LocalObjectStore(folder, durable=durable)), flush=True)


class Side:
    """One checkout's process."""

    def __init__(self, checkout: Path, *, durable: bool) -> None:
        command = [sys.executable, str(HERE), "--serve", *(["--synced"] if durable else [])]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, row: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(row, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def compare(row: str, this: Side, other: Side, pair_count: int) -> None:
    pairs = []
    for number in range(pair_count + 1):
        # The second one may find a warmer or a busier machine: each goes first equally often.
        if number % 2:
            our_seconds = this.seconds(row)
            pairs.append((our_seconds, other.seconds(row)))
        else:
            other_seconds = other.seconds(row)
            pairs.append((this.seconds(row), other_seconds))
    counted = pairs[1:]
    ratios = [theirs / ours for ours, theirs in counted]
    medians = [statistics.median(side) * 1e3 for side in zip(*counted, strict=True)]
    print(
        f"{row:42} this {medians[0]:8.2f} ms, other {medians[1]:8.2f} ms; "
        f"{statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, nargs="?", metavar="OTHER_CHECKOUT")
    parser.add_argument("rows", nargs="*", metavar="ROW", default=[])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--synced", action="store_true", help="sync every file to disk")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(durable=arguments.synced)
        return
    if arguments.other is None:
        parser.error("name the other checkout")
    unknown = set(arguments.rows) - set(MEASURES)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    this, other = (
        Side(checkout, durable=arguments.synced) for checkout in (HERE.parent.parent, arguments.other)
    )
    for row in arguments.rows or MEASURES:
        compare(row, this, other, arguments.pairs)
    this.close()
    other.close()


if __name__ == "__main__":
    main()
