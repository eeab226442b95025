"""Columns that differ only in case: one or two, depending on the session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.spark import merge_state, register, write_state

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


@pytest.fixture
def case_sensitive(spark: SparkSession) -> Iterator[None]:
    spark.sql("SET spark.sql.caseSensitive = TRUE")
    yield
    spark.conf.unset("spark.sql.caseSensitive")


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in df.collect())


def test_a_column_keeps_the_spelling_of_the_state(job: Job) -> None:
    """Keys, values, delete flag: a batch with another spelling writes the same columns."""
    job.write_state(job.spark.sql("SELECT 1 AS Id, 'a' AS Name"), keys=["id"])
    batch = job.spark.sql("SELECT 1 AS ID, 'b' AS name, FALSE AS Gone UNION ALL SELECT 2, 'c', FALSE")
    job.write_state(batch, keys=["iD"], deleted="gone")
    assert job.read_state().columns == ["Id", "Name"]
    assert rows(job.read_state().select("id", "name")) == [(1, "b"), (2, "c")]
    expected = job.read_state(schema="NAME STRING, extra INT")
    assert expected.columns == ["Name", "extra", "Id"]
    assert rows(expected.select("id", "name", "extra")) == [(1, "b", None), (2, "c", None)]


def test_a_merge_does_so_too(job: Job) -> None:
    """In the schema, the keys, the update and the changes."""
    job.write_state(job.spark.sql("SELECT 1 AS Id, 1 AS Total"), keys=["Id"])
    changes = job.spark.sql("SELECT 1 AS ID, 5 AS total UNION ALL SELECT 2, 7")
    merged = {
        "keys": ["id"],
        "schema": "id INT, TOTAL INT",
        "update": {"total": "coalesce(old.total, 0) + new.TOTAL"},
    }
    job.checkpoint(lambda attempt: ([merge_state(changes, attempt, operator="op", **merged)], []))  # type: ignore[arg-type]
    assert job.read_state().columns == ["Id", "Total"]
    assert rows(job.read_state()) == [(1, 6), (2, 7)]


def test_the_data_source_does_so_too(job: Job) -> None:
    """Case counts only with the option `case_sensitive`, which the data source needs to know the setting."""
    register(job.spark)
    options = {"store": job.folder.as_uri(), "job": "job", "operator": "op"}

    def write(query: str, number: int, **more: str) -> None:
        sink = job.spark.sql(query).write.format("dstl").mode("append").options(**options, **more)
        sink.options(idempotency_key=str(number)).save()

    write("SELECT 1 AS Id, 'a' AS Name", 1, keys="id")
    write("SELECT 1 AS ID, 'b' AS name, FALSE AS gone", 2, keys="id", deleted="GONE")
    source = job.spark.read.format("dstl").options(**options)
    assert rows(source.load()) == [(1, "b")]
    assert source.load().columns == ["Id", "Name"]
    assert rows(source.schema("NAME STRING, ID INT").load()) == [("b", 1)]


@pytest.mark.usefixtures("case_sensitive")
def test_a_session_may_tell_them_apart(job: Job) -> None:
    """Then they are two columns, in one batch or two, and names must match exactly."""
    job.write_state(job.spark.sql("SELECT 1 AS id, 'a' AS Name"), keys=["id"])
    job.write_state(job.spark.sql("SELECT 1 AS id, 'b' AS name, 'a' AS Name"), keys=["id"])
    job.write_state(job.spark.sql("SELECT 2 AS id, 'c' AS name"), keys=["id"])
    assert job.read_state().columns == ["id", "Name", "name"]
    assert rows(job.read_state().fillna("-")) == [(1, "a", "b"), (2, "-", "c")]
    attempt = job.coordinator.trigger()
    with pytest.raises(InvalidInputError, match="key column 'ID' is not among the columns: id"):
        write_state(job.spark.sql("SELECT 1 AS id"), attempt, operator="op", keys=["ID"])


def test_what_could_be_either_is_refused(job: Job) -> None:
    """State with both is written by exact names; a third spelling matches neither."""
    job.spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        job.write_state(job.spark.sql("SELECT 1 AS id, 'a' AS Name, 'b' AS name"), keys=["id"])
    finally:
        job.spark.conf.unset("spark.sql.caseSensitive")
    job.write_state(job.spark.sql("SELECT 2 AS id, 'c' AS name"), keys=["id"])
    attempt = job.coordinator.trigger()
    with pytest.raises(InvalidInputError, match="'NAME' could be any of 'Name', 'name'") as caught:
        write_state(job.spark.sql("SELECT 1 AS id, 'x' AS NAME"), attempt, operator="op", keys=["id"])
    assert caught.value.kind == "schema_change"
