"""A day's partition with checkpointed state and files against the same computation that writes plain Parquet.

    python benchmarks/spark_partition.py [--days 7] [--cold 5] [--rows 16000] [--only warm|cold]

Both are jobs of Dagster, executed in process, in turns on the same days: 16,000 sales become totals per
customer and per product on top of the day before, and a file of the day's large sales. Ours merges both into
keyed state and publishes all with one checkpoint; plain reads yesterday's totals as Parquet, joins, and
writes today's into new folders. Totals are compared at the end. Warm: days after one another on one Spark
session. Cold: each day in a process of its own, from its start to its end. About five minutes on a quiet
machine.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import date, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from conditions import conditions
from turns import Run, in_turns, ratios, told

from dstl_dagster import ChangelogStorageResource, SparkSessionResource, build_checkpoint_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST = date(2026, 1, 1)
DAYS = dg.DailyPartitionsDefinition(FIRST.isoformat(), end_date="2026-12-31")
WARM_UPS = 2
TOTALS = {"customers": "customer", "products": "product"}
CONTENDERS = ("ours", "plain")
QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


def day_of(number: int) -> str:
    """The partition; the first has number 1."""
    return (FIRST + timedelta(days=number - 1)).isoformat()


def write_day(folder: Path, number: int, rows: int) -> None:
    random = np.random.default_rng(number)
    columns = {
        "sale": np.arange(rows) + number * rows,
        "customer": random.integers(0, rows, rows),
        "product": random.integers(0, 500, rows),
        "amount": random.integers(1, 10_000, rows),
    }
    (folder / "days").mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / "days" / f"{day_of(number)}.parquet")


def sales_of(spark: "SparkSession", folder: Path, day: str) -> "DataFrame":
    schema = "sale BIGINT, customer BIGINT, product BIGINT, amount BIGINT"
    return spark.read.schema(schema).parquet(str(folder / "days" / f"{day}.parquet"))


def day_totals(sales: "DataFrame", key: str) -> "DataFrame":
    return sales.groupBy(key).agg({"*": "count", "amount": "sum"}).toDF(key, "sales", "total")


def ours(folder: Path) -> dg.JobDefinition:
    @dg.op
    def update(
        context: dg.OpExecutionContext, changelog: ChangelogStorageResource, spark: SparkSessionResource
    ) -> dict[str, Any]:
        with changelog.checkpoint(context, "days", source="sales") as batch:
            sales = sales_of(spark.spark_session, folder, context.partition_key)
            for operator, key in TOTALS.items():
                batch.merge_state(
                    day_totals(sales, key),
                    operator=operator,
                    keys=[key],
                    schema=f"{key} BIGINT, sales BIGINT, total BIGINT",
                    update={name: f"coalesce(old.{name}, 0) + new.{name}" for name in ("sales", "total")},
                )
            batch.write_files(
                sales.where("amount > 9000"), f"large/{context.partition_key}", format="parquet"
            )
        return batch.reference

    return build_checkpoint_job(
        "ours",
        update,
        partitions_def=DAYS,
        resource_defs={
            "changelog": ChangelogStorageResource(uri=(folder / "store").as_uri()),
            "spark": SparkSessionResource(),
        },
    )


def plain(folder: Path) -> dg.JobDefinition:
    @dg.op
    def update(context: dg.OpExecutionContext, spark: SparkSessionResource) -> None:
        session, day = spark.spark_session, context.partition_key
        yesterday = (date.fromisoformat(day) - timedelta(days=1)).isoformat()
        sales = sales_of(session, folder, day)
        for operator, key in TOTALS.items():
            totals = day_totals(sales, key)
            before = folder / "plain" / operator / yesterday
            if before.exists():
                old = session.read.parquet(str(before)).toDF(key, "old_sales", "old_total")
                totals = totals.join(old, key, "full").selectExpr(
                    key,
                    "coalesce(old_sales, 0) + coalesce(sales, 0) AS sales",
                    "coalesce(old_total, 0) + coalesce(total, 0) AS total",
                )
            totals.write.parquet(str(folder / "plain" / operator / day))
        sales.where("amount > 9000").write.parquet(str(folder / "plain" / "large" / day))

    @dg.job(name="plain", partitions_def=DAYS, resource_defs={"spark": SparkSessionResource()})
    def job() -> None:
        update()

    return job


def run_day(who: str, folder: Path, number: int) -> None:
    make: Callable[[Path], dg.JobDefinition] = {"ours": ours, "plain": plain}[who]
    (folder / "dagster").mkdir(exist_ok=True)
    with dg.DagsterInstance.local_temp(str(folder / "dagster")) as instance:
        done = make(folder).execute_in_process(QUIET, instance=instance, partition_key=day_of(number))
    assert done.success


def run_next(who: str, folder: Path, numbers: Any) -> None:
    run_day(who, folder, next(numbers))


def run_next_cold(who: str, folder: Path, numbers: Any) -> None:
    """In a process of its own."""
    command = [sys.executable, __file__, "--day", who, str(folder), str(next(numbers))]
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def running_spark() -> Iterator[None]:
    """A session that outlives the runs: a resource stops only what it started."""
    from dstl_dagster.spark import local_session, stop_session

    spark = local_session("days")
    try:
        yield
    finally:
        stop_session(spark)


def require_same(folder: Path, last: int) -> None:
    """Raises AssertionError unless both have the same totals."""
    from dstl_dagster.jobs import read_state

    for operator, key in TOTALS.items():
        mine = read_state((folder / "store").as_uri(), "days", operator).to_arrow().sort_by(key)
        theirs = pq.read_table(folder / "plain" / operator / day_of(last)).sort_by(key)
        assert mine.select([key, "sales", "total"]) == theirs.select([key, "sales", "total"]).cast(
            mine.schema
        )


def days_of(rows: int, counts: Mapping[str, int]) -> Iterator[tuple[str, Mapping[str, Sequence[Run]]]]:
    """Of each kind, `warm` or `cold`, as many days of so many sales as `counts` says: both sides' runs."""
    kinds = {"warm": (run_next, WARM_UPS, running_spark), "cold": (run_next_cold, 0, nullcontext)}
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        last = 0
        for kind, days in counts.items():
            run, warm_ups, session = kinds[kind]
            first, last = last + 1, last + warm_ups + days
            for number in range(first, last + 1):
                write_day(folder, number, rows)
            turns = {f"{who}, {kind}": partial(run, who, folder, count(first)) for who in CONTENDERS}
            with session():
                yield kind, in_turns(turns, days, warm_ups=warm_ups)
        require_same(folder, last)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=7, help="that count, of the warm session")
    parser.add_argument("--cold", type=int, default=5)
    parser.add_argument("--rows", type=int, default=16_000, help="of a day")
    parser.add_argument("--only", choices=["warm", "cold"])
    parser.add_argument("--day", nargs=3, metavar=("WHO", "FOLDER", "NUMBER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.day:
        run_day(given.day[0], Path(given.day[1]), int(given.day[2]))
        return
    print(conditions("pyspark", "pyarrow", "dagster"))
    days = {"warm": given.days, "cold": given.cold}
    for kind, runs in days_of(given.rows, {given.only: days[given.only]} if given.only else days):
        told(runs)
        ratios(runs, f"ours, {kind}", f"plain, {kind}", "1.15" if kind == "warm" else "1.05")
    print("both have the same totals")


if __name__ == "__main__":
    main()
