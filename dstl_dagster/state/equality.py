"""Equality of values of any type, over many rows at once.

Owns equality of *values*: exact, bit for bit, null equal to null. Does not own equality of keys (`keys`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dstl_dagster.state import pieces

Flags = npt.NDArray[np.bool_]
_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def same_rows(one: pa.Table, other: pa.Table) -> Flags:
    """For each row, whether two tables of the same schema and length have the same values in it."""
    count = one.num_rows
    if count > 1 and max(one.nbytes, other.nbytes) > pieces.PIECE_BYTES:
        half = count // 2
        first = same_rows(one.slice(0, half), other.slice(0, half))
        return np.append(first, same_rows(one.slice(half), other.slice(half)))
    same = np.ones(count, np.bool_)
    for left, right in zip(one.columns, other.columns, strict=True):
        same &= same_values(left.combine_chunks(), right.combine_chunks())
    return same


def same_values(one: pa.Array, other: pa.Array) -> Flags:
    """For each index, whether two arrays of the same stored type and length have the same value.

    Floating point is compared by its bits: NaN equals itself, and -0.0 differs from 0.0. The order of a
    map's entries counts.
    """
    if not one.null_count and not other.null_count:
        return _same_present(one, other)
    one_valid, other_valid = (each.is_valid().to_numpy(zero_copy_only=False) for each in (one, other))
    same: Flags = one_valid == other_valid
    both = np.flatnonzero(one_valid & other_valid)
    places = pa.array(both)
    same[both] = _same_present(one.take(places), other.take(places))
    return same


def _same_present(one: pa.Array, other: pa.Array) -> Flags:
    kind = one.type
    if pt.is_struct(kind):
        same = np.ones(len(one), np.bool_)
        for left, right in zip(one.flatten(), other.flatten(), strict=True):
            same &= same_values(left, right)
        return same
    if pt.is_map(kind):
        return _same_present(_as_list(one), _as_list(other))
    if pt.is_list(kind):
        return _same_lists(one, other)
    if kind in _BITS:
        one, other = one.view(_BITS[kind]), other.view(_BITS[kind])
    return np.asarray(pc.equal(one, other).to_numpy(zero_copy_only=False), np.bool_)


def _same_lists(one: pa.Array, other: pa.Array) -> Flags:
    lengths, other_lengths = (pc.list_value_length(each).to_numpy() for each in (one, other))
    same: Flags = lengths == other_lengths
    comparable = np.flatnonzero(same)
    places = pa.array(comparable)
    different = ~same_values(one.take(places).flatten(), other.take(places).flatten())
    differences = np.concatenate([[0], np.cumsum(different)])
    ends = np.cumsum(lengths[comparable])
    same[comparable] = differences[ends] == differences[ends - lengths[comparable]]
    return same


def _as_list(maps: pa.Array) -> pa.Array:
    """The maps (without nulls) as lists of their entries."""
    start = maps.offsets[0].as_py()
    offsets = pc.subtract(maps.offsets, start)
    length = offsets[-1].as_py()
    entries = pa.StructArray.from_arrays(
        [maps.keys.slice(start, length), maps.items.slice(start, length)], ["key", "value"]
    )
    return pa.ListArray.from_arrays(offsets, entries)
