"""The one Spark of a test process, whichever folder its tests are in, and the bucket that its tasks know.

As a program it is a session's life in short, after which Java has archived the classes that tests use: each
of a run's many sessions then starts and warms up in half of the time.

    python -m tests.sessions FOLDER
    export SPARK_SUBMIT_OPTS="$(<FOLDER/options)"

Not by a `spark-defaults.conf`: its folder stands in the class path, and Java then passes over the archive.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dstl_dagster.testing.gcs_server import GCSServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_OPTIONS = "spark.driver.defaultJavaOptions"

QUICK = {
    JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # For a few rows, code generation costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
}
"""For sessions that live for seconds."""


@pytest.fixture(scope="session")
def strict_gcs() -> Iterator[GCSServer]:
    """A server that takes one update of an object a second, as the service does."""
    with GCSServer(one_update_a_second=True) as server:
        yield server


@pytest.fixture(scope="session")
def spark(strict_gcs: GCSServer) -> Iterator[SparkSession]:
    """A session on two threads that gives a task three tries. For its tasks, `gs://` is `strict_gcs`."""
    from dstl_dagster.spark import local_session, stop_session  # PySpark: not for tests that need none

    conf = QUICK | {"spark.master": "local[2,3]", "spark.driver.memory": "1g"}
    with pytest.MonkeyPatch.context() as patch:  # tasks inherit what the JVM is started with
        patch.setenv("STORAGE_EMULATOR_HOST", strict_gcs.url)
        session = local_session("tests", conf=conf)
    yield session
    stop_session(session)


def _live(folder: str, archive: Path) -> None:
    """What loads most of the classes: formats, shuffles, Python's workers, a data source, a query."""
    from dstl_dagster.spark import local_session, register, stop_session
    from dstl_dagster.spark.local import session as local
    from dstl_dagster.spark.local.java import use_java

    options = QUICK[JAVA_OPTIONS]
    if not local._archive_options(use_java()):  # a Java that makes none of itself
        options += f" -Xlog:cds*=off -XX:ArchiveClassesAtExit={archive}"
    session = local_session("archive", conf=QUICK | {JAVA_OPTIONS: options})
    register(session)
    df = session.range(0, 20, 1, 2).selectExpr("id", "id % 3 AS part", "uuid() AS u", "current_date() AS day")
    for name in ("parquet", "csv", "json"):
        df.write.format(name).partitionBy("part").save(f"{folder}/{name}")
        session.read.schema(df.schema).format(name).load(f"{folder}/{name}").collect()
    totals = {"store": f"file://{folder}/store", "job": "archive", "operator": "totals"}
    write = df.repartition(2).write.format("dstl").mode("append")
    write.options(**totals, keys="id", idempotency_key="first").save()
    state = session.read.format("dstl").options(**totals).load()
    session.conf.set("spark.sql.codegen.wholeStage", "true")
    state.join(df, "id").groupBy(df["part"]).count().orderBy("count").collect()
    stream = session.readStream.format("dstl").options(**totals, table="changes").load()
    query = stream.writeStream.foreachBatch(lambda rows, _: rows.show())
    query = query.option("checkpointLocation", f"{folder}/query").trigger(availableNow=True)
    query.start().awaitTermination()
    plain = session.createDataFrame([(1, "a")], "id long, name string")
    plain.mapInArrow(lambda batches: batches, plain.schema).collect()
    gateway: Any = session.sparkContext._gateway
    stop_session(session)
    gateway.proc.stdin.close()
    gateway.proc.wait()  # it archives as it ends


if __name__ == "__main__":
    settled = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as made:
        _live(made, settled / "classes.jsa")
    options = [QUICK[JAVA_OPTIONS]]
    if (settled / "classes.jsa").is_file():
        options += [f"-XX:SharedArchiveFile={settled / 'classes.jsa'}", "-Xlog:cds*=off"]
        # At the address that it was made for: processes share its pages.
        options += ["-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0"]
    (settled / "options").write_text(" ".join(options))
