"""Spark's classes as the JVM keeps them in memory, dumped once, mapped by each of a suite's JVMs.

    python -m tests.class_archive

Half of the processor time of a short session goes into loading classes. Owns the archive and how drivers
learn of it. Without one (a run of a few tests, a Java that cannot dump one) Spark starts as ever.

Source: Java's dynamic application class-data sharing (JEP 350).
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(__file__).parent.parent / "build" / "spark-classes.jsa"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""A Java that did not dump the archive passes it over, and need not say so."""


def use_it() -> None:
    """Have each driver's JVM map the archive, those of this process's children too."""
    if ARCHIVE.exists():
        os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:SharedArchiveFile={ARCHIVE} -Xshare:auto {_QUIET}")


def dump(archive: Path = ARCHIVE) -> None:
    """Do a little of everything in one session, and keep the classes it took."""
    from dstl_dagster.spark import local_session, stop_session

    archive.parent.mkdir(exist_ok=True)
    archive.unlink(missing_ok=True)
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit={archive} {_QUIET}"
    spark = local_session("class archive", conf={"spark.driver.defaultJavaOptions": options})
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = spark.range(1_000).selectExpr("id", "id % 7 as k", "cast(id as string) as s", "now() as t")
            rows.createOrReplaceTempView("rows")
            spark.sql("select k, count(*), max(s) from rows group by k order by k").collect()
            rows.write.parquet(f"{folder}/parquet")
            spark.read.parquet(f"{folder}/parquet").join(rows, "id").count()
            rows.write.csv(f"{folder}/csv", header=True)
            spark.read.csv(f"{folder}/csv", header=True).collect()
            rows.mapInArrow(lambda batches: batches, rows.schema).repartition(2).toArrow()
            stream = spark.readStream.schema(rows.schema).parquet(f"{folder}/parquet").writeStream
            query = stream.foreachBatch(lambda batch, _: batch.count()).trigger(availableNow=True)
            query.option("checkpointLocation", f"{folder}/query").start().awaitTermination()
    finally:
        jvm = spark.sparkContext._gateway.proc
        stop_session(spark)
        jvm.stdin.close()  # as the exit of this process would: the archive is written after it
        jvm.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    dump()
    print(
        f"{ARCHIVE}: {ARCHIVE.stat().st_size >> 20} MiB"
        if ARCHIVE.exists()
        else "this Java writes no archive"
    )
