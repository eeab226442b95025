"""Dagster and Spark on a bucket: the resources that users of Google Cloud have, and a job outside Dagster.

The bucket is encrypted with a Cloud KMS key of its own: its listings tell no checksums. (`test_demo` has a
plain one.)
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

from typing import Any

import dagster as dg
import pytest
from dagster_gcp import GCSResource
from dagster_pyspark import PySparkResource
from pyspark.sql import SparkSession

from dstl_dagster import (
    ChangelogStorageResource,
    JobAssets,
    RecoverableWriterResource,
    build_checkpoint_sensor,
    build_state_asset,
)
from dstl_dagster.checkpoint import CheckpointCoordinator, Opening
from dstl_dagster.spark import CheckpointBatch, read_state
from dstl_dagster.storage import open_store
from dstl_dagster.testing.gcs_server import GCSServer
from tests.gcs.steps import complete

pytestmark = [pytest.mark.spark, pytest.mark.dagster]

JOB = JobAssets("clicks", operators=("totals",))
DAYS = dg.DailyPartitionsDefinition(start_date="2024-01-01", end_date="2024-02-01")


@dg.op(ins={"after": dg.In(dg.Nothing)}, out=dg.Out(dict))
def update(
    context: dg.OpExecutionContext,
    changelog: ChangelogStorageResource,
    files: RecoverableWriterResource,
    pyspark: PySparkResource,
) -> dict[str, Any]:
    """A day of ten rows."""
    day = context.partition_key
    with changelog.checkpoint(context, JOB.job, source="days") as batch:
        rows = pyspark.spark_session.range(10).selectExpr("id", f"'{day}' AS seen")
        batch.write_state(rows, operator="totals", keys=["id"])
        batch.write_files(rows, files.uri_of(f"{day}.jsonl"), single_file=True)
    return batch.reference


def make_outside(spark: SparkSession, coordinator: CheckpointCoordinator, day: str) -> None:
    """One checkpoint of a PySpark job that knows nothing of Dagster."""
    with CheckpointBatch(coordinator, Opening(day)) as batch:
        batch.write_state(
            spark.range(5, 15).selectExpr("id", f"'{day}' AS seen"), operator="totals", keys=["id"]
        )
    complete(coordinator, batch)


# Dagster's own code reads it, for any nested resource.
@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
def test_a_run_and_a_job_outside_share_one_history(
    spark: SparkSession, bucket: str, strict_gcs: GCSServer
) -> None:
    """The run makes checkpoint 1 with dagster-gcp's client in dagster-pyspark's session; a sensor sees 2."""
    strict_gcs.create_bucket(f"{bucket}-kms", encryption={"defaultKmsKeyName": "projects/p/key"})
    uri = f"gs://{bucket}-kms/clicks"
    gcs = GCSResource(project="test")
    changelog = ChangelogStorageResource(uri=uri, gcs=gcs)
    resources = {
        "changelog": changelog,
        "files": RecoverableWriterResource(uri=f"{uri}/out", gcs=gcs),
        "pyspark": PySparkResource(spark_config={}),
    }
    coordinator = CheckpointCoordinator(JOB.job, open_store(uri), owner="spark-submit")
    with dg.DagsterInstance.ephemeral() as instance:
        state = build_state_asset(JOB, update, partitions_def=DAYS)
        run = dg.materialize([state], partition_key="2024-01-01", instance=instance, resources=resources)
        assert run.success
        said = [entry.user_message for entry in instance.all_logs(run.run_id)]
        assert any(spark.sparkContext.applicationId in line for line in said), "and where its page is"
        assert len(coordinator.store.get("out/2024-01-01.jsonl").splitlines()) == 10
        make_outside(spark, coordinator, "2024-01-02")
        with dg.build_sensor_context(instance=instance, resources={"changelog": changelog}) as context:
            result = build_checkpoint_sensor(JOB, partitions_def=DAYS)(context)
        assert isinstance(result, dg.SensorResult)
        told = {event.partition for event in result.asset_events if event.asset_key == JOB.checkpoints_key}
        assert "chk-00000002" in told
    latest = coordinator.latest()
    assert latest is not None
    rows = {
        row.id: row.seen for row in read_state(spark, latest, "totals", store=coordinator.store).collect()
    }
    assert rows == {n: "2024-01-01" if n < 5 else "2024-01-02" for n in range(15)}
