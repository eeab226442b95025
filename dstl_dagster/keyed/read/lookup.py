"""Keys and filters, and the key groups whose rows they can hold. Pure.

Owns what a caller may give as keys, and when a filter narrows what is read: where each of its alternatives
gives every key column its values, in exactly the column's type. What it narrows is filtered again by the
expression, so to read too much costs requests, and never a row. Does not own reading (`keyed_state`), nor a
key's key group (`state`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange, merged_ranges
from dstl_dagster.format.changelog_file.change_set_parts import WantedKeys
from dstl_dagster.state import (
    StateSchema,
    group_of_hashes,
    key_group_of,
    key_groups_of_partitions,
    key_hashes,
)
from dstl_dagster.state.keys import KeysOfGroups, occurring

_MOST_KEYS = 1_000
"""Of which the key groups are computed; more keys fall into most key groups anyway."""

Keys: TypeAlias = pa.Table | Iterable[Mapping[str, Any]]
"""A table that has the key columns, or a mapping for each key."""


@dataclass(frozen=True)
class KeysToFind:
    """Keys as of `keys_table`, ascending by key group, and where their rows are."""

    rows: pa.Table
    wanted_keys: WantedKeys

    @classmethod
    def of(cls, rows: pa.Table, schema: StateSchema) -> KeysToFind:
        hashes = key_hashes(rows, schema)
        groups = group_of_hashes(hashes, rows, schema)
        order = np.argsort(groups, kind="stable")
        return cls(rows.take(pa.array(order)), WantedKeys(groups[order], hashes[order]))

    @property
    def of_groups(self) -> KeysOfGroups:
        return KeysOfGroups(self.rows, self.wanted_keys.key_groups)

    def without(self, found: Sequence[pa.Table]) -> KeysToFind:
        """Those whose key is in none of these rows."""
        names = self.rows.column_names
        if not found:
            return self
        keys = pa.concat_tables([rows.select(names) for rows in found])
        left = ~occurring(self.rows, keys, names).to_numpy(zero_copy_only=False)
        wanted_keys = WantedKeys(self.wanted_keys.key_groups[left], self.wanted_keys.hashes[left])
        return KeysToFind(self.rows.filter(pa.array(left)), wanted_keys)

    def touched_ranges(self) -> tuple[KeyGroupRange, ...]:
        """Their key groups, ascending, neighbours joined; no other is read for them."""
        return merged_ranges(np.unique(self.wanted_keys.key_groups).tolist())


def keys_table(schema: StateSchema, keys: Keys) -> pa.Table:
    """The key columns of these keys, in their types.

    Raises: InvalidInputError: a table without a key column, another set of columns in a mapping, or a value
    that does not fit its type.
    """
    if not isinstance(keys, pa.Table):
        tables = [key_table(schema, key) for key in keys]
        return pa.concat_tables(tables) if tables else schema.columns.empty_table().select(schema.key_columns)
    missing = [name for name in schema.key_columns if name not in keys.column_names]
    if missing:
        raise InvalidInputError(
            f"key column {missing[0]!r} is missing: the keys have {', '.join(keys.column_names) or 'none'}"
        )
    columns = {}
    for name in schema.key_columns:
        kind = schema.columns.field(name).type
        try:
            columns[name] = keys.column(name).cast(kind)
        except pa.ArrowException as error:
            raise InvalidInputError(f"key {name!r} does not fit its type {kind}: {error}") from error
    return pa.table(columns)


def key_table(schema: StateSchema, key: Mapping[str, Any], names: Sequence[str] | None = None) -> pa.Table:
    """One row with the key columns, or those of these `names`, in their types.

    Raises: InvalidInputError: a different set of columns, or a value that does not fit its type.
    """
    names = names or schema.key_columns
    if set(key) != set(names):
        raise InvalidInputError(
            f"a key has the columns {', '.join(names)}, not {', '.join(sorted(key)) or 'none'}"
        )
    columns = {}
    for name in names:
        kind = schema.columns.field(name).type
        try:
            columns[name] = _key_array(key[name], kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise InvalidInputError(f"key {name!r}: {key[name]!r} is not a {kind}: {error}") from error
    return pa.table(columns)


def _key_array(value: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(value, bytes) and kind == pa.string():
        return pa.array([bytes(value)], pa.binary()).view(kind)  # unlike a cast, does not check the bytes
    if isinstance(value, float):
        return pa.array([value]).cast(kind)  # which refuses 1.5 for a whole number, and does not cut it off
    return pa.array([value], kind)


def with_lists(filters: Any) -> Any:
    """The same filters, whose values can be looked at more than once, unlike a generator's."""
    if isinstance(filters, pc.Expression | str | bytes) or not isinstance(filters, Iterable):
        return filters
    if isinstance(filters, Sequence) and len(filters) == 3 and isinstance(filters[0], str):
        column, operation, value = filters
        return column, operation, [*value] if isinstance(value, Iterator) else value
    return [with_lists(each) for each in filters]


