"""The key groups that a query's filters select: a look-up by key reads one key group, not the state.

Owns that inference. Handles no filter for Spark: Spark applies all of them again, so one that is not
understood here costs only time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In

from dstl_dagster.format import KeyGroupRange
from dstl_dagster.state import StateSchema, key_group_of

__all__ = ["key_groups_of_filters"]

_MOST_KEYS = 1000
_REPLACED = "\ufffd"
"""Java puts it in place of a literal's bytes that are not UTF-8, which are then lost."""


def key_groups_of_filters(schema: StateSchema, filters: Iterable[Filter]) -> tuple[KeyGroupRange, ...] | None:
    """The only key groups whose rows can pass all the filters, ascending; `None`: any key group.

    Known if the filters list values for every key column.
    """
    values: dict[str, list[Any]] = {}
    for each in filters:
        if isinstance(each, (EqualTo, EqualNullSafe, In)) and len(each.attribute) == 1:
            found = list(each.value) if isinstance(each, In) else [each.value]
            # Of two filters on one column, either one selects every row that can pass both.
            values.setdefault(each.attribute[0], found)
    keys = list(schema.key_columns)
    if not all(name in values and _is_exact(schema.columns.field(name).type) for name in keys):
        return None
    if any(isinstance(value, str) and _REPLACED in value for name in keys for value in values[name]):
        return None
    combined = list(product(*[values[name] for name in keys]))
    if not combined or len(combined) > _MOST_KEYS:
        return None
    try:
        columns = [
            pa.array(column, schema.columns.field(name).type)
            for name, column in zip(keys, zip(*combined, strict=True), strict=True)
        ]
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    groups = sorted(set(key_group_of(pa.table(columns, names=keys), schema).tolist()))
    return tuple(KeyGroupRange.of(each, each) for each in groups)


def _is_exact(kind: pa.DataType) -> bool:
    """Whether a filter's Python value is the key. That of an instant depends on this process's time zone."""
    return not pt.is_timestamp(kind)
