"""In Spark: an aggregation beside Spark's own state store, a row by its key, files beside Spark's file sink.

Owns the sizes and the turns. Does not own the aggregation (`spark`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from conditions import conditions
from folders import fresh_folder
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from results_page import Curve, Plot, Point
from spark import BATCH_EVENTS, PARTITIONS, ROCKSDB, events_files, stream, totals
from turns import in_turns

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator
from dstl_dagster.spark import checkpointed_batches, local_session, register, stop_session, write_files
from dstl_dagster.storage import open_store

__all__ = ["in_spark"]

OURS = "dstl-dagster"
ROCKS = "Spark's groupBy on RocksDB with its changelog"
STREAM_WHY = (
    "A batch of ours is a Spark job whose rows come to the driver, DuckDB's merge and a synced checkpoint; "
    "with few keys the last two take more than Spark's own store, which syncs nothing."
)
CONF = {
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def in_spark(quick: bool) -> Iterator[Plot]:
    """All plots of one session."""
    told = f"{conditions('pyspark', 'pyarrow')}."
    spark = local_session("results", conf=CONF)
    try:
        register(spark)
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(1 << 31))
        yield from streams(
            spark, (1_000,) if quick else (10_000, 100_000, 1_000_000), 2 if quick else 5, told
        )
        yield look_ups(
            spark, (20_000,) if quick else (100_000, 1_000_000, 3_000_000), 1 if quick else 5, told
        )
        yield files(spark, (20_000,) if quick else (100_000, 300_000, 1_000_000), 1 if quick else 3, told)
    finally:
        stop_session(spark)


# -- state


def streams(spark: SparkSession, key_counts: tuple[int, ...], batches: int, told: str) -> Iterator[Plot]:
    """Micro-batches of the same number of events, with more and more keys."""
    seconds: dict[str, list[Point]] = {OURS: [], ROCKS: []}
    kib: dict[str, list[Point]] = {OURS: [], ROCKS: []}
    for key_count in key_counts:
        with fresh_folder() as folder:
            source = events_files(folder, batches * BATCH_EVENTS, key_count)
            for name, run in ((OURS, by_checkpoints), (ROCKS, by_rocksdb)):
                taken, sizes = run(spark, source, folder / "state")
                seconds[name].append(Point(key_count, taken[1:]))  # the first one starts workers
                kib[name].append(Point(key_count, [size / 1024 for size in sizes[1:]]))
    title = f"A micro-batch of {BATCH_EVENTS:,} events, aggregated"
    told = f"{told} {batches - 1} micro-batches after the first. {STREAM_WHY}"
    for file, up, found in (("seconds", "seconds", seconds), ("bytes", "KiB of state written", kib)):
        curves = [Curve(*each) for each in found.items()]
        yield Plot(f"results-stream-{file}", title, "distinct keys", up, curves, told)


def rows_of(spark: SparkSession, source: Path) -> DataFrame:
    reader = spark.readStream.schema("key BIGINT, value BIGINT").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(source))


def started(writer: Any, folder: Path) -> list[float]:
    return stream(writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start())


def by_checkpoints(spark: SparkSession, source: Path, folder: Path) -> tuple[list[float], list[int]]:
    """Seconds and bytes of state of each micro-batch."""
    run = checkpointed_batches(totals, store=(folder / "dstl").as_uri(), job="totals")
    seconds = started(rows_of(spark, source).writeStream.foreachBatch(run), folder / "query")
    done = CheckpointCoordinator("totals", open_store((folder / "dstl").as_uri())).list()
    return seconds, [each.manifest.state_bytes for each in done]


def by_rocksdb(spark: SparkSession, source: Path, folder: Path) -> tuple[list[float], list[int]]:
    """The same by Spark's own operator; the bytes are those of its changelog."""
    grouped = (
        rows_of(spark, source).groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    )
    seconds = started(grouped.writeStream.format("noop").outputMode("update"), folder / "rocks")
    versions: dict[int, int] = {}
    for path in (folder / "rocks" / "state" / "0").rglob("*.changelog"):
        version = int(path.stem.partition("_")[0])
        versions[version] = versions.get(version, 0) + path.stat().st_size
    return seconds, [size for _, size in sorted(versions.items())]


