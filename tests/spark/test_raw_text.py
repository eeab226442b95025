"""Text that is not UTF-8, through real Spark, whose strings may hold any bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dstl_dagster.checkpoint import materialize
from dstl_dagster.spark import merge_state, register

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

Rows = set[tuple[str | None, ...]]


def raw(job: Job, *rows: tuple[str, str]) -> DataFrame:
    """Rows of (key, value), given as hexadecimal digits."""
    given = ", ".join(f"(X'{key}', X'{value}')" for key, value in rows)
    return job.spark.sql(
        f"SELECT CAST(k AS STRING) AS k, CAST(v AS STRING) AS v, array(CAST(v AS STRING)) AS words "
        f"FROM VALUES {given} AS t(k, v)"
    )


def hex_of(df: DataFrame) -> Rows:
    """By Spark's functions, so that no value becomes a Python string."""
    found = df.select(F.hex("k"), F.hex("v"), F.hex(F.col("words")[0])).collect()
    assert all(row[1] == row[2] for row in found)
    return {(row[0], row[1]) for row in found}


def test_bytes_are_read_back_as_spark_wrote_them(job: Job) -> None:
    """Keys and values: from the log, over a base, after a column was added, by any number of tasks."""
    job.write_state(raw(job, ("FF", "C3"), ("FE", "41"), ("4F4B", "EDA080")), keys=["k"], max_parallelism=16)
    job.write_state(raw(job, ("FF", "F0288C28"), ("", "80")), keys=["k"], partitions=3)
    rows: Rows = {("FF", "F0288C28"), ("FE", "41"), ("4F4B", "EDA080"), ("", "80")}
    assert hex_of(job.read_state(partitions=5)) == rows
    assert materialize(job.coordinator, force=True) is not None
    assert hex_of(job.read_state()) == rows
    job.write_state(raw(job, ("FE", "C0AF")).withColumn("more", F.lit(1)), keys=["k"])
    rows = rows - {("FE", "41")} | {("FE", "C0AF")}
    assert hex_of(job.read_state()) == rows
    assert job.read_state().where("more = 1").count() == 1


def test_a_merge_finds_keys_by_their_bytes(job: Job) -> None:
    """Unchanged rows are not written again, changed ones are, whatever the bytes."""
    job.write_state(raw(job, ("FF", "C3"), ("FE", "C3")), keys=["k"])
    merged = {
        "keys": ["k"],
        "schema": "k STRING, v STRING, words ARRAY<STRING>",
        "update": {"v": "new.v", "words": "new.words"},
    }
    changes = raw(job, ("FF", "C3"), ("FE", "C3C3"), ("FD", "80"))
    done = job.checkpoint(lambda attempt: ([merge_state(changes, attempt, operator="op", **merged)], []))  # type: ignore[arg-type]
    assert done.manifest.operators["op"].report.upserts == 2
    assert hex_of(job.read_state()) == {("FF", "C3"), ("FE", "C3C3"), ("FD", "80")}


def test_the_data_source_writes_and_reads_them(job: Job) -> None:
    """Through `format("dstl")`: the rows, and what changed between two checkpoints."""
    register(job.spark)
    options = {"store": job.folder.as_uri(), "job": "job", "operator": "op"}
    for number, rows in enumerate(([("FF", "C3")], [("FF", "C3C3"), ("41", "80")])):
        sink = raw(job, *rows).coalesce(1).write.format("dstl").mode("append").options(**options)
        sink.options(keys="k", idempotency_key=str(number)).save()
    source = job.spark.read.format("dstl").options(**options)
    assert hex_of(source.load()) == {("FF", "C3C3"), ("41", "80")}
    changes = source.option("table", "changes").load()
    found = {
        (row[0], row[1], row[2]) for row in changes.select("_change_type", F.hex("k"), F.hex("v")).collect()
    }
    assert found == {
        ("insert", "FF", "C3"),
        ("update_before", "FF", "C3"),
        ("update_after", "FF", "C3C3"),
        ("insert", "41", "80"),
    }
