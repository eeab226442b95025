"""Rows of the same key: in two tables, and in the state beside rows that a merge brings.

Owns which row of either side belongs to a key, and which rows a merge writes. Does not own when two values
are equal (`state.equality`), or reading the state (`keyed_state`). Pure.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstl_dagster.state import StateSchema, key_numbers, refuse_repeated_keys, same_rows, taken

Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


class Pairs(NamedTuple):
    """For each key its row numbers, -1 where that side does not have it: ascending in `before`, then in
    `after`.
    """

    before: Places
    after: Places

    @property
    def in_both(self) -> Flags:
        found: Flags = (self.before >= 0) & (self.after >= 0)
        return found


def paired_rows(schema: StateSchema, before: pa.Table, after: pa.Table) -> Pairs:
    """Of several rows of one key, the last."""
    names = list(schema.key_columns)
    keys = pa.concat_tables([before.select(names), after.select(names)])
    numbers, count = key_numbers(keys, names)
    pairs = Pairs(np.full(count, -1), np.full(count, -1))
    pairs.before[numbers[: before.num_rows]] = np.arange(before.num_rows)
    pairs.after[numbers[before.num_rows :]] = np.arange(after.num_rows)
    return pairs


class Beside(NamedTuple):
    """The state's row of each key.

    Attributes:
        old: as many rows as there are keys; null in every column where the state has none.
        in_state: which keys have one.
    """

    old: pa.Table
    in_state: Flags


def beside(schema: StateSchema, state: pa.Table, keys: pa.Table) -> Beside:
    """`state`: the rows of these keys, each once, in any order. `keys`: the key columns, in their types.

    Raises: InvalidInputError (kind `duplicate_key`) if a key occurs more than once.
    """
    pairs = paired_rows(schema, state, keys)
    if np.count_nonzero(pairs.after >= 0) < keys.num_rows:
        refuse_repeated_keys(keys, schema.key_columns, np.zeros(keys.num_rows, np.uint16))
    absent = state.num_rows
    at = np.full(keys.num_rows, absent)
    at[pairs.after[pairs.in_both]] = pairs.before[pairs.in_both]
    blank = pa.table([pa.nulls(1, field.type) for field in state.schema], schema=state.schema)
    old = taken(pa.concat_tables([state, blank]), at)
    return Beside(old, at < absent)


def changed_rows(before: pa.Table, after: pa.Table, in_state: Flags, deleted: Flags) -> Flags:
    """Which rows a merge writes: of keys that are in the state, those deleted or with other values; and new
    ones that are not deleted. `before`, `after`: of one schema.
    """
    changed: Flags = np.where(deleted, in_state, ~in_state | ~same_rows(before, after))
    return changed
