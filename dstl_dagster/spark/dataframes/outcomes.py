"""How a task returns its outcome to the driver: one row with one column of JSON.

Owns the form of the row, and the one action that collects them. Does not own an outcome's fields, nor how an
error travels (`errors`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dstl_dagster.spark.errors import raise_as_raised, raise_refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dstl_dagster.concurrency import Progress


def outcome_row(outcome: dict[str, Any]) -> pa.RecordBatch:
    """A record batch of one row, which holds a plain JSON object."""
    return pa.record_batch([pa.array([json.dumps(outcome)])], ["outcome"])


def run_tasks(
    rows: DataFrame,
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    progress: Progress | None,
) -> list[dict[str, Any]]:
    """The outcomes of the tasks of one action on `rows`: a second one would write everything again.

    Raises: InvalidInputError if executors cannot run tasks, or the error of the first task that returned one.
    """
    from dstl_dagster.spark.dataframes.progress import watched  # PySpark: not in the tasks
    from dstl_dagster.spark.executors import require_package

    raise_as_raised()
    require_package(rows.sparkSession)
    with watched(rows.sparkSession, progress):
        found = [json.loads(row[0]) for row in rows.mapInArrow(task, "outcome string").collect()]
    raise_refusal(found)
    return found
