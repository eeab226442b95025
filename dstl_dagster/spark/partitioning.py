"""Rows by key group, in Spark.

Owns the expressions: a key's group, the task that has the group, and the shuffle between. Does not own the
hash itself: it is Spark's, and `state.hashing` has the same one.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.spark.types import exact_column
from dstl_dagster.state import DEFAULT_MAX_PARALLELISM, ranges_of_tasks

__all__ = ["by_key_group", "default_partitions", "key_group_of_columns", "task_of_key_group"]


def key_group_of_columns(keys: Sequence[Column], max_parallelism: int) -> Column:
    """The key group of a row: 0 to `max_parallelism` - 1."""
    return F.pmod(F.hash(*keys), F.lit(max_parallelism))


def task_of_key_group(key_group: Column, partitions: int, max_parallelism: int) -> Column:
    """Which of the tasks has this key group; as `state.partitioning.ranges_of_tasks` says."""
    return F.floor(key_group * F.lit(partitions) / F.lit(max_parallelism)).cast("int")


def default_partitions(df: DataFrame, max_parallelism: int) -> int:
    """As many tasks as Spark's shuffles have, or key groups."""
    return min(max_parallelism, int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1))


def by_key_group(
    df: DataFrame,
    keys: Sequence[str],
    *,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
    partitions: int | None = None,
) -> DataFrame:
    """The same rows, each task's of its own contiguous range of key groups.

    What `format("dstl")` likes best to write: no two tasks have a key in common then, which it sees without
    reading anything back, and a later read of some key groups opens few files. Give the key columns the
    types that the state has, and its `max_parallelism`.

    Raises: InvalidInputError: no key, a name that is not a column, more partitions than key groups.
    """
    missing = [name for name in keys if name not in df.columns]
    if missing or not keys:
        raise InvalidInputError(f"keys are names of {', '.join(df.columns)}; there is no {missing or 'key'}")
    count = default_partitions(df, max_parallelism) if partitions is None else partitions
    ranges_of_tasks(count, max_parallelism)  # refuses more tasks than key groups
    group = key_group_of_columns([exact_column(name) for name in keys], max_parallelism)
    return df.repartitionById(count, task_of_key_group(group, count, max_parallelism))
