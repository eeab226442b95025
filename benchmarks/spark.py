"""An aggregation in Spark with this package against Spark's own, and reading its state, in one run.

    python benchmarks/spark.py --events 5000000

Prints one JSON line per measurement, and at the end the ratios that the documentation quotes. Three parts:

* aggregation: events on many keys in micro-batches of 500,000: `merge_state` in a checkpoint, Spark's own
  `groupBy().agg` on RocksDB with its changelog, `transformWithState` with rows and with Pandas.
* bytes: what each micro-batch left on storage, ours and RocksDB's changelog.
* state: reading all of it, `format("dstl")` and `format("statestore")`, which has fresh snapshots.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.spark import checkpointed_batches, local_session, register, stop_session
from dstl_dagster.spark.batch import CheckpointBatch
from dstl_dagster.storage import open_store

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MAINTENANCE_SECONDS = 10
BATCH_EVENTS = 500_000
PARTITIONS = 2


def measured(what: str, rows: int, run: Callable[[], Any]) -> float:
    began = time.monotonic()
    run()
    seconds = time.monotonic() - began
    print(
        json.dumps(
            {"what": what, "rows": rows, "seconds": round(seconds, 3), "rows_per_s": int(rows / seconds)}
        ),
        flush=True,
    )
    return rows / seconds


def best_of(found: dict[str, list[float]], name: str) -> float:
    return max(found[name])


def events_files(folder: Path, events: int, distinct_keys: int) -> Path:
    """One Parquet file per micro-batch, in time order."""
    target = folder / "events"
    target.mkdir()
    random = np.random.default_rng(2)
    for each in range(events // BATCH_EVENTS):
        keys = random.integers(0, distinct_keys, BATCH_EVENTS, np.int64)
        values = random.integers(0, 1000, BATCH_EVENTS, np.int64)
        file = target / f"{each:04d}.parquet"
        pq.write_table(pa.table({"key": keys, "value": values}), file)
        os.utime(file, (1e9 + each, 1e9 + each))  # the file source orders files by their modification time
    return target


def totals(batch: CheckpointBatch, rows: DataFrame) -> None:
    grouped = rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    update = {"n": "coalesce(old.n, 0) + new.n", "total": "coalesce(old.total, 0) + new.total"}
    schema = "key BIGINT, n BIGINT, total BIGINT"
    batch.merge_state(grouped, operator="totals", keys=["key"], update=update, schema=schema)


class Totals(StatefulProcessor):
    """The same aggregate with `transformWithState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("totals", "n BIGINT, total BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803 - Spark's
        n, total = self._state.get() if self._state.exists() else (0, 0)
        for row in rows:
            if isinstance(row, pd.DataFrame):
                n, total = n + len(row), total + int(row["value"].sum())
            else:
                n, total = n + 1, total + row.value
        self._state.update((n, total))
        made = {"key": key[0], "n": n, "total": total}
        yield Row(**made) if not self.pandas else pd.DataFrame([made])

    def close(self) -> None:
        pass

    pandas = False


class PandasTotals(Totals):
    pandas = True


def stream(query: Any) -> list[float]:
    """Seconds of each micro-batch, including the first."""
    query.awaitTermination()
    return [
        progress["durationMs"]["triggerExecution"] / 1000
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]


def steady(what: str, seconds: list[float]) -> float:
    """Rows per second of the batches after the first, or of the only one."""
    rest = seconds[1:] or seconds
    speed = BATCH_EVENTS / statistics.mean(rest)
    print(json.dumps({"what": what, "batch_seconds": seconds, "rows_per_s": int(speed)}), flush=True)
    return speed


def aggregation(
    spark: SparkSession, folder: Path, events: int, distinct_keys: int, slow_batches: int
) -> dict[str, float]:
    source = events_files(folder, events, distinct_keys)
    few = folder / "few"
    few.mkdir()
    for path in sorted(source.iterdir())[:slow_batches]:
        shutil.copy2(path, few)

    def rows(path: Path) -> DataFrame:
        reader = spark.readStream.schema("key BIGINT, value BIGINT").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(path))

    def started(writer: Any, name: str) -> Any:
        return (
            writer.option("checkpointLocation", str(folder / f"ck-{name}")).trigger(availableNow=True).start()
        )

    run = checkpointed_batches(totals, store=(folder / "store").as_uri(), job="totals")
    found = {
        "agg: dstl": steady("agg: dstl", stream(started(rows(source).writeStream.foreachBatch(run), "dstl")))
    }

    grouped = rows(source).groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    writer = grouped.writeStream.format("noop").outputMode("update")
    found["agg: groupBy, RocksDB and changelog"] = steady(
        "agg: groupBy, RocksDB and changelog", stream(started(writer, "rocks"))
    )
    if slow_batches:
        keyed = rows(few).groupBy("key")
        output = "key BIGINT, n BIGINT, total BIGINT"
        for name, transformed in (
            ("transformWithState", lambda: keyed.transformWithState(Totals(), output, "update", "none")),
            (
                "transformWithStateInPandas",
                lambda: keyed.transformWithStateInPandas(PandasTotals(), output, "update", "none"),
            ),
        ):
            writer = transformed().writeStream.format("noop").outputMode("update")
            found[f"agg: {name}"] = steady(f"agg: {name}", stream(started(writer, name)))
    return found


def stored_bytes(folder: Path) -> dict[str, float]:
    """The median bytes of a micro-batch, over all batches."""
    coordinator = CheckpointCoordinator("totals", open_store((folder / "store").as_uri()))
    ours = [done.manifest for done in coordinator.list()]
    changed = statistics.median(manifest.changes for manifest in ours)
    files = (folder / "ck-rocks" / "state" / "0").rglob("*.changelog")
    versions: dict[str, int] = {}
    for path in files:
        versions[path.stem] = versions.get(path.stem, 0) + path.stat().st_size
    found = {
        "bytes: dstl": statistics.median(manifest.state_bytes for manifest in ours),
        "bytes: RocksDB changelog": statistics.median(versions.values()),
    }
    for name, size in found.items():
        print(json.dumps({"what": name, "bytes": size, "bytes_a_row": round(size / changed, 2)}), flush=True)
    return found


def await_snapshots(folder: Path) -> int:
    """How many versions Spark's snapshots are behind; a read replays them. Waits for Spark's maintenance."""
    deadline = time.monotonic() + 4 * MAINTENANCE_SECONDS
    partitions = [path for path in (folder / "ck-rocks" / "state" / "0").iterdir() if path.name.isdigit()]

    def newest(path: Path, kind: str) -> int:
        return max((int(each.stem.partition("_")[0]) for each in path.rglob(f"*.{kind}")), default=0)

    while True:
        behind = max(newest(path, "changelog") - newest(path, "zip") for path in partitions)
        if behind <= 0 or time.monotonic() > deadline:
            return behind
        time.sleep(0.5)


def full_state(spark: SparkSession, folder: Path, rounds: int, distinct_keys: int) -> dict[str, float]:
    print(
        json.dumps(
            {"what": "read: statestore's snapshots, versions behind", "value": await_snapshots(folder)}
        )
    )

    def read(df: DataFrame) -> Callable[[], None]:
        return lambda: df.write.format("noop").mode("overwrite").save()

    options = {"store": (folder / "store").as_uri(), "job": "totals", "operator": "totals"}
    found: dict[str, list[float]] = {}
    for each in range(rounds + 1):
        contenders = {
            "read: dstl": lambda: spark.read.format("dstl").options(**options, partitions="2").load(),
            "read: statestore": lambda: spark.read.format("statestore").load(str(folder / "ck-rocks")),
        }
        for name, made in contenders.items():
            speed = measured(name, distinct_keys, lambda made=made: read(made())())
            if each:
                found.setdefault(name, []).append(speed)
    return {name: best_of(found, name) for name in found}


def ratio(found: dict[str, float], one: str, other: str) -> None:
    if one in found and other in found:
        print(f"{one} / {other}: {found[one] / found[other]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--keys", type=int, default=100_000, help="of the events")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--slow-batches", type=int, default=2, help="micro-batches of transformWithState")
    given = parser.parse_args()
    conf = {
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
        "spark.sql.streaming.stateStore.maintenanceInterval": f"{MAINTENANCE_SECONDS}s",
    }
    spark = local_session("benchmark", conf=conf)
    found: dict[str, float] = {}
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            register(spark)
            found |= aggregation(spark, folder, given.events, given.keys, given.slow_batches)
            found |= stored_bytes(folder)
            found |= full_state(spark, folder, given.rounds, given.keys)
    finally:
        stop_session(spark)
    ratio(found, "agg: dstl", "agg: groupBy, RocksDB and changelog")
    ratio(found, "agg: dstl", "agg: transformWithState")
    ratio(found, "agg: dstl", "agg: transformWithStateInPandas")
    ratio(found, "bytes: dstl", "bytes: RocksDB changelog")
    ratio(found, "read: dstl", "read: statestore")


if __name__ == "__main__":
    main()
