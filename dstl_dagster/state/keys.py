"""Equality of keys, over many rows at once.

Owns what "the same key" means: equal in every key column, where null is a value like any other, equal to
itself (as in GROUP BY, not as in `=`), and text is compared by its bytes. Does not own a key's key group: the
producer assigns it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.state import pieces
from dstl_dagster.state.text import python_rows

_RUN_ROWS = 32 * 1024
"""Rows of a hash table that still fits into the CPU cache: three times faster than one of millions."""

_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_LOW_BITS = 1 << 16
_LOW_BITS_ROWS = 4 * 1024

Indices = npt.NDArray[np.int64]


class KeysOfGroups(NamedTuple):
    """Keys in the types of a schema, and the key group of each, ascending."""

    rows: pa.Table
    key_groups: npt.NDArray[np.int32]

    def within(self, first: int, last: int) -> pa.Table:
        """Those of the key groups `first` to `last`, inclusive."""
        start = int(np.searchsorted(self.key_groups, first))
        return self.rows.slice(start, int(np.searchsorted(self.key_groups, last, side="right")) - start)


def last_occurrences(rows: pa.Table, key_columns: Sequence[str]) -> Indices:
    """The indices, ascending, of the last row of each key."""
    numbers, count = key_numbers(rows, key_columns)
    last = np.empty(count, np.int64)
    last[numbers] = np.arange(rows.num_rows)  # of several rows with one number, the last is assigned
    return np.sort(last)


def key_numbers(rows: pa.Table, key_columns: Sequence[str]) -> tuple[Indices, int]:
    """A number for each row, equal for equal keys: from 0 on, as keys first occur; and how many there are."""
    codes, count = _codes(*_columns(key_columns[0], rows))
    for name in key_columns[1:]:
        more, distinct = _codes(*_columns(name, rows))
        if distinct < 2 or count < 2:  # one of both distinguishes nothing, such as the day of a partition
            codes, count = (codes, count) if distinct < 2 else (more, distinct)
            continue
        # Below the square of the number of rows. Numbered anew, so that another column fits as well.
        codes, count = _codes(pa.array(codes * distinct + more))
    return codes, count


def _codes(column: pa.Array) -> tuple[Indices, int]:
    """A number for each value, from 0 on without gaps, null included; and how many there are."""
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def occurring(rows: pa.Table, others: pa.Table, key_columns: Sequence[str]) -> pa.BooleanArray:
    """For each row, whether its key is one of `others`; both have the same types.

    Costs a look into a hash table of `others` for each row and key column, so it is for a small `others`.
    """
    known, codes = _columns(key_columns[0], others, rows)
    for name in key_columns[1:]:
        # The keys so far as one number: its place among the others' values, null if it is none of them.
        columns = [_places(known, known), _places(codes, known)]
        both = _columns(name, others, rows)
        known, codes = (
            pc.add(pc.multiply(columns[each], len(both[0])), _places(column, both[0]))
            for each, column in enumerate(both)
        )
    return _is_in(codes, known)


def _is_in(codes: pa.Array, known: pa.Array) -> pa.BooleanArray:
    """For each of `codes` whether it is in `known`; both have one type.

    Of many numbers, most are seen to be none of few others by their low bits, without a look into a hash
    table: they are found in a small array that stays in the CPU's cache.
    """
    if len(known) == 1:
        (one,) = known
        return pc.fill_null(pc.equal(codes, one), False) if one.is_valid else pc.is_null(codes)
    if not pt.is_int64(codes.type) or len(codes) < _LOW_BITS_ROWS or len(known) > (_LOW_BITS >> 2):
        return pc.is_in(codes, value_set=known)
    seen = np.zeros(_LOW_BITS, np.bool_)
    seen[_low_bits(known)] = True
    found = seen.take(_low_bits(codes), mode="clip")
    maybe = np.flatnonzero(found)
    found[maybe] = pc.is_in(codes.take(pa.array(maybe)), value_set=known).to_numpy(zero_copy_only=False)
    return pa.array(found)


def _low_bits(numbers: pa.Array) -> Indices:
    """Of 64-bit numbers; of a null those of 0."""
    filled = numbers.fill_null(0) if numbers.null_count else numbers
    low: Indices = np.bitwise_and(filled.to_numpy(), _LOW_BITS - 1)
    return low


def _places(column: pa.Array, values: pa.Array) -> pa.Array:
    """As 64-bit numbers: the place of each among the distinct values, which may hold a null; null if none."""
    return pc.index_in(column, value_set=values.unique()).cast(pa.int64())


def _columns(name: str, *tables: pa.Table) -> list[pa.Array]:
    """The column of each, as one array; all of one type, with wide offsets where text does not fit others."""
    columns = [rows.column(name) for rows in tables]
    kind = _WIDE.get(columns[0].type)
    if kind is not None and max(column.nbytes for column in columns) > pieces.PIECE_BYTES:
        columns = [column.cast(kind) for column in columns]
    return [column.combine_chunks() for column in columns]


def refuse_repeated_keys(
    rows: pa.Table, key_columns: Sequence[str], sorted_groups: npt.NDArray[np.uint16]
) -> None:
    """Pass if every key occurs once. `sorted_groups`: the key group of each row, ascending.

    Raises: InvalidInputError (kind `duplicate_key`) naming the first repeated key.
    """
    for start, end in _whole_group_runs(sorted_groups):
        keys = rows.slice(start, end - start)
        numbers, count = key_numbers(keys, key_columns)
        if count == keys.num_rows:
            continue
        times = np.bincount(numbers)
        place = int(np.argmax(times[numbers] > 1))
        (repeated,) = python_rows(keys.slice(place, 1).select(list(key_columns)))
        shown = ", ".join(f"{name}={value!r}" for name, value in repeated.items())
        raise InvalidInputError(
            f"key ({shown}) occurs {times[numbers[place]]} times in one checkpoint, but each key may occur "
            "once: aggregate the rows by key first",
            kind=ErrorKind.DUPLICATE_KEY,
        )


def _whole_group_runs(sorted_groups: npt.NDArray[np.uint16]) -> Iterator[tuple[int, int]]:
    """Cut ascending key groups into runs [start, end) of whole key groups, each of about `_RUN_ROWS`.

    All rows of a key are in one run, because they are in one key group.
    """
    total = len(sorted_groups)
    start = 0
    while start < total:
        last = sorted_groups[min(start + _RUN_ROWS, total) - 1]
        end = int(np.searchsorted(sorted_groups, last, side="right"))
        yield start, end
        start = end
