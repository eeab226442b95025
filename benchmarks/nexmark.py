"""NEXMark's stateful queries in keyed state of this package, beside Spark's own stateful operators.

    python benchmarks/nexmark.py [--batches 20] [--events 50000] [--query q5 ...] [--kill q5]

Events come from a seed (`nexmark_events`), a file for each micro-batch, in `local[2]`. Ours is `merge_state`
in `foreachBatch`, each micro-batch a checkpoint; Spark's operators keep their state in RocksDB with changelog
checkpointing. Both give the same rows, or the run fails (`nexmark_queries` says what they are). Told for each
query and side: events a second without the first batch, median and p99 of a batch, and what a batch left in
the checkpoint folders, snapshots, bases and offsets included. No event is late and no state is dropped.

Then `--kill`: a process of each side runs the query, is killed by SIGKILL, JVM and all, once half of the
batches have ended, and another goes on. Told is the time from starting the query again until its first batch
has ended; the result is compared again. About five minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from conditions import conditions
from nexmark_events import EVENTS_SCHEMA, write_events
from nexmark_queries import QUERIES
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from dstl_dagster.spark import checkpointed_batches, local_session, register, stop_session

SIDES: Final = ("ours", "spark")
SEED = 7
CONF: Final = {
    "spark.driver.memory": "3g",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    # Otherwise one more batch without events would tell nothing but its own cost.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


def start(spark: SparkSession, folder: Path, name: str, side: str) -> StreamingQuery:
    """The query over all files that are there. Everything it keeps is in `<folder>/<name>-<side>`."""
    query, home = QUERIES[name], folder / f"{name}-{side}"
    reader = spark.readStream.schema(EVENTS_SCHEMA).option("maxFilesPerTrigger", 1)
    events = reader.parquet(str(folder / "events"))
    if side == "ours":
        store = (home / "store").as_uri()
        each = checkpointed_batches(query.apply, store=store, job=name, clean_up_every=0)
        writer = events.writeStream.foreachBatch(each)
    elif query.mode == "update":
        writer = query.streaming(events).writeStream.format("noop").outputMode("update")
    else:
        writer = query.streaming(events).writeStream.format("parquet").option("path", str(home / "rows"))
    writer = writer.option("checkpointLocation", str(home / "checkpoint"))
    return writer.trigger(availableNow=True).start()


def require_same(spark: SparkSession, folder: Path, name: str) -> int:
    """Raises AssertionError unless both sides have the same rows. Returns their number."""
    query, store = QUERIES[name], (folder / f"{name}-ours" / "store").as_uri()
    home = folder / f"{name}-spark"
    theirs: DataFrame
    if query.mode == "update":
        theirs = spark.read.format("statestore").load(str(home / "checkpoint"))
    else:
        theirs = spark.read.parquet(str(home / "rows"))
    return query.require_same(spark, store, name, theirs)


def batch_seconds(query: StreamingQuery) -> list[float]:
    query.awaitTermination()
    return [
        progress["durationMs"]["triggerExecution"] / 1000
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]


def checkpoint_bytes(folder: Path, name: str, side: str) -> int:
    """Of everything that the query keeps, apart from rows that it handed on."""
    home = folder / f"{name}-{side}"
    kept = [home / "checkpoint", home / "store"]
    return sum(path.stat().st_size for each in kept for path in each.rglob("*") if path.is_file())


def tell(name: str, side: str, seconds: Sequence[float], batch_events: int, folder: Path) -> None:
    steady = seconds[1:] or seconds
    rate = batch_events * len(steady) / sum(steady)
    told = {
        "query": name,
        "side": side,
        "events_per_s": int(rate),
        "batch_median_s": round(median(steady), 3),
        "batch_p99_s": round(float(np.quantile(steady, 0.99)), 3),
        "first_s": seconds[0],
        "bytes_a_batch": checkpoint_bytes(folder, name, side) // len(seconds),
        "batch_seconds": seconds,
    }
    print(json.dumps(told), flush=True)


def serve(name: str, side: str, folder: Path) -> None:
    """Run the query, printing a line when it starts and one for each batch that has ended."""
    spark = local_session("nexmark", conf=CONF)
    began = time.monotonic()
    query = start(spark, folder, name, side)
    ended = -1
    while True:
        active = query.isActive
        for progress in query.recentProgress:
            if progress["batchId"] > ended and progress["numInputRows"]:
                ended = progress["batchId"]
                print(json.dumps({"batch": ended, "seconds": time.monotonic() - began}), flush=True)
        if not active:
            break
        time.sleep(0.02)
    query.awaitTermination()
    stop_session(spark)


def kill_and_go_on(name: str, side: str, folder: Path, batches: int) -> float:
    """Seconds until the second process has ended a batch; no less than those of the batch itself."""
    command = [sys.executable, __file__, "--serve", name, side, str(folder)]
    for tries in ("killed", "whole"):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout is not None
        seconds = 0.0
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            told: dict[str, Any] = json.loads(line)
            seconds = seconds or told["seconds"]
            if tries == "killed" and told["batch"] >= batches // 2:
                os.killpg(process.pid, signal.SIGKILL)
                break
        status = process.wait()
        assert status == (-signal.SIGKILL if tries == "killed" else 0), f"{tries}: exit status {status}"
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--events", type=int, default=50_000, help="of a micro-batch")
    parser.add_argument("--query", nargs="+", choices=QUERIES, default=list(QUERIES))
    parser.add_argument("--kill", choices=[*QUERIES, "none"], default="q5")
    parser.add_argument("--serve", nargs=3, metavar=("QUERY", "SIDE", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve[0], given.serve[1], Path(given.serve[2]))
        return
    print(conditions("pyspark", "pyarrow"))
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_events(folder / "events", given.batches, given.events, SEED)
        spark = local_session("nexmark", conf=CONF)
        try:
            register(spark)
            for name in given.query:
                for side in SIDES:
                    seconds = batch_seconds(start(spark, folder, name, side))
                    tell(name, side, seconds, given.events, folder)
                print(f"{name}: both have the same {require_same(spark, folder, name):,} rows", flush=True)
            if given.kill != "none":
                recover(spark, folder / "killed", given.kill, given.batches, given.events)
        finally:
            stop_session(spark)


def recover(spark: SparkSession, folder: Path, name: str, batches: int, batch_events: int) -> None:
    folder.mkdir()
    write_events(folder / "events", batches, batch_events, SEED)
    for side in SIDES:
        seconds = kill_and_go_on(name, side, folder, batches)
        print(f"{name}, {side}: {seconds:.2f} s from starting it again to the end of its first batch")
    print(f"{name}, killed: both have the same {require_same(spark, folder, name):,} rows", flush=True)


if __name__ == "__main__":
    main()
