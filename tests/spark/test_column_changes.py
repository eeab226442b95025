"""Columns that a Spark batch drops and renames: written, merged and read by the new names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.spark import merge_state, register, write_state

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in df.collect())


def test_a_job_drops_and_renames_columns(job: Job) -> None:
    """Over its old log, by every way to read it; the request may stay for the next batch."""
    job.write_state(job.spark.sql("SELECT 1 AS id, 10 AS total, 'x' AS Note, 'y' AS gone"), keys=["id"])
    change = {"drop_columns": ["gone"], "rename_columns": {"total": "sum", "Note": "note"}}
    job.write_state(job.spark.sql("SELECT 2 AS id, 20 AS sum, 'z' AS note"), keys=["id"], **change)
    merged = {
        "keys": ["id"],
        "schema": "id INT, sum INT, note STRING",
        "update": {"sum": "coalesce(old.sum, 0) + new.more"},
        **change,
    }
    more = job.spark.sql("SELECT 1 AS id, 5 AS more")
    job.checkpoint(lambda attempt: ([merge_state(more, attempt, operator="op", **merged)], []))  # type: ignore[arg-type]
    assert job.read_state().columns == ["id", "sum", "note"]
    assert rows(job.read_state(at=1)) == [(1, 10, "x", "y")]
    expected = job.read_state(schema="gone INT, id INT").select("id", "gone", "sum", "note")
    assert rows(expected) == [(1, None, 15, "x"), (2, None, 20, "z")]

    register(job.spark)
    options = {"store": job.folder.as_uri(), "job": "job", "operator": "op"}
    source = job.spark.read.format("dstl").options(**options)
    assert source.option("at", 1).load().columns == ["id", "total", "Note", "gone"]
    changes = job.spark.read.format("dstl").options(**options, table="changes").load()
    marks = ["_change_type", "_checkpoint_id", "_commit_timestamp"]
    assert changes.columns == ["id", "sum", "note", *marks]
    assert rows(changes.drop("_commit_timestamp")) == [
        (1, 10, "x", "insert", 1),
        (1, 10, "x", "update_before", 3),
        (1, 15, "x", "update_after", 3),
        (2, 20, "z", "insert", 2),
    ]

    sink = job.spark.sql("SELECT 3 AS id, 'new' AS gone").write.format("dstl").mode("append")
    sink.options(**options, keys="id", idempotency_key="three").save()
    found = job.read_state().select("id", "sum", "gone")
    assert rows(found) == [(1, 15, None), (2, 20, None), (3, None, "new")]

    attempt = job.coordinator.trigger()
    old = job.spark.sql("SELECT 1 AS id, 10 AS TOTAL")
    with pytest.raises(InvalidInputError, match="'TOTAL' is dropped or renamed, and the batch writes it"):
        write_state(old, attempt, operator="op", keys=["id"], rename_columns={"total": "sum"})
