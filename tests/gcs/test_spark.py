"""Spark on a bucket: batches, streams and files, and the kinds of bucket that there are."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator, Opening
from dstl_dagster.settings import GSFileSystemOptions, JobOptions
from dstl_dagster.spark import CheckpointBatch, by_key_group, read_state, register
from dstl_dagster.storage import open_store
from dstl_dagster.testing.gcs_server import GCSServer
from tests.gcs.steps import complete

pytestmark = pytest.mark.spark


def run_batch(coordinator: CheckpointCoordinator, df: DataFrame, name: str) -> Checkpoint:
    """One checkpoint: the rows are state, one file of lines, and folders of Parquet by a value."""
    with CheckpointBatch(coordinator, Opening(name)) as batch:
        batch.write_state(df, operator="totals", keys=["id"])
        batch.write_files(df.sortWithinPartitions("id"), f"{coordinator.store.uri}/out/{name}.jsonl")
        parts = df.selectExpr("*", "concat(id % 2, ':/') AS odd")
        into = f"{coordinator.store.uri}/out/{name}"
        batch.write_files(parts, into, format="parquet", partition_by=["odd"])
    done = complete(coordinator, batch)
    coordinator.clean_up()
    return done


def names(store_uri: str, prefix: str = "") -> list[str]:
    return [stat.name for stat in open_store(store_uri).list(prefix)]


@pytest.mark.parametrize(
    "kind",
    [
        "encrypted",
        "entropy",
        *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("plain", "temporary bucket")),
    ],
)
def test_state_and_files_of_two_batches(
    spark: SparkSession, bucket: str, strict_gcs: GCSServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are read back as written, and of what was temporary nothing is left."""
    # No listing has a checksum, and no answer the size of an empty object, such as a mark.
    monkeypatch.setattr(strict_gcs, "omit_empty_sizes", kind == "encrypted")
    scratch = f"{bucket}-scratch"
    strict_gcs.create_bucket(scratch)
    if kind == "encrypted":
        bucket = f"{bucket}-encrypted"
        strict_gcs.create_bucket(bucket, encryption={"defaultKmsKeyName": "projects/p/key"})
    options = GSFileSystemOptions(
        writer_temporary_bucket_name=scratch if kind in ("temporary bucket", "entropy") else None,
        filesink_entropy_enabled=kind == "entropy",
    )
    store = open_store(f"gs://{bucket}/below")
    coordinator = CheckpointCoordinator("job", store, JobOptions.of(options))
    first = spark.range(0, 40, 1, 3).selectExpr("id", "id * 2 AS value")
    second = spark.range(30, 50, 1, 2).selectExpr("id", "-id AS value")
    for name, df in (("monday", first), ("tuesday", second)):
        done = run_batch(coordinator, df, name)
        rows = {row.id: row.value for row in df.collect()}
        lines = [json.loads(line) for line in store.get(f"out/{name}.jsonl").splitlines()]
        assert {line["id"]: line["value"] for line in lines} == rows
        parts = [stat.name for stat in store.list(f"out/{name}/")]
        assert {part.split("/")[2] for part in parts} == {"odd=0%3A%2F", "odd=1%3A%2F"}
        assert sum(pq.read_table(io.BytesIO(store.get(part))).num_rows for part in parts) == len(rows)
    state = {row.id: row.value for row in read_state(spark, done, "totals", store=store).collect()}
    assert state == {n: 2 * n for n in range(30)} | {n: -n for n in range(30, 50)}
    assert names(f"gs://{bucket}", ".inprogress/") == []
    assert names(f"gs://{scratch}") == []


def test_the_sink_takes_a_batch_and_a_stream(spark: SparkSession, bucket: str, tmp_path: Path) -> None:
    """A batch written twice counts once; a query that is started twice goes on where it stood."""
    register(spark)
    given = {"store": f"gs://{bucket}/below", "job": "job", "operator": "op", "keys": "id"}
    batch = by_key_group(spark.range(10).selectExpr("id", "'batch' AS source"), ["id"])
    for _ in range(2):
        batch.write.format("dstl").mode("append").options(**given, idempotency_key="monday").save()
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    meant = {"execution.state-recovery.ignore-unclaimed-state": "true"}
    for start in (5, 15):
        lines = "".join(f'{{"id":{n},"source":"stream"}}\n' for n in range(start, start + 10))
        (inbox / f"{start}.json").write_text(lines)
        events = spark.readStream.schema("id BIGINT, source STRING").json(str(inbox))
        events.writeStream.format("dstl").options(
            **given, owner="query", checkpointLocation=str(tmp_path / "ck"), **meant
        ).trigger(availableNow=True).start().awaitTermination()
    loaded = spark.read.format("dstl").options(store=given["store"], job="job", operator="op").load()
    expected = {n: "batch" if n < 5 else "stream" for n in range(25)}
    assert {row.id: row.source for row in loaded.collect()} == expected
    coordinator = CheckpointCoordinator("job", open_store(given["store"]))
    assert [done.checkpoint_id for done in coordinator.list()] == [1, 2, 3]
