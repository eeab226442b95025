"""A local session's Python workers begin with what our tasks need."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_workers_are_forked_with_our_tasks_imported(spark: SparkSession) -> None:
    """Before a task of ours has run in them: those of another environment are new."""

    def present(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        wanted = ("dstl_dagster.spark.merge_tasks", "dstl_dagster.spark.source.source", "pyarrow.compute")
        for _ in batches:
            yield pa.record_batch(
                [pa.array([",".join(name for name in wanted if name in sys.modules)])], ["m"]
            )

    setting = "spark.sql.execution.pyspark.udf.faulthandler.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, str(before != "true").lower())
    try:
        (row,) = spark.range(0, 1, 1, 1).mapInArrow(present, "m STRING").collect()
    finally:
        spark.conf.set(setting, before)
    assert row.m.count(",") == 2
