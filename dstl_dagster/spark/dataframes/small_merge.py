"""Merging few rows on the driver: one Spark job, which computes them, and no Python worker.

Owns when that is tried, and bringing the rows here. Does not own the merge itself (`jobs.frames`), or the one
in tasks (`merge`): what this one cannot do it leaves to that, errors included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dstl_dagster.checkpoint import Batch, OperatorReport, StateToWrite
from dstl_dagster.concurrency import Progress
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.jobs import FrameMerge
from dstl_dagster.spark.dataframes.progress import watched
from dstl_dagster.spark.errors import raise_as_raised
from dstl_dagster.spark.types import arrow_schema

_MOST_ROWS: Final = 1 << 17
_MOST_BYTES: Final = 32 << 20
"""Expected of the rows; those of the state's with the same keys come on top."""

_RULES_UNDER: Final = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
"""The settings of a session in which `state.rules` gives what Spark gives."""

_TOO_LARGE: Final = "spark.driver.maxResultSize"

_underestimated: set[tuple[str, str, str]] = set()
"""States (store, job, operator) of which a batch had more rows than expected: tasks merge the next ones."""


def merged_on_driver(
    changes: DataFrame,
    columns: Sequence[str],
    batch: Batch,
    progress: Progress | None,
    state: StateToWrite,
    update: Mapping[str, Any],
    delete: Any,
) -> OperatorReport | None:
    """The report of `merge_state`; `None` if the merge is for tasks: the rows are many, or only Spark can
    evaluate the rules, or only it says why they fail.

    Args:
        columns: of `changes` in SQL, each under its name and the keys in the state's types.
        state: as the merge leaves it.
    """
    of_state = (batch.attempt.store_uri, batch.attempt.job, state.operator)
    if of_state in _underestimated or not _has_settings(changes.sparkSession):
        return None
    rows = changes.selectExpr(*columns)
    try:
        merge = FrameMerge.of(batch, state, update, delete)
        merge.require(arrow_schema(rows.schema, "changes"))
    except InvalidInputError:
        return None
    if not _are_few(rows, batch, state.operator):
        return None
    table = _collected(rows, progress)
    if table is None:
        _underestimated.add(of_state)
        return None
    try:
        return merge.written(table)
    except InvalidInputError:
        return None


def _has_settings(spark: SparkSession) -> bool:
    return all(spark.conf.get(name) == value for name, value in _RULES_UNDER.items())


def _are_few(rows: DataFrame, batch: Batch, operator: str) -> bool:
    """As many as the last batch changed; in the first one, as Spark estimates."""
    entry = None if batch.parent is None else batch.parent.manifest.operators.get(operator)
    last = None if entry is None or not entry.runs or entry.runs[-1].merged else entry.runs[-1]
    if last is not None and last.upserts is not None and last.deletes is not None:
        size = sum(handle.state_size for handle in last.handles)
        return last.upserts + last.deletes <= _MOST_ROWS and size <= _MOST_BYTES
    if not hasattr(rows, "_jdf"):  # a client of Spark Connect gets no estimate
        return False
    return bool(rows._jdf.queryExecution().optimizedPlan().stats().sizeInBytes() <= _MOST_BYTES)


def _collected(rows: DataFrame, progress: Progress | None) -> pa.Table | None:
    """All of the rows; `None` if they are more than expected, or PySpark cannot collect them."""
    raise_as_raised()
    try:
        with watched(rows.sparkSession, progress):
            table = rows.limit(_MOST_ROWS + 1).toArrow()
    except PySparkException as error:
        if _TOO_LARGE in str(error):
            return None
        raise
    except pa.ArrowInvalid:  # of a null beside structs whose fields have none, for one
        return None
    return None if table.num_rows > _MOST_ROWS else table
