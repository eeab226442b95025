"""Rows beside the state's rows of their keys, and which of them a merge changes. Pure.

Owns both. Does not own where a rule's expressions are evaluated (Spark, or `state.rules`), or writing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstl_dagster.keyed.diff import paired_rows
from dstl_dagster.state import StateSchema, same_rows

__all__ = ["Beside", "beside", "changed_rows"]

Flags = npt.NDArray[np.bool_]


class Beside(NamedTuple):
    """The state's row of each key.

    Attributes:
        old: as many rows as there are keys; null in every column where the state has none.
        in_state: which keys have one.
        repeated: whether a key occurs more than once.
    """

    old: pa.Table
    in_state: Flags
    repeated: bool


def beside(schema: StateSchema, state: pa.Table, keys: pa.Table) -> Beside:
    """`state`: the rows of these keys, each once, in any order. `keys`: the key columns, in their types."""
    pairs = paired_rows(schema, state, keys)
    pairs = pairs.filter(pairs.column("after_max").is_valid())
    at = np.zeros(keys.num_rows, np.int64)
    in_state = np.zeros(keys.num_rows, np.bool_)
    with_state = pairs.filter(pairs.column("before_max").is_valid())
    at[with_state.column("after_max").to_numpy()] = with_state.column("before_max").to_numpy()
    in_state[with_state.column("after_max").to_numpy()] = True
    return Beside(state.take(pa.array(at, mask=~in_state)), in_state, pairs.num_rows < keys.num_rows)


def changed_rows(before: pa.Table, after: pa.Table, in_state: Flags, deleted: Flags) -> Flags:
    """Which rows a merge writes: of keys that are in the state, those deleted or with other values; and new
    ones that are not deleted. `before`, `after`: of one schema.
    """
    changed: Flags = np.where(deleted, in_state, ~in_state | ~same_rows(before, after))
    return changed
