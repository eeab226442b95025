"""The random tables of `tests/property/test_tables.py` through real Spark: written, merged, folded, read.

A few here; `--hypothesis-profile=soak` plays a hundred times as many.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dstl_dagster.checkpoint import CheckpointCoordinator, materialize
from dstl_dagster.spark import merge_state
from dstl_dagster.spark.types import spark_schema
from dstl_dagster.storage import open_store
from tests.profiles import examples, limit
from tests.property.test_tables import MAX_PARALLELISM, Oracle, Step, histories, plain

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.conftest import Job

pytestmark = [pytest.mark.spark, *limit()]

DELETED = "deleted, not a name that is drawn"
History = tuple[tuple[str, ...], list[Step]]


def in_spark(kind: pa.DataType) -> bool:
    """Whether Spark has the type: not `time64`, no struct without fields or with names equal but for case."""
    if pa.types.is_time64(kind):
        return False
    if pa.types.is_struct(kind):
        names = {field.name.lower() for field in kind.fields}
        return 0 < len(names) == kind.num_fields and all(in_spark(field.type) for field in kind.fields)
    if pa.types.is_map(kind):
        return in_spark(kind.item_type)
    return not pa.types.is_list(kind) or in_spark(kind.value_type)


def worth_it(history: History) -> bool:
    """Of types that Spark has, and with some rows: each costs seconds."""
    _, steps = history
    kinds = {field.type for step in steps for field in step.columns}
    return all(map(in_spark, kinds)) and sum(step.rows.num_rows for step in steps) > 2 and len(kinds) > 2


def frame(spark: SparkSession, step: Step) -> DataFrame:
    """The step's rows with the flags of its deletes, handed over as Arrow, bit for bit."""
    schema = step.columns.append(pa.field(DELETED, pa.bool_()))
    rows = step.rows.append_column(DELETED, pa.array(step.deleted, pa.bool_()))
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, schema) as writer:
        writer.write_table(rows)
    payload = stream.getvalue().to_pybytes()

    def rows_again(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from pa.ipc.open_stream(payload)

    return spark.range(0, 1, 1, 1).mapInArrow(rows_again, spark_schema(schema))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def apply(job: Job, keys: tuple[str, ...], step: Step, columns: set[str]) -> None:
    """By a merge where the step has all columns: then it says the same as a write."""
    rows = frame(job.spark, step)
    if step.partitions % 2 or set(step.columns.names) != columns:
        job.write_state(rows, keys=list(keys), deleted=DELETED, max_parallelism=MAX_PARALLELISM)
        return
    schema = spark_schema(step.columns)
    values = {name: F.col(f"new.{quoted(name)}") for name in step.columns.names if name not in keys}
    job.checkpoint(
        lambda attempt: (
            [
                merge_state(
                    rows,
                    attempt,
                    operator="op",
                    keys=list(keys),
                    schema=schema,
                    update=values,
                    delete=F.col(f"new.{quoted(DELETED)}"),
                    max_parallelism=MAX_PARALLELISM,
                )
            ],
            [],
        )
    )


@pytest.mark.timeout(7_200)
@examples(3, suppress_health_check=list(HealthCheck))
@given(history=histories().filter(worth_it))
def test_tables_are_read_back_bit_for_bit(
    history: History, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """At the end of the history, from logs and bases."""
    keys, steps = history
    job = job_of(spark, tmp_path_factory.mktemp("table"))
    oracle, columns = Oracle(keys), set()
    for step in steps:
        if not step.rows.num_rows:
            continue
        columns |= set(step.columns.names)
        apply(job, keys, step, columns)
        oracle.apply(step)
        if step.fold:
            materialize(job.coordinator, force=True)
    found = job.read_state(partitions=3).toArrow()
    kinds = {field.name: field.type for step in steps if step.rows.num_rows for field in step.columns}
    wanted = oracle.as_table(pa.schema([pa.field(name, kinds[name]) for name in found.column_names]))
    assert sorted(plain(found), key=repr) == sorted(plain(wanted), key=repr)


def job_of(spark: SparkSession, folder: Path) -> Job:
    from tests.spark.conftest import Job

    return Job(spark, folder, CheckpointCoordinator(f"job-{uuid.uuid4()}", open_store(folder.as_uri())))
