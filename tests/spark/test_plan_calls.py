"""How many calls of the JVM the driver makes to plan a write: each is a round trip."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from dstl_dagster.checkpoint import Batch, StateToWrite
from dstl_dagster.settings import JobOptions
from dstl_dagster.spark.dataframes.files import _header
from dstl_dagster.spark.dataframes.merge import _Merge
from dstl_dagster.spark.dataframes.state import plan_write
from dstl_dagster.spark.types import arrow_schema
from dstl_dagster.state import declared_columns

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

_RELEASE = "m\n"
"""A message that an object is no longer used: when it is sent, the garbage collector decides."""


def calls_of(spark: SparkSession, patch: pytest.MonkeyPatch, act: Callable[[], object]) -> int:
    client: Any = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    commands: list[str] = []
    send = client.send_command

    def counted(command: str, *arguments: Any, **more: Any) -> Any:
        commands.append(command)
        return send(command, *arguments, **more)

    with patch.context() as while_counting:
        while_counting.setattr(client, "send_command", counted)
        act()
    return sum(not command.startswith(_RELEASE) for command in commands)


def rows_of(spark: SparkSession, columns: int) -> DataFrame:
    return spark.range(1).selectExpr("id", *[f"id AS v{each}" for each in range(columns)])


def merge_plan(batch: Batch, rows: DataFrame, columns: int) -> DataFrame:
    names = [f"v{each}" for each in range(columns)]
    schema = ", ".join(f"{name} BIGINT" for name in ("id", *names))
    state = StateToWrite.of(batch, "op", declared_columns(schema, "op"), ["id"])
    plan = _Merge(rows, batch, JobOptions(), state, case_sensitive=False)
    update = {name: f"coalesce(old.{name}, 0) + new.{name}" for name in names}
    return plan.merged(plan.looked_up(2), update, "new.v0 < 0")


def test_a_merge_of_more_columns_takes_few_more_calls(
    job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each column of the state; what the batch's columns become is in one text."""
    batch = Batch.open(job.coordinator)
    merge_plan(batch, rows_of(spark, 1), 1)  # what a session does once
    few, many = (
        calls_of(spark, monkeypatch, lambda rows=rows, count=count: merge_plan(batch, rows, count))
        for count, rows in ((1, rows_of(spark, 1)), (21, rows_of(spark, 21)))
    )
    assert many - few == 20
    assert few <= 66


def test_a_write_of_more_columns_takes_few_more_calls(
    job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each expression."""
    batch = Batch.open(job.coordinator)

    def plan(rows: DataFrame) -> object:
        state = StateToWrite.of(batch, "op", arrow_schema(rows.schema, "op"), ["id"])
        return plan_write(rows, batch, state, 2, None)

    few, many = (
        calls_of(spark, monkeypatch, lambda rows=rows: plan(rows))
        for rows in (rows_of(spark, 1), rows_of(spark, 21))
    )
    assert many - few == 20
    assert few <= 30


def test_the_header_of_a_csv_file_takes_no_job(spark: SparkSession) -> None:
    """Spark evaluates it while it plans."""
    tracker = spark.sparkContext.statusTracker()
    before = tracker.getJobIdsForGroup(None)
    assert _header(spark, ['a "quoted" name'], {}) == b'"a \\"quoted\\" name"\n'
    assert tracker.getJobIdsForGroup(None) == before
