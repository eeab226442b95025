"""Archiving Spark's classes: one session that does a little of everything, and what its JVM took is kept.

Owns what that session does. Does not own the archive's place or how sessions find it (`local.class_archive`).
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dstl_dagster.errors import ConflictError
from dstl_dagster.spark.batch import CheckpointBatch
from dstl_dagster.spark.data_source import register
from dstl_dagster.spark.foreach_batch import checkpointed_batches
from dstl_dagster.spark.local.class_archive import ArchiveWriter
from dstl_dagster.spark.local.java import use_java
from dstl_dagster.spark.local.session import local_session, running_session, spark_of_a_launch, stop_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["archive_classes"]

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for seconds; the archive serves all others as well."""


def archive_classes() -> Path:
    """Write the archive that later local sessions of this user, Java and Spark map; returns its folder.

    Takes about half a minute and 200 MB. Call it in a process without a session, such as a step of an
    image's build; an archive that is there is replaced. With another Java or Spark there is none until this
    is called again.

    Raises: InvalidInputError (kind `no_java`). ConflictError if a session is running here.
        UnavailableError if no folder can be written, if another process is writing the archive, or if this
        Java dumps none.
    """
    if running_session() is not None:
        raise ConflictError("a session is running in this process; archive classes in one without")
    with ArchiveWriter(os.environ, use_java(), spark_of_a_launch()) as archive:
        options = {"spark.driver.defaultJavaOptions": f"{_QUICK} {archive.java_options}"}
        spark = local_session("archive classes", conf=options)
        gateway = spark.sparkContext._gateway
        assert gateway is not None  # of a session in local mode
        jvm = gateway.proc
        done = False
        try:
            with TemporaryDirectory() as folder:
                _work(spark, Path(folder))
            done = True
        finally:
            stop_session(spark)
            if not done:
                jvm.kill()  # nobody waits for the archive any more
        jvm.stdin.close()  # as the exit of this process would: the JVM ends, and writes the archive
        jvm.wait()
        return archive.publish()


def _work(spark: SparkSession, folder: Path) -> None:
    """What jobs do, once, with a few rows: a query, files in the common formats, state, a stream."""
    rows = spark.range(1_000).selectExpr("id", "id % 7 as k", "cast(id as string) as s", "now() as t")
    rows.createOrReplaceTempView("rows")
    spark.sql("select k, count(*), max(s), avg(id) from rows group by k order by k").collect()
    spark.sql("select *, row_number() over (partition by k order by t, id) as n from rows").collect()
    for kind in ("csv", "json", "parquet"):
        path = str(folder / kind)
        rows.write.format(kind).option("header", True).save(path)
        spark.read.schema(rows.schema).format(kind).option("header", True).load(path).join(rows, "id").count()
    _checkpoints(spark, rows, folder)


def _checkpoints(spark: SparkSession, rows: DataFrame, folder: Path) -> None:
    register(spark)
    state = {"store": (folder / "store").as_uri(), "job": "archive", "operator": "totals"}

    def update(batch: CheckpointBatch, given: DataFrame) -> None:
        batch.merge_state(
            given.groupBy("k").count(),
            operator="totals",
            keys=["k"],
            schema="k BIGINT, count BIGINT",
            update={"count": "coalesce(old.count, 0) + new.count"},
        )
        batch.write_files(given, f"published/{batch.attempt.checkpoint_id}.jsonl")

    stream = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1)
    query = stream.parquet(str(folder / "parquet")).writeStream.option(
        "checkpointLocation", str(folder / "query")
    )
    each = checkpointed_batches(update, store=state["store"], job=state["job"])
    query.foreachBatch(each).trigger(availableNow=True).start().awaitTermination()
    spark.read.format("dstl").options(**state).load().agg({"count": "sum"}).collect()
    written = rows.dropDuplicates(["k"]).select("k", "id").write.format("dstl").mode("append")
    written.options(**{**state, "job": "written"}, keys="k", idempotency_key="once").save()
