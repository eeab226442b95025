"""A soak: a state of 10^8 rows in Spark on two cores, written, merged into, read back, and its memory.

    python benchmarks/spark_large.py [--rows 1e8] [--merges 3] [--limit-gib 6]

Rows of a long key, two longs and a short text, in `local[2]`; the driver's JVM has 2 GiB of heap. Told for
each part are seconds, CPU, the bytes of the store, and the most memory that driver, JVM and Python workers
held at a time together: proportional set size, so what forked workers share counts once. Counts and sums are
exact, or the run fails; so it does above the limit. 10^8 rows take about 15 minutes and 3 GB of disk on a
quiet machine, 10^6 rows one minute.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from conditions import conditions
from folders import fresh_folder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from turns import measured, own_processes

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator, OperatorReport
from dstl_dagster.spark import local_session, merge_state, register, stop_session, write_state
from dstl_dagster.storage import LocalObjectStore

JOB, OPERATOR = "large", "totals"
STATE = "key BIGINT, total BIGINT, events BIGINT, name STRING"
MERGED_ROWS = 10_000
ROWS_OF_A_TASK = 1_500_000
"""A writing task holds the keys of all its rows."""
KEY_GROUPS = 1024
SAMPLE_SECONDS = 0.5


class Memory:
    """The most that this process and its descendants held at a time, sampled by a thread of its own."""

    def __init__(self) -> None:
        self.most = 0

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Begin anew, and sample in the block."""
        over, self.most = threading.Event(), 0

        def sample() -> None:
            while not over.wait(SAMPLE_SECONDS):
                self.most = max(self.most, sum(map(held_bytes, own_processes())))

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        try:
            yield
        finally:
            over.set()
            sampler.join()


def held_bytes(process: int) -> int:
    """Its proportional set size; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def batch(coordinator: CheckpointCoordinator, write: Callable[[Batch], OperatorReport]) -> None:
    """One checkpoint, from step 1 to 7."""
    opened = Batch.open(coordinator)
    with opened.aborted_on_error():
        opened.add(write(opened))
    opened.merge_due_runs()
    opened.complete(clean_up_every=1)


def all_rows(spark: SparkSession, rows: int) -> DataFrame:
    name = F.concat(F.lit("customer-"), F.lpad(F.col("id").cast("string"), 9, "0"))
    return spark.range(rows).select(
        F.col("id").alias("key"),
        (F.col("id") * 31).alias("total"),
        F.lit(1).alias("events"),
        name.alias("name"),
    )


def changes(spark: SparkSession, folder: Path, rows: int, number: int) -> DataFrame:
    """One of each of `MERGED_ROWS` keys."""
    random = np.random.default_rng(number)
    keys = random.permutation(np.unique(random.integers(0, rows, 2 * MERGED_ROWS)))[:MERGED_ROWS]
    pq.write_table(pa.table({"key": keys}), folder / f"changes-{number}.parquet")
    return spark.read.parquet(str(folder / f"changes-{number}.parquet"))


def require_exact(found: tuple[int, int, int], rows: int, merged: int) -> None:
    expected = (rows, 31 * rows * (rows - 1) // 2 + merged, rows + merged)
    assert found == expected, f"found {found}, expected {expected}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--merges", type=int, default=3)
    parser.add_argument("--limit-gib", type=float, default=6.0, help="of memory, for all processes together")
    given = parser.parse_args()
    rows = int(given.rows)
    print(conditions("pyspark", "pyarrow"))
    memory, most = Memory(), 0
    spark = local_session("large", conf={"spark.driver.memory": "2g"})
    try:
        register(spark)
        with fresh_folder() as folder:
            coordinator = CheckpointCoordinator(JOB, LocalObjectStore(folder / "store"), owner="soak")

            def part(what: str, act: Callable[[], object]) -> None:
                nonlocal most
                with memory.sampled():
                    run = measured(act)
                most = max(most, memory.most)
                stored = sum(path.stat().st_size for path in (folder / "store").rglob("*") if path.is_file())
                told = {"what": what, "seconds": round(run.seconds, 1), "cpu": round(run.cpu, 1)}
                told |= {"memory_mib": memory.most >> 20, "stored_mib": stored >> 20}
                print(json.dumps(told), flush=True)

            def write(opened: Batch) -> OperatorReport:
                return write_state(
                    all_rows(spark, rows),
                    opened,
                    operator=OPERATOR,
                    keys=["key"],
                    max_parallelism=KEY_GROUPS,
                    partitions=min(KEY_GROUPS, max(2, rows // ROWS_OF_A_TASK)),
                )

            def merge(opened: Batch, number: int) -> OperatorReport:
                return merge_state(
                    changes(spark, folder, rows, number),
                    opened,
                    operator=OPERATOR,
                    keys=["key"],
                    schema=STATE,
                    update={"total": "old.total + 1", "events": "old.events + 1"},
                    partitions=min(KEY_GROUPS, max(2, rows // ROWS_OF_A_TASK)),
                )

            def read() -> None:
                options = {"store": (folder / "store").as_uri(), "job": JOB, "operator": OPERATOR}
                state = spark.read.format("dstl").options(**options).load()
                count = F.count("*"), F.sum("total"), F.sum("events")
                found = state.agg(*count).head()
                assert found is not None
                require_exact(tuple(found), rows, given.merges * MERGED_ROWS)

            part(f"write {rows:,} rows", lambda: batch(coordinator, write))
            for number in range(1, given.merges + 1):
                part(
                    f"merge {MERGED_ROWS:,} rows",
                    lambda number=number: batch(coordinator, lambda opened: merge(opened, number)),
                )
            part("read all", read)
    finally:
        stop_session(spark)
    assert most <= given.limit_gib * (1 << 30), f"{most >> 20} MiB are above the limit"


if __name__ == "__main__":
    main()
