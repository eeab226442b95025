"""Rows are cut and taken in pieces with the same result; the limit is lowered, to avoid GiB."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.state import pieces
from dstl_dagster.state.equality import same_rows
from dstl_dagster.state.keys import key_numbers, occurring, refuse_repeated_keys
from dstl_dagster.state.pieces import cut, taken

COUNT = 200


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 400)


def rows_of(numbers: np.ndarray) -> pa.Table:
    """Of every kind of layout, in chunks; some rows are far larger than others."""
    rows = [
        {
            "text": None if number % 7 == 0 else "x" * (number % 90) + str(number),
            "map": [("a", "b" * (number % 5))],
            "list": [str(number)] * (number % 3),
            "number": number,
        }
        for number in numbers.tolist()
    ]
    schema = pa.schema(
        {
            "text": pa.string(),
            "map": pa.map_(pa.string(), pa.string()),
            "list": pa.list_(pa.string()),
            "number": pa.int64(),
        }
    )
    return pa.concat_tables([pa.Table.from_pylist(rows[at : at + 30], schema) for at in range(0, COUNT, 30)])


def test_pieces_are_small_and_leave_nothing_out() -> None:
    rows = rows_of(np.arange(COUNT))
    bounds = cut(rows, more_row_bytes=3)
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == COUNT
    for start, stop in bounds:
        assert stop - start == 1 or rows.slice(start, stop - start).nbytes + 3 * (stop - start) <= 400
    assert cut(rows.slice(0, 0)) == [(0, 0)]


def test_no_piece_has_as_many_rows_as_an_int32_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3 * 2^30 rows, in chunks that share their memory. A state's keys differ, so 2^31 of them have 31
    bits each at least, as these have: every other part of a row makes its pieces shorter.
    """
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 30)
    chunk = pa.array(np.zeros(1 << 20, np.int32))
    rows = pa.table({"key": pa.chunked_array([chunk] * 3072)})
    assert rows.num_rows > 2**31
    bounds = cut(rows)
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == rows.num_rows
    assert max(stop - start for start, stop in bounds) < 2**29


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_taken_in_any_order(seed: int) -> None:
    rows, chance = rows_of(np.arange(COUNT)), np.random.default_rng(seed)
    places = chance.permutation(COUNT)[: chance.integers(0, COUNT)]
    found = taken(rows, places)
    assert found.schema == rows.schema
    assert found.to_pylist() == [rows.slice(place, 1).to_pylist()[0] for place in places]
    assert all(batch.num_rows == 1 or batch.nbytes <= 500 for batch in found.to_batches())


def test_rows_are_compared_in_pieces() -> None:
    numbers = np.arange(COUNT)
    same = same_rows(rows_of(numbers), rows_of(np.where(numbers == 150, 3, numbers)))
    assert np.flatnonzero(~same).tolist() == [150]


def test_keys_with_much_text_are_equal_alike() -> None:
    rows = rows_of(np.arange(COUNT))
    numbers, count = key_numbers(rows, ["text"])
    assert count == COUNT - len(range(0, COUNT, 7)) + 1
    assert (numbers[::7] == 0).all()
    keys = ["text", "number"]
    assert key_numbers(rows, keys)[1] == COUNT
    assert np.flatnonzero(occurring(rows, rows.slice(5, 2), keys)).tolist() == [5, 6]
    twice = pa.concat_tables([rows, rows.slice(9, 1)])
    with pytest.raises(InvalidInputError, match=r"\(text='x+9', number=9\) occurs 2 times"):
        refuse_repeated_keys(twice, keys, np.zeros(COUNT + 1, np.uint16))
