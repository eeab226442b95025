"""Rows of a DataFrame in the place of a part of keyed state, or of all of it.

Owns the plan: one shuffle by key group, in which each task gets its range even if no row falls into it. Does
not own the work inside a task (`replace_tasks`), or which rows are written or deleted (`keyed.replacing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from dstl_dagster.checkpoint import Attempt, Batch, OperatorReport
from dstl_dagster.keyed import Scope
from dstl_dagster.settings import Options, StateTtlConfig, parse_names
from dstl_dagster.spark.dataframes.outcomes import run_tasks
from dstl_dagster.spark.dataframes.progress import Progress
from dstl_dagster.spark.dataframes.replace_tasks import ReplaceStateTask
from dstl_dagster.spark.dataframes.state import WritePlan, batch_of, column_of_newest, plan_write, report_of
from dstl_dagster.spark.stores import cost_of, read_cost_of
from dstl_dagster.spark.types import sql_type
from dstl_dagster.state import ColumnChanges, ranges_of_tasks

__all__ = ["replace_state"]


def replace_state(
    df: DataFrame,
    attempt: Attempt | Batch,
    *,
    operator: str,
    keys: Sequence[str],
    scope: Scope | None = None,
    max_parallelism: int | None = None,
    partitions: int | None = None,
    ttl: StateTtlConfig | None = None,
    job_options: Options | None = None,
    progress: Progress | None = None,
) -> OperatorReport:
    """Put rows in the place of those of `scope`, durably: steps 2 and 3 for the state of `operator`.

    Runs one action on `df`. Rows that differ are written, and keys of the scope that get no row are deleted;
    the rest is as it was. A task sorts its rows (Spark spills them), and holds a part of the state at a time.

    Args:
        df: all rows that the scope is to have.
        scope: which rows of the state are replaced, by their keys; `None`: the whole state.

    The other arguments are those of `write_state`.

    Raises: InvalidInputError for a row that is not in the scope; as `write_state`.
    """
    keys = parse_names("keys", keys)
    with batch_of(attempt, job_options) as (batch, options):
        batch.count_along(read_cost_of(df.sparkSession))
        plan = plan_write(
            df, batch, operator, keys, max_parallelism, partitions, None, ColumnChanges.of((), None), ttl
        )
        before = batch.state(operator)
    ttl_before = None if before is None else before.ttl
    seen = plan.ttl if plan.ttl is not None and plan.ttl.hides_what(ttl_before) else ttl_before
    task = ReplaceStateTask(
        attempt=batch.attempt,
        operator=operator,
        columns=tuple(plan.schema.columns.names),
        schema=plan.schema,
        ranges=ranges_of_tasks(plan.partitions, plan.schema.max_parallelism),
        options=options,
        time_column=column_of_newest(plan.schema, plan.ttl, ttl),
        given=plan.columns,
        state=None if before is None else replace(before, schema=plan.schema, options=options, ttl=seen),
        scope=scope,
        reads=read_cost_of(df.sparkSession),
    )
    rows = plan.by_task(plan.rows.union(_one_for_each_task(plan))).sortWithinPartitions("key_group")
    found = run_tasks(rows, task, progress)
    batch.meter.add(cost_of(found))
    return report_of(attempt, operator, plan.schema, found, options, plan.ttl)


def _one_for_each_task(plan: WritePlan) -> DataFrame:
    """A row without values in the first key group of each task: what tells the task which ones it has."""
    *columns, _, _ = plan.rows.schema
    nulls = [f"CAST(NULL AS {sql_type(column.dataType)}) AS {column.name}" for column in columns]
    first = f"CAST((id * {plan.schema.max_parallelism} + {plan.partitions - 1}) DIV {plan.partitions} AS INT)"
    tasks = plan.rows.sparkSession.range(plan.partitions)
    return tasks.selectExpr(*nulls, "CAST(NULL AS BOOLEAN) AS deleted", f"{first} AS key_group")
