"""The streaming job itself: state per aircraft, and two sets of files, in one checkpoint per micro-batch.

Run it, kill it, run it again: it resumes from its last checkpoint.

    python -m dstl_replay.job --folder /tmp/replay --rows-per-batch 40000
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from dstl_dagster.spark import (
    CheckpointBatch,
    by_key_group,
    checkpointed_batches,
    local_session,
    register,
    stop_session,
)
from dstl_replay.source import FlightsReplay, replay_file

__all__ = ["AIRCRAFT", "FLIGHT_KEYS", "JOB", "LATE_MINUTES", "start", "update"]

JOB: Final = "replay"
LATE_MINUTES: Final = 60
FLIGHT_KEYS: Final = ("scheduled", "carrier", "flight", "origin")
AIRCRAFT: Final = "tail_number STRING, flights BIGINT, delay_minutes BIGINT, last_seen TIMESTAMP_NTZ"


def update(batch: CheckpointBatch, flights: DataFrame) -> None:
    """Apply one micro-batch: totals of the aircraft that flew, the late flights, and all flights."""
    totals = (
        flights.where("tail_number IS NOT NULL")
        .groupBy("tail_number")
        .agg(
            F.count("*").alias("flights"),
            F.coalesce(F.sum("delay_minutes"), F.lit(0)).alias("delay_minutes"),
            F.max("scheduled").alias("last_seen"),
        )
    )
    batch.merge_state(
        totals,
        operator="aircraft",
        keys=["tail_number"],
        schema=AIRCRAFT,
        update={
            "flights": "coalesce(old.flights, 0) + new.flights",
            "delay_minutes": "coalesce(old.delay_minutes, 0) + new.delay_minutes",
            "last_seen": "greatest(old.last_seen, new.last_seen)",
        },
    )
    number = f"{batch.attempt.checkpoint_id:06d}"
    late = flights.where(F.col("delay_minutes") >= LATE_MINUTES)
    ordered = late.repartitionByRange(2, *FLIGHT_KEYS).sortWithinPartitions(*FLIGHT_KEYS)
    batch.write_files(ordered, f"late/{number}.jsonl")
    by_carrier = flights.repartition(2, "carrier").sortWithinPartitions(*FLIGHT_KEYS)
    batch.write_files(by_carrier, f"flights/{number}", format="parquet")


def start(
    spark: SparkSession, folder: Path, rows_per_batch: int, *, seconds: float = 0.0, sink: bool = False
) -> StreamingQuery:
    """Start the query. Without `seconds` it ends with the end of the year.

    Args:
        seconds: between batches, so that the year passes at that rate; 0: as fast as it goes.
        sink: write each flight into state through the data source, instead of calling `update`.
    """
    spark.dataSource.register(FlightsReplay)
    flights = (
        spark.readStream.format("flights-replay")
        .option("path", str(replay_file(folder / "source")))
        .option("rows_per_batch", str(rows_per_batch))
        .load()
    )
    store = (folder / "store").as_uri()
    if sink:
        register(spark)
        options = {"store": store, "job": JOB, "operator": "flights", "keys": ",".join(FLIGHT_KEYS)}
        writer = by_key_group(flights, FLIGHT_KEYS).writeStream.format("dstl").options(**options)
    else:
        writer = flights.writeStream.foreachBatch(checkpointed_batches(update, store=store, job=JOB))
    writer = writer.option("checkpointLocation", str(folder / "spark-checkpoints"))
    paced = (
        writer.trigger(processingTime=f"{seconds} seconds") if seconds else writer.trigger(availableNow=True)
    )
    return paced.start()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows-per-batch", type=int, default=40_000)
    parser.add_argument("--seconds", type=float, default=0.0, help="between batches")
    parser.add_argument("--sink", action="store_true", help="through the data source, state only")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    # A failing task is tried three times, as on a cluster.
    spark = local_session("replay", conf={"spark.master": "local[2,3]"})
    try:
        start(
            spark, given.folder.resolve(), given.rows_per_batch, seconds=given.seconds, sink=given.sink
        ).awaitTermination()
    finally:
        stop_session(spark)


if __name__ == "__main__":
    main()
