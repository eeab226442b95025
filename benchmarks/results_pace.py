"""Rows by which users choose, in Spark: NEXMark, a small merge, a sink, a session's first runs, a day's job.

Owns the sizes, and why a row is behind. Does not own what is run (`nexmark`, `spark_merge`, `spark_sink`,
`spark_first`, `spark_partition`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import nexmark
import spark_first
import spark_merge
import spark_partition
import spark_sink
from checkpoint import begin, coordinator_on
from conditions import conditions
from folders import fresh_folder
from pyspark import cloudpickle
from results_page import Curve, Plot, Point
from turns import in_turns

from dstl_dagster.checkpoint import materialize
from dstl_dagster.spark import local_session, register, stop_session
from dstl_dagster.storage import LocalObjectStore

__all__ = ["pace"]

OURS = "dstl-dagster"
NEXMARK_WHY = (
    "A batch of ours is one Spark job whose rows come to the driver, DuckDB's merge with the state, and a "
    "synced checkpoint; Spark's operators find their state open in the executor, and sync nothing. After a "
    "kill, 9.9 of the 10.2 s CPU until the first batch ends are the JVM's, which plans and compiles anew."
)
MERGE_WHY = (
    "Of ours three fifths are the look-up: 10,000 spread keys are in nearly every slice of the state, which "
    "is read and decoded as a whole."
)
SINK_WHY = (
    "Of what ours adds to moving rows to Python, a third each are zstd, the sort by key group with encoding, "
    "and the sync of the files."
)
FIRST_WHY = (
    "Parquet is read in the JVM alone; a first read of ours starts Python workers twice, to plan and to read."
)


def pace(quick: bool) -> Iterator[Plot]:
    """One plot after the other, each with a session of its own."""
    told = f"{conditions('pyspark', 'pyarrow')}."
    yield queries(4 if quick else 20, 50_000, told)
    yield merges((20_000,) if quick else (1_000_000, 10_000_000), 1 if quick else 5, told)
    yield sinks((20_000,) if quick else (1_000_000, 4_000_000), 1 if quick else 5, told)
    yield first_runs(1 if quick else 3, told)
    yield days(2_000 if quick else 16_000, {"warm": 1, "cold": 1} if quick else {"warm": 7, "cold": 5})


def queries(batches: int, events: int, told: str) -> Plot:
    """Of each micro-batch but the first; both sides give the same rows."""
    names = {"ours": OURS, "spark": "Spark's stateful operators on RocksDB"}
    found: dict[str, list[Point]] = {side: [] for side in names}
    spark = local_session("nexmark", conf=nexmark.CONF)
    try:
        register(spark)
        with TemporaryDirectory() as scratch:
            folder = Path(scratch)
            nexmark.write_events(folder / "events", batches, events, nexmark.SEED)
            for name in nexmark.QUERIES:
                for side, points in found.items():
                    seconds = nexmark.batch_seconds(nexmark.start(spark, folder, name, side))
                    rates = [events / each for each in seconds[1:]]
                    points.append(Point(int(name.removeprefix("q")), rates))
                nexmark.require_same(spark, folder, name)
    finally:
        stop_session(spark)
    curves = [Curve(names[side], points) for side, points in found.items()]
    told = f"{told} Micro-batches of {events:,} events. {NEXMARK_WHY}"
    return Plot("results-nexmark", "NEXMark in Spark", "query", "events a second", curves, told)


def merges(row_counts: Sequence[int], rounds: int, told: str) -> Plot:
    """Beside the same aggregation that is written as Parquet."""
    names = {"merge": OURS, "parquet": "the rows alone, written as Parquet"}
    found: dict[str, list[Point]] = {}
    for row_count in row_counts:
        with TemporaryDirectory() as scratch, fresh_folder() as root:
            folder = Path(scratch)
            coordinator = coordinator_on(LocalObjectStore(root / "store"))
            begin(coordinator, row_count)
            materialize(coordinator, force=True)
            for number in range(1, rounds + spark_merge.WARM_UPS + 1):
                spark_merge.write_events(folder, number, row_count)
            spark = local_session("merge", conf={"spark.driver.memory": "2g"})
            try:
                job = partial(spark_merge.aggregated, spark, folder)
                pair = spark_merge.contenders(job, 1, coordinator, folder)
                for name, runs in in_turns(pair, rounds, warm_ups=spark_merge.WARM_UPS).items():
                    found.setdefault(names[name], []).append(Point(row_count, [run.seconds for run in runs]))
            finally:
                stop_session(spark)
    curves = [Curve(*each) for each in found.items()]
    told = f"{told} Ours: whole batches, synced. {MERGE_WHY}"
    title = "Merging 10,000 rows of keys spread over the state, in Spark"
    return Plot("results-merge", title, "rows of the state", "seconds", curves, told)


def sinks(row_counts: Sequence[int], rounds: int, told: str) -> Plot:
    """Rows of a long and 100 random bytes, on a disk."""
    found: dict[str, list[Point]] = {}
    spark = local_session("sink", conf={"spark.driver.memory": "4g"})
    try:
        register(spark)
        cloudpickle.register_pickle_by_value(spark_sink)  # workers do not find this folder
        spark.dataSource.register(spark_sink.Discard)
        for row_count in row_counts:
            with TemporaryDirectory() as scratch, fresh_folder() as disk:
                df = spark_sink.source(spark, Path(scratch) / "source", row_count)
                runs = in_turns(spark_sink.contenders(df, disk, row_count, "disk"), rounds)
                names = ("rows to Python, discarded", OURS, "Parquet, uncompressed")
                for name, each in zip(names, runs.values(), strict=True):
                    found.setdefault(name, []).append(Point(row_count, [run.seconds for run in each]))
    finally:
        stop_session(spark)
    curves = [Curve(*each) for each in found.items()]
    told = (
        f"{told} Ours are synced, and published by a checkpoint of their own; Parquet is neither. {SINK_WHY}"
    )
    return Plot("results-sink", "Keyed rows through the sink", "rows", "seconds", curves, told)


def first_runs(sessions: int, told: str) -> Plot:
    """Of sessions that are processes of their own."""
    names = {"merge": "merge 10,000 rows into 100,000", "read": "read the state", "parquet": "Parquet alone"}
    found = {kind: [spark_first.runs_of(kind) for _ in range(sessions)] for kind in names}
    curves = [
        Curve(
            names[kind],
            [Point(run + 1, [each[run].seconds for each in of_kind]) for run in range(spark_first.RUNS)],
        )
        for kind, of_kind in found.items()
    ]
    title = "The first runs of a Spark session"
    return Plot("results-first", title, "run", "seconds", curves, f"{told} {FIRST_WHY}")


def days(rows: int, counts: Mapping[str, int]) -> Plot:
    """Of Dagster jobs; both sides have the same totals at the end."""
    names = {
        "ours, warm": OURS,
        "plain, warm": "plain Parquet",
        "ours, cold": f"{OURS}, in a process of its own",
        "plain, cold": "plain Parquet, in a process of its own",
    }
    curves = [
        Curve(names[name], [Point(rows, [run.seconds for run in runs])])
        for _, both in spark_partition.days_of(rows, counts)
        for name, runs in both.items()
    ]
    told = (
        f"{conditions('pyspark', 'pyarrow', 'dagster')}. Sales become totals by customer and by "
        "product, on top of the day before, and a file. Ours are synced and published by a checkpoint; plain "
        "is neither, and writes all totals anew."
    )
    title = "A day's partition in a Dagster job with Spark"
    return Plot("results-day", title, "sales of the day", "seconds", curves, told)
