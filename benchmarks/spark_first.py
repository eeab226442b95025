"""What a Spark session's first merge, and its first read, cost against those that follow.

    python benchmarks/spark_first.py [--sessions 5] [--only KIND ...]

Each session is a process of its own, and does one kind of thing six times. Told are the first and the median
of the others, in seconds and CPU, of each session.

merge          merge 10,000 rows into a state of 100,000, a whole batch
read           read that state through `format("dstl")`
parquet        what Spark alone takes for it: the same rows, grouped and written as Parquet
merge-later, read-later    as above, in a session that has written Parquet twice: what is ours of a first time

Our modules are compiled beforehand. About five minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import compileall
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from checkpoint import JOB, OPERATOR, begin, changed_keys, coordinator_on
from conditions import conditions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from turns import Run, measured

import dstl_dagster
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.spark import CheckpointBatch, local_session, register, stop_session
from dstl_dagster.storage import LocalObjectStore

ROWS, RUNS = 100_000, 6
KINDS = ("merge", "read", "parquet", "merge-later", "read-later")


def write_events(folder: Path, number: int) -> None:
    """Two rows for each of 10,000 keys."""
    keys = np.repeat(changed_keys(number), 2)
    table = pa.table({"key": keys, "value": keys % 89})
    pq.write_table(table, folder / f"events-{number}.parquet")


def grouped(spark: SparkSession, folder: Path, number: int) -> DataFrame:
    events = spark.read.schema("key BIGINT, value BIGINT").parquet(str(folder / f"events-{number}.parquet"))
    return events.groupBy("key").agg(F.sum("value").alias("total"), F.count("*").alias("events"))


def merge(spark: SparkSession, folder: Path, number: int) -> None:
    """A whole batch: steps 1 to 6."""
    coordinator = CheckpointCoordinator(JOB, LocalObjectStore(folder / "store"), owner="bench")
    with CheckpointBatch(coordinator) as batch:
        batch.merge_state(
            grouped(spark, folder, number),
            operator=OPERATOR,
            keys=["key"],
            schema="key BIGINT, total BIGINT, events BIGINT, name STRING",
            update={"total": "coalesce(old.total, 0) + new.total", "events": "old.events + new.events"},
        )
    assert batch.report is not None
    coordinator.record_report(batch.attempt, batch.report)
    coordinator.confirm(batch.attempt)
    coordinator.compose_commit()


def read(spark: SparkSession, folder: Path, number: int) -> None:
    del number
    options = {"store": (folder / "store").as_uri(), "job": JOB, "operator": OPERATOR}
    register(spark)
    assert spark.read.format("dstl").options(**options).load().agg(F.sum("total")).head() is not None


def parquet(spark: SparkSession, folder: Path, number: int) -> None:
    grouped(spark, folder, number).write.mode("overwrite").parquet(str(folder / "out"))


def session(kind: str, folder: Path) -> None:
    """Print what each run took in a new session, as JSON."""
    name, _, later = kind.partition("-")
    act: Callable[[SparkSession, Path, int], None] = {"merge": merge, "read": read, "parquet": parquet}[name]
    spark = local_session("first")
    for number in (1, 2) if later else ():
        parquet(spark, folder, number)
    found = [measured(lambda number=number: act(spark, folder, number)) for number in range(1, RUNS + 1)]
    stop_session(spark)
    print(json.dumps([[run.seconds, run.cpu] for run in found]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sessions", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--session", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.session:
        session(given.session[0], Path(given.session[1]))
        return
    print(conditions("pyspark", "pyarrow"))
    # As an installer does: where byte code is not written, each process compiles what it imports.
    compileall.compile_dir(Path(dstl_dagster.__file__).parent, quiet=2)
    compare(given.only, given.sessions)


def runs_of(kind: str) -> list[Run]:
    """The runs of a new session."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        begin(coordinator_on(LocalObjectStore(folder / "store")), ROWS)
        for number in range(1, RUNS + 1):
            write_events(folder, number)
        command = [sys.executable, __file__, "--session", kind, scratch]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [Run(*each) for each in json.loads(done.stdout.splitlines()[-1])]


def compare(kinds: Sequence[str], sessions: int) -> None:
    shares: dict[str, list[tuple[float, float]]] = {}
    for _ in range(sessions):
        for kind in kinds:
            runs = runs_of(kind)
            rest = Run(median(run.seconds for run in runs[1:]), median(run.cpu for run in runs[1:]))
            shares.setdefault(kind, []).append((runs[0].seconds / rest.seconds, runs[0].cpu / rest.cpu))
            print(f"{kind:8} first {runs[0]}, then {' '.join(map(str, runs[1:]))}", flush=True)
    for kind, each in shares.items():
        clock, cpu = (median(one[side] for one in each) for side in (0, 1))
        print(f"{kind}: first / following {clock:.1f}; of CPU {cpu:.1f}; aim 2")


if __name__ == "__main__":
    main()
