"""A local session's Python workers begin with what our tasks need, and do not look through it after each."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_workers_are_forked_with_all_that_tasks_import_and_it_is_frozen(spark: SparkSession) -> None:
    """Before a task of ours has run in them: those of another environment are new.

    PySpark collects garbage after each task: of what was imported, 40 ms. Arrow imports pandas, if there is
    one, with the first array that it is given: 300 ms.
    """

    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc
        import sys

        import numpy as np

        wanted = (
            "dstl_dagster.spark.dataframes.merge_tasks",
            "dstl_dagster.spark.dataframes.file_tasks",
            "dstl_dagster.spark.source.source",
            "dstl_dagster.storage.local.store",
            "pyarrow.compute",
        )
        missing = [name for name in wanted if name not in sys.modules]
        before = set(sys.modules)
        pa.array(np.zeros(1))
        missing += sorted(set(sys.modules) - before)
        for _ in batches:
            counts = [len(gc.get_objects()), gc.get_freeze_count()]
            columns = [pa.array([",".join(missing)]), *[pa.array([count]) for count in counts]]
            yield pa.record_batch(columns, ["m", "thawed", "frozen"])

    setting = "spark.sql.execution.pyspark.udf.faulthandler.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, str(before != "true").lower())
    try:
        schema = "m STRING, thawed BIGINT, frozen BIGINT"
        (row,) = spark.range(0, 1, 1, 1).mapInArrow(found, schema).collect()
    finally:
        spark.conf.set(setting, before)
    assert row.m == ""
    assert row.frozen > 10 * row.thawed
