"""A second job that follows the first, through Spark: each change once, also after a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.spark import checkpointed_batches, read_state, register
from dstl_dagster.spark.batch import CheckpointBatch

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


def test_a_second_job_follows_the_first(job: Job) -> None:
    """It dies inside a micro-batch, with everything written, and starts again: nothing is lost or twice. Then
    the first job is restored: what the second has of it is changed back, on purpose alone.
    """
    register(job.spark)
    source = {"store": job.folder.as_uri(), "job": "job", "operator": "op", "table": "changes"}
    told: list[list[tuple[Any, ...]]] = []

    def write(rows: list[tuple[Any, ...]]) -> None:
        df = job.spark.createDataFrame(rows, "name STRING, value INT, gone BOOLEAN")
        job.write_state(df, keys=["name"], deleted="gone")

    def follow(dies_in: int | None = None, **how: str) -> None:
        def update(batch: CheckpointBatch, rows: DataFrame) -> None:
            last = rows.where("_change_type <> 'update_before'")
            gone = F.col("_change_type") == "delete"
            changed = last.select("name", "value", gone.alias("gone"))
            batch.write_state(changed, operator="copy", keys=["name"], deleted="gone")
            if len(told) == dies_in:
                raise RuntimeError("killed")
            told.append(sorted(map(tuple, rows.drop("value").collect())))

        stream = job.spark.readStream.format("dstl").options(**source, **how).load()
        each = checkpointed_batches(update, store=job.folder.as_uri(), job="second")
        query = (
            stream.writeStream.foreachBatch(each)
            .option("checkpointLocation", str(job.folder / "spark"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    write([("a", 1, False), ("b", 1, False)])
    follow()
    write([("a", 2, False), ("c", 2, False)])
    write([("b", None, True)])
    with pytest.raises(StreamingQueryException, match="killed"):
        follow(dies_in=2)
    follow()

    job.coordinator.restore(2)
    with pytest.raises(StreamingQueryException, match=r"checkpoint 3 of job 'job'.*followRestores=true"):
        follow()
    write([("c", 4, False)])
    follow(followRestores="true")

    assert told == [
        [("a", "insert", 1), ("b", "insert", 1)],
        [("a", "update_after", 2), ("a", "update_before", 2), ("c", "insert", 2)],
        [("b", "delete", 3)],
        [("b", "insert", 4), ("c", "update_after", 4), ("c", "update_before", 4)],
    ]
    second = CheckpointCoordinator("second", job.coordinator.store)
    copied = read_state(job.spark, second.latest(), "copy", store=second.store)
    assert {row.name: row.value for row in copied.collect()} == {"a": 2, "b": 1, "c": 4}
    assert [each.checkpoint_id for each in second.list()] == [1, 2, 3, 4]
