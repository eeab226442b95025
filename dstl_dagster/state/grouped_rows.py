"""Rows by their key groups, some whole key groups at a time.

Owns how many rows are handed over together, and which. Does not own the key group of a key
(`key_group_hash`), or what the rows are for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstl_dagster.format import KeyGroupRange, ranges_of_tasks
from dstl_dagster.state.key_group_hash import group_of_hashes, key_hashes
from dstl_dagster.state.pieces import cut
from dstl_dagster.state.schema import StateSchema

_HELD_ROW_BYTES: Final = 64
"""For each row of a piece while it is used, beside the row: its hash, its place, and copies."""

_LOOKED_AT_ROWS: Final = 1 << 18


class Piece(NamedTuple):
    """All rows of some key groups, in their order.

    Attributes:
        places: of each row among all.
        hashes: of the keys, where they are known.
    """

    rows: pa.Table
    groups: npt.NDArray[np.unsignedinteger]
    places: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.int32] | None


class GroupedRows:
    """Rows of any number. Beside them it holds the key group of each.

    Raises InvalidInputError if a key column is missing or does not fit its type.
    """

    def __init__(self, rows: pa.Table, schema: StateSchema) -> None:
        self._rows = rows
        self._groups = np.zeros(rows.num_rows, np.min_scalar_type(schema.max_parallelism - 1))
        self._counts = np.zeros(schema.max_parallelism, np.int64)
        self._hashes: npt.NDArray[np.int32] | None = None
        bounds = cut(rows, _HELD_ROW_BYTES)
        self._pieces = len(bounds)
        for start, stop in bounds:
            part = rows.slice(start, stop - start)
            hashes = key_hashes(part, schema)
            groups = group_of_hashes(hashes, part, schema)
            self._groups[start:stop] = groups
            self._counts += np.bincount(groups, minlength=schema.max_parallelism)
            self._hashes = hashes if self._pieces == 1 else None

    @property
    def group_count(self) -> int:
        """Key groups that have rows."""
        return int(np.count_nonzero(self._counts))

    def count(self, key_groups: KeyGroupRange) -> int:
        """Rows in these key groups."""
        return int(self._counts[key_groups.start_key_group : key_groups.end_key_group + 1].sum())

    def pieces(self, key_groups: KeyGroupRange | None = None) -> Iterator[Piece]:
        """The rows in these key groups, or all; ascending by key group from piece to piece. At least one."""
        first, number = 0, len(self._counts)
        if key_groups is not None:
            first, number = key_groups.start_key_group, key_groups.number_of_key_groups
        count = math.ceil(self._pieces * number / len(self._counts))
        for each in ranges_of_tasks(min(count, number), number):
            yield self._piece(first + each.start_key_group, first + each.end_key_group)

    def _piece(self, first: int, last: int) -> Piece:
        batches, places, start = [], [np.zeros(0, np.int64)], 0
        for batch in self._rows.to_batches(max_chunksize=_LOOKED_AT_ROWS):
            groups = self._groups[start : start + batch.num_rows]
            found = np.flatnonzero((first <= groups) & (groups <= last))
            batches.append(batch if len(found) == len(groups) else batch.take(pa.array(found)))
            places.append(found + start)
            start += batch.num_rows
        chosen = np.concatenate(places)
        rows = pa.Table.from_batches(batches, self._rows.schema)
        return Piece(
            rows, self._groups[chosen], chosen, None if self._hashes is None else self._hashes[chosen]
        )
