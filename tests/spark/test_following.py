"""A second job that follows the first, through Spark: each change once, also after a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceStreamReader

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ConflictError, InvalidInputError
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
    says_where = hasattr(DataSourceStreamReader, "getDefaultReadLimit")  # since PySpark 4.2

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
            told.append(sorted(map(tuple, rows.drop("value", "_commit_timestamp").collect())))

        stream = job.spark.readStream.format("dstl").options(**source, **how).load()
        each = checkpointed_batches(update, store=job.folder.as_uri(), job="second")
        writer = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(job.folder / "spark"))
        while True:  # PySpark 4.1 ends after one micro-batch
            before = len(told)
            writer.trigger(availableNow=True).start().awaitTermination()
            if len(told) == before or says_where:
                break

    write([("a", 1, False), ("b", 1, False)])
    follow()
    write([("a", 2, False), ("c", 2, False)])
    write([("b", None, True)])
    with pytest.raises(StreamingQueryException, match="killed"):
        follow(dies_in=2)
    follow()

    job.coordinator.restore(2)
    with pytest.raises(ConflictError, match=r"checkpoint 3 of job 'job'.*followRestores=true"):
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


def test_a_renamed_column_is_told_in_the_new_name_after_the_query_started_again(job: Job) -> None:
    """The recipe of the docs, which renames the column of its copy, too: the query ends before the rename,
    and nothing becomes null, also in rows that do not change.
    """
    register(job.spark)
    source = {"store": job.folder.as_uri(), "job": "job", "operator": "op", "table": "changes"}
    told: list[tuple[Any, ...]] = []

    def load() -> DataFrame:
        return job.spark.readStream.format("dstl").options(**source).load()

    def follow(stream: DataFrame, **how: Any) -> None:
        def update(batch: CheckpointBatch, rows: DataFrame) -> None:
            last = rows.where("_change_type <> 'update_before'")
            changed = last.drop("_change_type", "_checkpoint_id", "_commit_timestamp")
            batch.write_state(changed, operator="copy", keys=["name"], **how)
            told.extend(sorted(map(tuple, rows.drop("_commit_timestamp").collect())))

        query = (
            stream.writeStream.foreachBatch(
                checkpointed_batches(update, store=job.folder.as_uri(), job="second")
            )
            .option("checkpointLocation", str(job.folder / "spark"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    job.write_state(job.spark.sql("SELECT * FROM VALUES ('a', 1), ('b', 1) AS t(name, value)"), keys=["name"])
    stream = load()
    follow(stream)
    job.write_state(job.spark.sql("SELECT 'a' AS name, 2 AS value"), keys=["name"])
    renamed = job.spark.sql("SELECT 'a' AS name, 3000000000L AS amount")
    job.write_state(renamed, keys=["name"], rename_columns={"value": "amount"})
    if not hasattr(DataSourceStreamReader, "getDefaultReadLimit"):
        follow(stream)  # PySpark 4.1 asks such a query once how far it goes: it ends before the rename
    with pytest.raises(InvalidInputError, match=r"'value' is now 'amount'.*start the query again"):
        follow(stream)
    follow(load(), rename_columns={"value": "amount"})
    assert told == [
        ("a", 1, "insert", 1),
        ("b", 1, "insert", 1),
        ("a", 1, "update_before", 2),
        ("a", 2, "update_after", 2),
        ("a", 2, "update_before", 3),
        ("a", 3000000000, "update_after", 3),
    ]
    second = CheckpointCoordinator("second", job.coordinator.store)
    copied = read_state(job.spark, second.latest(), "copy", store=second.store)
    assert sorted(map(tuple, copied.collect())) == sorted(map(tuple, job.read_state().collect()))
