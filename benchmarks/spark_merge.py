"""A batch that merges 10,000 rows into a large state against the same job that writes its rows as Parquet.

    python benchmarks/spark_merge.py [--rows 1e7] [--rounds 7] [--spread]

In `local[2]`, in turns. Twice: 20,000 events that are aggregated to 10,000 rows first, and 10,000 rows as
they are, which Parquet writes without any shuffle. Their keys are of the same 100,000, or spread over the
state. A batch of ours is whole: opened, merged, recorded, confirmed and committed, with what is folded when
that is due. Told are also the requests of a batch and the bytes that it read and wrote. About three minutes
on a quiet machine, most of which make the state.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from checkpoint import OPERATOR, begin, changed_keys, coordinator_on, spread_keys
from conditions import conditions
from folders import fresh_folder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from turns import in_turns, ratios, told

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator, materialize
from dstl_dagster.spark import local_session, merge_state, stop_session
from dstl_dagster.storage import LocalObjectStore

STATE = "key BIGINT, total BIGINT, events BIGINT, name STRING"
WARM_UPS = 3
UPDATE = {
    "total": "coalesce(old.total, 0) + new.total",
    "events": "coalesce(old.events, 0) + new.events",
}


def write_events(folder: Path, number: int, row_count: int | None = None) -> None:
    """Two events for each of 10,000 keys, and beside them one row for each.

    The keys are of the same 100,000, or spread over a state of `row_count` rows.
    """
    keys = changed_keys(number) if row_count is None else spread_keys(row_count, number)
    twice = np.repeat(keys, 2)
    pq.write_table(pa.table({"key": twice, "value": twice % 89}), folder / f"events-{number}.parquet")
    rows = pa.table({"key": keys, "total": keys % 89, "events": np.ones_like(keys)})
    pq.write_table(rows, folder / f"rows-{number}.parquet")


def aggregated(spark: SparkSession, folder: Path, number: int) -> DataFrame:
    events = spark.read.schema("key BIGINT, value BIGINT").parquet(str(folder / f"events-{number}.parquet"))
    return events.groupBy("key").agg(F.sum("value").alias("total"), F.count("*").alias("events"))


def plain(spark: SparkSession, folder: Path, number: int) -> DataFrame:
    schema = "key BIGINT, total BIGINT, events BIGINT"
    return spark.read.schema(schema).parquet(str(folder / f"rows-{number}.parquet"))


def merge_next(coordinator: CheckpointCoordinator, jobs: Iterator[DataFrame]) -> None:
    """A whole batch."""
    batch = Batch.open(coordinator)
    with batch.aborted_on_error():
        report = merge_state(next(jobs), batch, operator=OPERATOR, keys=["key"], schema=STATE, update=UPDATE)
    batch.add(report)
    batch.merge_due_runs()
    batch.complete()


def write_next(target: Path, jobs: Iterator[DataFrame]) -> None:
    next(jobs).write.mode("overwrite").parquet(str(target))


def contenders(
    job: Callable[[int], DataFrame], first: int, coordinator: CheckpointCoordinator, folder: Path
) -> dict[str, Callable[[], None]]:
    """A whole batch, and the rows alone. Each takes every number once: in a turn both have the same rows.

    `job`: the rows of a number, from `first` on.
    """
    mine, theirs = (map(job, count(first)) for _ in range(2))
    return {
        "merge": partial(merge_next, coordinator, mine),
        "parquet": partial(write_next, folder / "out", theirs),
    }


def tell_cost(coordinator: CheckpointCoordinator) -> None:
    latest = coordinator.latest()
    assert latest is not None
    cost = latest.manifest.cost
    told = f"{latest.manifest.state_bytes:,} bytes of state written; step 1 to 3"
    if cost is not None:
        total = cost.total
        told += f": {total.requests} requests, {total.bytes_down:,} bytes read, {total.bytes_up:,} written"
    print(f"the last batch of ours: {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--spread", action="store_true", help="keys spread over the state")
    given = parser.parse_args()
    print(conditions("pyspark", "pyarrow"))
    with TemporaryDirectory() as scratch, fresh_folder() as root:
        folder = Path(scratch)
        coordinator = coordinator_on(LocalObjectStore(root / "store"))
        begin(coordinator, int(given.rows))
        materialize(coordinator, force=True)
        turns = given.rounds + WARM_UPS
        for number in range(1, 2 * turns + 1):
            write_events(folder, number, int(given.rows) if given.spread else None)
        spark = local_session("merge", conf={"spark.driver.memory": "2g"})
        try:
            for name, job, first in (("aggregated", aggregated, 1), ("as they are", plain, turns + 1)):
                pair = contenders(partial(job, spark, folder), first, coordinator, folder)
                named = {f"{side}, {name}": act for side, act in pair.items()}
                runs = in_turns(named, given.rounds, warm_ups=WARM_UPS)
                told(runs)
                ratios(runs, f"merge, {name}", f"parquet, {name}", "2")
                tell_cost(coordinator)
        finally:
            stop_session(spark)


if __name__ == "__main__":
    main()
