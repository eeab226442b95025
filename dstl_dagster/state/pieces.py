"""Rows of any number of bytes, in pieces that fit an array of Arrow's: its text has 32-bit offsets.

Owns where rows are cut, and what Arrow does on one array alone: taking rows in another order. Does not own
what the pieces are for. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

PIECE_BYTES: Final = 1 << 30
"""Half of what an array can have, so that headers, padding and other types of the same values fit, too."""

Places = npt.NDArray[np.int64]


def cut(rows: pa.Table, more_row_bytes: int = 0) -> list[tuple[int, int]]:
    """Where the pieces begin and end, ascending; at least one. `more_row_bytes`: of what rows will get."""
    count = rows.num_rows
    if count < 2 or rows.nbytes + count * more_row_bytes <= PIECE_BYTES:
        return [(0, count)]
    half = count // 2
    later = cut(rows.slice(half), more_row_bytes)
    earlier = cut(rows.slice(0, half), more_row_bytes)
    return [*earlier, *((half + start, half + stop) for start, stop in later)]


def taken(rows: pa.Table, places: Places) -> pa.Table:
    """As `rows.take(places)`, which fails for more text than one array holds. No place occurs often."""
    if np.array_equal(places, np.arange(rows.num_rows)):
        return rows
    if rows.nbytes <= PIECE_BYTES:
        return rows.combine_chunks().take(pa.array(places))
    bounds = cut(rows)
    sources = [rows.slice(start, stop - start).combine_chunks() for start, stop in bounds]
    starts = np.array([start for start, _ in bounds])
    parts = np.array_split(places, 1 + 2 * rows.nbytes // PIECE_BYTES)
    found = (piece for part in parts for piece in _taken(sources, starts, part))
    return pa.concat_tables([rows.schema.empty_table(), *found])


def _taken(sources: Sequence[pa.Table], starts: Places, places: Places) -> Iterator[pa.Table]:
    """`starts`: the number of each source's first row."""
    source = np.searchsorted(starts, places, side="right") - 1
    order = np.argsort(source, kind="stable")
    ends = np.searchsorted(source[order], np.arange(len(sources) + 1))
    parts = [
        sources[number].take(pa.array(places[order[start:stop]] - starts[number]))
        for number, (start, stop) in enumerate(pairwise(ends.tolist()))
        if start < stop
    ]
    if len(places) > 1 and sum(part.nbytes for part in parts) > PIECE_BYTES:
        del parts
        for half in np.array_split(places, 2):
            yield from _taken(sources, starts, half)
    elif parts:
        yield pa.concat_tables(parts).combine_chunks().take(pa.array(np.argsort(order)))
