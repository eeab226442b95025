"""What a checkpoint says that it cost is what the server saw: of the driver, and of Spark's tasks."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, Opening
from dstl_dagster.keyed import Manifest, load_report
from dstl_dagster.spark import CheckpointBatch
from dstl_dagster.storage import open_store
from dstl_dagster.testing.gcs_server import GCSServer

pytestmark = pytest.mark.spark


def counts(server: GCSServer) -> dict[str, int]:
    """By API method, without what Google's client asks for itself."""
    return {method: count for method, count in server.counts.items() if method != "buckets.get"}


def recorded(spark: SparkSession, coordinator: CheckpointCoordinator, name: str) -> tuple[Attempt, Manifest]:
    """Steps 1 to 4 of a batch that reads state, merges into it, writes it, and writes files."""
    df = spark.range(0, 40, 1, 3).selectExpr("id", "id * 2 AS value")
    with CheckpointBatch(coordinator, Opening(name)) as batch:
        known = batch.read_state(spark, "totals", schema="id BIGINT, value BIGINT")
        changed = df.join(known.withColumnRenamed("value", "was"), "id", "left").drop("was")
        batch.write_state(changed, operator="totals", keys=["id"])
        # Nothing changes in the second batch, so its tasks look up and have no outcome.
        batch.merge_state(
            df,
            operator="merged",
            keys=["id"],
            schema="id BIGINT, value BIGINT",
            update={"value": "old.value"},
        )
        batch.write_files(df, f"out/{name}.jsonl")
        batch.write_files(df, f"out/{name}", format="parquet")
    cost = coordinator.running_cost()
    report = load_report(coordinator.store, batch.attempt)
    manifest = coordinator.record_report(batch.attempt, report, cost=cost)
    return batch.attempt, manifest


def test_a_manifest_counts_what_the_server_saw(
    spark: SparkSession, bucket: str, strict_gcs: GCSServer
) -> None:
    """Every request of steps 1 to 4, no more and no less, in the driver and in every task."""
    strict_gcs.faults.clear()
    coordinator = CheckpointCoordinator("job", open_store(f"gs://{bucket}/below"))
    for name in ("monday", "tuesday"):
        strict_gcs.reset_counts()
        attempt, manifest = recorded(spark, coordinator, name)
        seen = counts(strict_gcs)
        assert manifest.cost is not None
        total = manifest.cost.total
        assert total.requests == sum(seen.values())
        assert total.uploads == seen["objects.insert"] + seen.get("upload.start", 0)
        assert total.composes == 0
        assert total.bytes_up > manifest.state_bytes + manifest.file_bytes
        assert [*manifest.cost.steps] == ["trigger", "persist", "record"]
        assert all(step.requests and step.seconds > 0 for step in manifest.cost.steps.values())
        coordinator.confirm(attempt)
        assert coordinator.get(attempt.checkpoint_id).manifest.cost == manifest.cost
        strict_gcs.reset_counts()
        before = coordinator.cost
        coordinator.compose_commit()
        spent, seen = coordinator.cost - before, counts(strict_gcs)
        assert spent.requests == sum(seen.values())
        assert spent.composes == seen["objects.compose"]
