"""Rows by key group, in Spark.

Owns the expressions for a key's group and a group's task, and the shuffle by them. Does not own the hash:
it is Spark's, and `state.key_group_hash` computes the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange, ranges_of_tasks
from dstl_dagster.settings import parse_names
from dstl_dagster.spark.types import quoted
from dstl_dagster.state import DEFAULT_MAX_PARALLELISM, SPREAD, StateSchema


def key_group_of_columns(columns: Mapping[str, str], schema: StateSchema) -> str:
    """The key group of a row, as in `state.key_group_hash`, in SQL. `columns`: expressions by key column."""
    count = schema.max_parallelism
    keys, within = (
        f"hash({', '.join(columns[name] for name in names)})"
        for names in (schema.key_columns, schema.partition_columns)
    )
    if not schema.partition_columns:
        return f"pmod({keys}, {count})"
    return f"pmod(pmod({within}, {count}) + pmod({keys}, {SPREAD}), {count})"


def task_of_key_group(key_group: str, partitions: int, max_parallelism: int) -> Column:
    """The task that has this key group; agrees with `format.ranges_of_tasks`."""
    return F.expr(f"CAST(floor({key_group} * {partitions} / {max_parallelism}) AS INT)")


def task_of_range(key_group: str, ranges: Sequence[KeyGroupRange]) -> Column:
    """As `task_of_key_group`, for tasks that have these ranges: ascending, and all key groups together."""
    later = [f"CAST({key_group} >= {each.start_key_group} AS INT)" for each in ranges[1:]]
    return F.expr(" + ".join(["0", *later]))


def task_count(spark: SparkSession, asked: int | None, most: int) -> int:
    """So many tasks as are asked for; `None`: as a shuffle of Spark has, but at most `most`."""
    if asked is not None:
        return asked
    return min(most, int(spark.conf.get("spark.sql.shuffle.partitions") or 1))


def by_key_group(
    df: DataFrame,
    keys: Sequence[str],
    *,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
    partitions: int | None = None,
) -> DataFrame:
    """The same rows, with a contiguous range of key groups for each task.

    The best input for `format("dstl")`: no two tasks share a key, which the commit then sees without reading
    anything back, and a later read of some key groups opens few files. The key columns must have the types
    of the state, and `max_parallelism` must be the state's.

    Raises: InvalidInputError: no key, a name that is not a column, more partitions than key groups.
    """
    keys = parse_names("keys", keys)
    missing = [name for name in keys if name not in df.columns]
    if missing or not keys:
        what = f"column {missing[0]!r}" if missing else "an empty list of keys"
        raise InvalidInputError(f"cannot partition by {what}: name some of {', '.join(df.columns)}")
    count = task_count(df.sparkSession, partitions, max_parallelism)
    ranges_of_tasks(count, max_parallelism)  # refuses more tasks than key groups
    group = f"pmod(hash({', '.join(map(quoted, keys))}), {max_parallelism})"
    return df.repartitionById(count, task_of_key_group(group, count, max_parallelism))
