"""Looking up keys: as a table in the types of the state, and what is read for them. Pure.

Owns what a caller may give as keys, which key groups these are in, and when so few are sought that large
changes are looked into. Does not own reading (`keyed_state`), nor a key's key group (`state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.state import StateSchema, key_group_of

__all__ = ["Keys", "key_table", "keys_table", "touched_ranges"]

Keys: TypeAlias = pa.Table | Iterable[Mapping[str, Any]]
"""A table that has the key columns, or a mapping for each key."""


def touched_ranges(keys: pa.Table, schema: StateSchema) -> tuple[KeyGroupRange, ...]:
    """The key groups of these keys, ascending, neighbours joined; no other is read for them.

    `keys`: as of `keys_table`.
    """
    touched = np.unique(key_group_of(keys, schema))
    if not len(touched):
        return ()
    breaks = np.flatnonzero(np.diff(touched) > 1)
    starts, ends = touched[np.append(0, breaks + 1)], touched[np.append(breaks, len(touched) - 1)]
    return tuple(map(KeyGroupRange.of, starts.tolist(), ends.tolist()))


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


def key_table(schema: StateSchema, key: Mapping[str, Any]) -> pa.Table:
    """One row with the key columns, in their types.

    Raises: InvalidInputError: a different set of columns, or a value that does not fit its type.
    """
    if set(key) != set(schema.key_columns):
        raise InvalidInputError(
            f"a key has the columns {', '.join(schema.key_columns)}, not {', '.join(sorted(key)) or 'none'}"
        )
    columns = {}
    for name in schema.key_columns:
        kind = schema.columns.field(name).type
        try:
            columns[name] = _key_array(key[name], kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise InvalidInputError(f"key {name!r}: {key[name]!r} is not a {kind}: {error}") from error
    return pa.table(columns)


def _key_array(value: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(value, bytes) and kind == pa.string():
        return pa.array([bytes(value)], pa.binary()).view(kind)  # unlike a cast, does not check the bytes
    return pa.array([value], kind)
