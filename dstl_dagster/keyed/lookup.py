"""Looking up keys: as a table in the types of the state, and what is read for them. Pure.

Owns what a caller may give as keys, which key groups these are in, and when so few are sought that large
changes are looked into. Does not own reading (`keyed_state`), nor a key's key group (`state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.format.framed_changes import LARGE_CHANGE_BYTES
from dstl_dagster.state import StateSchema, key_group_of

__all__ = ["Keys", "are_few", "key_table", "keys_table", "may_be_looked_into", "touched_ranges"]

_VALUE_BYTES: Final = 128 << 10
"""Decompressed to look at one value alone: two frames. With as many values as that, reading all is faster."""

Keys: TypeAlias = pa.Table | Iterable[Mapping[str, Any]]
"""A table that has the key columns, or a mapping for each key."""

Ranges: TypeAlias = Sequence[KeyGroupRange]


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


def are_few(
    keys: pa.Table, schema: StateSchema, handles: Iterable[ChangelogStateHandle], ranges: Ranges
) -> bool:
    """Whether looking into the changes of these key groups is less than reading them, for these keys."""
    payload_bytes = sum(_payload_bytes(handle, ranges) for handle in handles)
    return bool(keys.num_rows * len(schema.columns) * _VALUE_BYTES <= payload_bytes)


def may_be_looked_into(handle: ChangelogStateHandle) -> bool:
    """Whether its changes are worth looking into."""
    return handle.state_size >= LARGE_CHANGE_BYTES * handle.key_group_range.number_of_key_groups


def _payload_bytes(handle: ChangelogStateHandle, ranges: Ranges) -> int:
    """About as much as the handle has of these key groups."""
    own = handle.key_group_range
    shared = sum(own.intersection(each).number_of_key_groups for each in ranges)
    return handle.state_size * shared // max(1, own.number_of_key_groups)


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