def as_expression(filters: pc.Expression | Sequence[Any], columns: pa.Schema) -> pc.Expression:
    """Raises: InvalidInputError for filters that are malformed, or that do not fit the columns."""
    try:
        found = filters if isinstance(filters, pc.Expression) else _as_one(filters)
        # A row of nulls: without any, Arrow compares time stamps with a zone and without one.
        pa.table([pa.nulls(1, kind) for kind in columns.types], schema=columns).filter(found)
    except (pa.ArrowException, ValueError, TypeError, IndexError) as error:
        raise InvalidInputError(
            f'filters are an expression, or tuples such as [("{columns.names[0]}", "=", value)], over the '
            f"columns {', '.join(columns.names)}: {str(error).splitlines()[0]}"
        ) from error
    return found


def _as_one(filters: Sequence[Any]) -> pc.Expression:
    return reduce(or_, [reduce(and_, map(_as_condition, each)) for each in _alternatives(filters)])


def _as_condition(condition: Any) -> pc.Expression:
    """Of one tuple. Null is equal to null, as it is for `in`."""
    column, operation, value = condition
    if value is None and operation in ("=", "=="):
        return pc.field(column).is_null()
    if value is None and operation == "!=":
        return pc.field(column).is_valid()
    if operation in ("in", "not in") and all(each is None for each in value):
        # Of values without a type, Arrow makes nothing that fits a column of text.
        found = pc.field(column).is_null() if len(value) else pc.scalar(False)
        return found if operation == "in" else ~found
    return pq.filters_to_expression([condition])


def _alternatives(filters: Sequence[Any]) -> Sequence[Any]:
    """Lists of tuples, all of which hold in one of them."""
    return [filters] if all(isinstance(each[0], str) for each in filters) else filters


def key_groups_of_filters(
    filters: pc.Expression | Sequence[Any], schema: StateSchema
) -> tuple[KeyGroupRange, ...] | None:
    """The key groups that can hold rows which pass, ascending; `None` for all. `filters` are well-formed."""
    if isinstance(filters, pc.Expression):
        return None  # cannot be looked into
    found: set[int] = set()
    for conjunction in _alternatives(filters):
        groups = _key_groups_of(conjunction, schema)
        if groups is None:
            return None
        found.update(groups)
    return merged_ranges(found)


def _key_groups_of(conjunction: Sequence[Any], schema: StateSchema) -> set[int] | None:
    values: dict[str, list[Any]] = {}
    for column, operation, value in conjunction:
        if column in schema.key_columns and operation in ("=", "==", "in"):
            values[column] = list(value) if operation == "in" else [value]
    whole = len(values) == len(schema.key_columns)
    names = schema.key_columns if whole else schema.partition_columns
    if not names or not values.keys() >= set(names):
        return None
    if not all(_is_exact(each, schema.columns.field(name).type) for name in names for each in values[name]):
        return None
    keys = list(itertools.islice(itertools.product(*(values[name] for name in names)), _MOST_KEYS + 1))
    if len(keys) > _MOST_KEYS:
        return None
    try:
        tables = [key_table(schema, dict(zip(names, key, strict=True)), names) for key in keys]
    except InvalidInputError:
        return None  # such as a number out of the type's range; the expression says what it is
    if not whole:
        return set().union(*(key_groups_of_partitions(each, schema) for each in tables))
    return {int(key_group_of(each, schema)[0]) for each in tables}


def _is_exact(value: Any, kind: pa.DataType) -> bool:
    """Whether only one stored value equals it, so that its hash is the key's."""
    try:
        return value is None or type(pa.scalar(value, kind).as_py()) is type(value)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return False
