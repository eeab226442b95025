"""What the package says to Spark in SQL means what it did as objects: types, names, schemas, texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as st

from dstl_dagster.checkpoint import Batch
from dstl_dagster.spark import merge_state, write_state
from dstl_dagster.spark.dataframes.state import expected_schema
from dstl_dagster.spark.types import quoted, sql_type

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

ODD = "a `b`.c: d,e>"
ATOMIC = [
    *(st.BooleanType(), st.ByteType(), st.ShortType(), st.IntegerType(), st.LongType(), st.FloatType()),
    *(st.DoubleType(), st.BinaryType(), st.DateType(), st.TimestampType(), st.TimestampNTZType()),
    *(st.StringType(), st.DecimalType(38, 7), st.DayTimeIntervalType(), st.DayTimeIntervalType(1, 3)),
]


def test_a_type_in_sql_is_that_type(spark: SparkSession) -> None:
    """Every storable one, and nested ones with names that need quotes."""
    row = st.StructType([st.StructField(f"{ODD}{place}", each) for place, each in enumerate(ATOMIC)])
    nested = [st.ArrayType(row), st.MapType(st.StringType(), st.ArrayType(row)), st.StructType([])]
    types = [*ATOMIC, row, *nested]
    casts = [f"CAST(NULL AS {sql_type(each)}) AS c{place}" for place, each in enumerate(types)]
    assert [field.dataType for field in spark.range(1).selectExpr(*casts).schema] == types


def test_a_quoted_name_is_that_column(spark: SparkSession) -> None:
    """Whatever is in it."""
    assert spark.range(1).toDF(ODD).selectExpr(quoted(ODD)).columns == [ODD]


@pytest.mark.parametrize("text", ["id BIGINT, name STRING NOT NULL", "id: bigint", "BIGINT", "a ARRAY<INT>"])
def test_the_text_of_a_schema_means_what_an_empty_dataframe_has(spark: SparkSession, text: str) -> None:
    """Also a type alone, which is a column `value`."""
    assert expected_schema(text, "op") == spark.createDataFrame([], text).schema


def merged(job: Job, rows: DataFrame, **how: object) -> list[tuple[object, ...]]:
    batch = Batch.open(job.coordinator)
    schema = f"{quoted(ODD)} BIGINT, n INT, row STRUCT<{quoted(ODD)}: INT>"
    report = merge_state(rows, batch, operator="op", keys=[ODD], schema=schema, **how)  # type: ignore[arg-type]
    batch.add(report)
    batch.complete()
    return sorted(map(tuple, job.read_state().collect()))


def test_a_users_text_may_end_in_a_comment_and_stand_beside_columns(job: Job, spark: SparkSession) -> None:
    """Text and columns in one update; names that need quotes; narrower keys and values are cast."""
    rows = spark.range(2).select(F.col("id").cast("int").alias(ODD), F.lit(5).alias("n"))
    update = {"n": "coalesce(old.n, 0) + new.n -- so far", "row": F.struct(F.col("new.n").alias(ODD))}
    first = merged(job, rows, update=update, delete="new.n < 0 -- never")
    assert first == [(0, 5, (5,)), (1, 5, (5,))]
    again = merged(job, rows, update=update, delete=F.col("old.n") + F.col(f"new.{quoted(ODD)}") > 5)
    assert again == [(0, 10, (5,))]


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[None]:
    """A session in another zone than UTC. What else a test sets ends with it."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.unset("spark.sql.timestampType")


@pytest.mark.parametrize("way", ["write", "replace", "merge", "tasks"])
@pytest.mark.usefixtures("elsewhere")
def test_a_time_stamp_has_a_zone_whatever_the_session_means_by_the_word(
    job: Job, spark: SparkSession, way: str
) -> None:
    """Keys and values of the state, also where the session's time stamps have none."""
    rows = spark.sql("SELECT timestamp_seconds(5) AS k, timestamp_seconds(60) AS v")
    for meant in ("TIMESTAMP_LTZ", "TIMESTAMP_NTZ"):
        spark.conf.set("spark.sql.timestampType", meant)
        batch = Batch.open(job.coordinator)
        if way in ("write", "replace"):
            report = write_state(rows, batch, operator="op", keys=["k"], replace=way == "replace")
        else:
            count, update = 1 if way == "tasks" else None, {"v": "new.v"}
            how = {"keys": ["k"], "schema": rows.schema, "update": update, "partitions": count}
            report = merge_state(rows, batch, operator="op", **how)  # type: ignore[arg-type]
        batch.add(report)
        batch.complete()
        found = job.read_state().selectExpr("unix_seconds(k)", "unix_seconds(v)").collect()
        assert found == [(5, 60)]
