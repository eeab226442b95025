"""A job that follows another one, in a driver and a JVM that are to be killed in the midst of a micro-batch.

    python tests/process/following_worker.py FOLDER

Where the file `hold` says `2 written`, this process writes all of its second micro-batch, makes the file
`reached`, and waits; with `2 complete` it waits once that one's checkpoint is complete and Spark has not
noted it yet. Owns the work; killing and comparing is `test_following_kills`.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dstl_dagster.spark import checkpointed_batches, local_session, register
from dstl_dagster.spark.batch import CheckpointBatch
from tests.sessions import QUICK

_PATIENCE_SECONDS = 300.0


def main(folder: Path) -> None:
    spark = local_session(
        "following", conf=QUICK | {"spark.master": "local[2]", "spark.driver.memory": "512m"}
    )
    register(spark)
    hold = folder / "hold"
    held = hold.read_text().strip() if hold.exists() else ""

    def reach(place: str) -> None:
        if place == held:
            (folder / "reached").touch()
            threading.Event().wait(_PATIENCE_SECONDS)

    def update(batch: CheckpointBatch, rows: DataFrame) -> None:
        last = rows.where("_change_type <> 'update_before'")
        changed = last.select("name", "value", F.expr("_change_type = 'delete'").alias("gone"))
        batch.write_state(changed, operator="copy", keys=["name"], deleted="gone")
        batch.write_files(rows, f"told/{batch.attempt.checkpoint_id:03d}.jsonl")
        reach(f"{batch.attempt.checkpoint_id} written")

    each = checkpointed_batches(update, store=folder.as_uri(), job="second")

    def complete(rows: DataFrame, batch_id: int) -> None:
        each(rows, batch_id)
        reach(f"{batch_id + 1} complete")

    source = {"store": folder.as_uri(), "job": "first", "operator": "op", "table": "changes"}
    how = {"startingCheckpoint": "1", "followRestores": "true"}
    stream = spark.readStream.format("dstl").options(**source, **how).load()
    query = (
        stream.writeStream.foreachBatch(complete)
        .option("checkpointLocation", str(folder / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
