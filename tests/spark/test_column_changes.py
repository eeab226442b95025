"""Columns that were dropped and renamed: written, merged and read by the new names in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame

from dstl_dagster.checkpoint import change_columns
from dstl_dagster.spark import merge_state, register
from dstl_dagster.state import ColumnChanges

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in df.collect())


def test_changed_columns_are_read_by_their_new_names(job: Job) -> None:
    """Over the old log, by every way to read it, and to write on."""
    job.write_state(job.spark.sql("SELECT 1 AS id, 10 AS total, 'x' AS Note, 'y' AS gone"), keys=["id"])
    latest = job.coordinator.latest()
    assert latest is not None
    changes = ColumnChanges.of(["gone"], {"total": "sum", "Note": "note"})
    change_columns(job.coordinator, latest, "op", changes)
    job.write_state(job.spark.sql("SELECT 2 AS id, 20 AS sum, 'z' AS note"), keys=["id"])
    merged = {
        "keys": ["id"],
        "schema": "id INT, sum INT, note STRING",
        "update": {"sum": "coalesce(old.sum, 0) + new.more"},
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
    told = job.spark.read.format("dstl").options(**options, table="changes").load()
    marks = ["_change_type", "_checkpoint_id", "_commit_timestamp"]
    assert told.columns == ["id", "sum", "note", *marks]
    assert rows(told.drop("_commit_timestamp")) == [
        (1, 10, "x", "insert", 1),
        (1, 10, "x", "update_before", 4),
        (1, 15, "x", "update_after", 4),
        (2, 20, "z", "insert", 3),
    ]

    sink = job.spark.sql("SELECT 3 AS id, 'new' AS gone").write.format("dstl").mode("append")
    sink.options(**options, keys="id", idempotency_key="three").save()
    found = job.read_state().select("id", "sum", "gone")
    assert rows(found) == [(1, 15, None), (2, 20, None), (3, None, "new")]
