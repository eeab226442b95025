"""One partition of a table loaded and replaced, against the same rows in a Parquet file for each partition.

    python benchmarks/table_partition.py [--partitions 1000] [--rows 10000] [--rounds 9] [--daily]

A table by day and id, as the IO manager stores it: keyed state with partition columns, of which a replacement
is a checkpoint. On a local folder without fsync, in turns; all runs merged, or with `--daily` as a checkpoint
for each partition leaves them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from conditions import conditions
from folders import fresh_folder
from turns import Run, in_turns, ratios, told

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator, materialize
from dstl_dagster.jobs import write_frame
from dstl_dagster.state import PartitionRows, TimeSpans
from dstl_dagster.storage import LocalObjectStore

FIRST = datetime(2020, 1, 1, tzinfo=UTC)
AT_ONCE = 50
"""Partitions that a checkpoint begins with."""
OPERATOR = "table"


def scope(numbers: Sequence[int]) -> PartitionRows:
    """The days of these numbers, ascending."""
    starts = [FIRST + timedelta(days=number) for number in numbers]
    spans = [[int(at.timestamp()) * 1_000_000 for at in (each, each + timedelta(days=1))] for each in starts]
    axis = TimeSpans(*map(tuple, zip(*spans, strict=True)), "UTC", "%Y-%m-%d")
    return PartitionRows({"day": axis}, frozenset((at,) for at in range(len(spans))), "these days")


def rows_of(number: int, row_count: int, seed: int = 0) -> pa.Table:
    ids = np.arange(row_count, dtype=np.int64) + number * 7
    names = np.char.add("customer-", np.char.zfill(ids.astype(str), 8))
    day = pa.scalar((FIRST + timedelta(days=number)).date())
    return pa.table({"day": pa.repeat(day, row_count), "id": ids, "total": ids * 31 + seed, "name": names})


def replace(coordinator: CheckpointCoordinator, numbers: Sequence[int], rows: pa.Table) -> None:
    batch = Batch.open(coordinator)
    batch.add(
        write_frame(rows, batch, operator=OPERATOR, keys=["day", "id"], replace=scope(numbers)),
    )
    batch.merge_due_runs()
    batch.complete()


def measure_partition(
    partitions: int, row_count: int, rounds: int, *, daily: bool = False
) -> Mapping[str, Sequence[Run]]:
    """The runs of `load` and `replace`, of ours and of Parquet's."""
    with fresh_folder() as root:
        coordinator = CheckpointCoordinator("table", LocalObjectStore(root / "store", durable=False))
        at_once = 1 if daily else AT_ONCE
        for first in range(0, partitions, at_once):
            numbers = range(first, min(partitions, first + at_once))
            replace(coordinator, numbers, pa.concat_tables(rows_of(each, row_count) for each in numbers))
        if not daily:
            materialize(coordinator, force=True)
        for number in range(partitions):
            pq.write_table(rows_of(number, row_count), _file(root, number), compression="zstd")
        chosen = [int(each) for each in np.random.default_rng(3).permutation(partitions)]

        def ours(number: int) -> None:
            scan = coordinator.read_state(OPERATOR).within(scope([number]))
            assert scan.to_arrow().num_rows == row_count

        def plain(number: int) -> None:
            assert pq.read_table(_file(root, number)).num_rows == row_count

        def ours_anew(number: int) -> None:
            replace(coordinator, [number], rows_of(number, row_count, 5))

        def plain_anew(number: int) -> None:
            pq.write_table(rows_of(number, row_count, 5), _file(root, number), compression="zstd")

        def each_day(act: Callable[[int], None]) -> Callable[[], None]:
            turns = count()
            return lambda: act(chosen[next(turns) % partitions])

        loads = in_turns({"load, ours": each_day(ours), "load, Parquet": each_day(plain)}, rounds)
        replacing = {"replace, ours": each_day(ours_anew), "replace, Parquet": each_day(plain_anew)}
        return {**loads, **in_turns(replacing, rounds)}


def _file(root: Path, number: int) -> Path:
    return root / f"{number}.parquet"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=10_000, help="of a partition")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--daily", action="store_true", help="a checkpoint for each partition, not merged")
    given = parser.parse_args()
    print(conditions("pyarrow"))
    runs = measure_partition(given.partitions, given.rows, given.rounds, daily=given.daily)
    told(runs)
    ratios(runs, "load, ours", "load, Parquet", "2")
    ratios(runs, "replace, ours", "replace, Parquet", "3")


if __name__ == "__main__":
    main()
