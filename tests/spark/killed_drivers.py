"""A Dagster run with a Spark of its own, whose JVM is to be killed while it works.

    python tests/spark/killed_drivers.py FOLDER

The op's first task stops while it has rows, after the JVM's process id is in the file `jvm`.

Owns the work, which another driver continues. Killing and comparing is `test_killed_drivers`.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
from pyspark import cloudpickle

from dstl_dagster import ChangelogStorageResource, build_checkpoint_job
from dstl_dagster.orchestration.inject.resources import SparkSessionResource
from tests.sessions import JAVA_OPTIONS, QUICK

JOB = "killed"
FOLDER, TOKEN = "DSTL_KILLED_FOLDER", "dstl/killed"
UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
_PATIENCE_SECONDS = 120.0

if __name__ != "__main__":
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import this module


@dg.op(out=dg.Out(dict))
def write_day(
    context: dg.OpExecutionContext, changelog: ChangelogStorageResource, spark: SparkSessionResource
) -> dict:
    """The user's op. In the first run its tasks wait for somebody to kill the JVM."""
    folder = Path(os.environ[FOLDER])
    session = spark.spark_session
    reached = folder / "task"
    if not reached.exists():
        jvm = session.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
        (folder / "jvm").write_text(str(jvm))

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = not reached.exists()
        for batch in batches:
            yield batch
            if first:
                reached.touch()
                threading.Event().wait(_PATIENCE_SECONDS)

    rows = session.range(10).selectExpr("id", "id * 10 AS value").repartition(2)
    with changelog.checkpoint(context, JOB) as batch:
        held = rows.mapInArrow(hold, "id BIGINT, value BIGINT")
        batch.write_state(held, operator="totals", keys=["id"])
    return batch.reference


def day() -> dg.JobDefinition:
    """The five steps in one process: it is the JVM that dies, and so removes none of its temporary files."""
    folder = Path(os.environ[FOLDER])
    lean = {
        "spark.driver.memory": "512m",
        "spark.sql.codegen.wholeStage": "false",
        JAVA_OPTIONS: f"{QUICK[JAVA_OPTIONS]} {UNVERIFIED} -Djava.io.tmpdir={folder}",
    }
    return build_checkpoint_job(
        "day",
        write_day,
        resource_defs={
            "changelog": ChangelogStorageResource(uri=(folder / "store").as_uri()),
            "spark": SparkSessionResource(conf=lean),
        },
        executor_def=dg.in_process_executor,
    )


def run_day(failed_run: str | None = None) -> bool:
    """One run, or the re-execution of one from its failure; whether it succeeded."""
    with dg.DagsterInstance.get() as instance:
        options = None if failed_run is None else dg.ReexecutionOptions.from_failure(failed_run, instance)
        with dg.execute_job(
            dg.reconstructable(day),
            instance=instance,
            tags={TOKEN: "1"},
            reexecution_options=options,
            raise_on_error=False,
        ) as result:
            return result.success


def main() -> int:
    os.environ[FOLDER] = sys.argv[1]
    return 0 if run_day() else 3


if __name__ == "__main__":
    sys.exit(main())