def look_ups(spark: SparkSession, row_counts: tuple[int, ...], rounds: int, told: str) -> Plot:
    """One row by its key: where the source is asked for it, and where Spark filters."""
    found: dict[str, list[Point]] = {}
    for row_count in row_counts:
        with fresh_folder() as folder:
            where = f"id = {row_count // 2}"
            place = {"store": folder.as_uri(), "job": "rows", "operator": "rows"}
            rows = spark.range(0, row_count, 1, 4).selectExpr("id", "uuid() AS name")
            written = rows.write.format("dstl").mode("append").options(**place)
            written.option("keys", "id").option("idempotency_key", "all").save()
            for name, runs in in_turns(ways_to(where, partial(_reader, spark, place)), rounds).items():
                found.setdefault(name, []).append(Point(row_count, [run.seconds for run in runs]))
    title = "One row of a state by its key, in Spark"
    curves = [Curve(*each) for each in found.items()]
    return Plot("results-look-up", title, "rows of the state", "seconds", curves, told)


def _reader(spark: SparkSession, place: Mapping[str, str]) -> DataFrameReader:
    return spark.read.format("dstl").options(**place)


def ways_to(where: str, state: Callable[[], DataFrameReader]) -> Mapping[str, Callable[[], object]]:
    return {
        "option where": lambda: state().option("where", where).load().collect(),
        "df.where": lambda: state().load().where(where).collect(),
    }


# -- files


def files(spark: SparkSession, row_counts: tuple[int, ...], rounds: int, told: str) -> Plot:
    """One file of lines, and a folder of Parquet, from several tasks."""
    found: dict[str, list[Point]] = {}
    for row_count in row_counts:
        with fresh_folder() as folder:
            made = spark.range(0, row_count, 1, 4).selectExpr("id", "id % 97 AS event", "uuid() AS name")
            made.write.option("compression", "none").parquet(str(folder / "rows"))
            df = spark.read.parquet(str(folder / "rows"))
            for name, runs in in_turns(contenders(df, folder), rounds).items():
                found.setdefault(name, []).append(Point(row_count, [run.seconds for run in runs]))
    return Plot(
        "results-files",
        "Writing files from Spark",
        "rows",
        "seconds",
        [Curve(*each) for each in found.items()],
        f"{told} Ours are synced, and published by a checkpoint of their own; Spark's file sink is neither. "
        "Of the 1.07 s CPU of a file of lines, 0.75 bring a million rows to Python, more than all of Spark's "
        "sink (0.65); joining the parts takes 0.06.",
    )


def contenders(df: DataFrame, folder: Path) -> Mapping[str, Callable[[], object]]:
    turn = iter(range(1_000_000))
    coordinator = CheckpointCoordinator("files", open_store((folder / "store").as_uri()))

    def ours(file_format: str, single: bool) -> None:
        batch = Batch.open(coordinator)
        name = f"out/{next(turn)}" + (f".{file_format}" if single else "")
        reports = write_files(
            df,
            batch,
            name,
            format=file_format,
            single_file=single,
            job_options=coordinator.job_options,
        )
        for report in reports:
            batch.add(report)
        batch.complete()

    def sparks(file_format: str, single: bool) -> None:
        rows = df.coalesce(1) if single else df
        rows.write.format(file_format).save(str(folder / f"spark-{next(turn)}"))

    def discarded() -> None:
        df.mapInArrow(lambda batches: (each for each in batches if False), df.schema).write.format(
            "noop"
        ).mode("overwrite").save()

    return {
        "rows to Python, discarded": discarded,
        "one file of JSON lines: dstl-dagster": partial(ours, "jsonl", True),
        "one file of JSON lines: Spark, coalesce(1)": partial(sparks, "json", True),
        "a folder of Parquet: dstl-dagster": partial(ours, "parquet", False),
        "a folder of Parquet: Spark's file sink": partial(sparks, "parquet", False),
    }
