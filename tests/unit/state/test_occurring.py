"""Which keys occur in another table: as a set of Python's tuples would say, whatever the types."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.state.keys import occurring
from tests.profiles import examples

FEW: dict[pa.DataType, list[Any]] = {
    pa.int64(): [None, 0, 1, -1, 2**63 - 1, -(2**63)],
    pa.int8(): [None, 0, 1, -128],
    pa.bool_(): [None, True, False],
    pa.string(): [None, "", "a", "\0", "ä"],
    pa.binary(): [None, b"", b"a", b"\xff"],
    pa.date32(): [None, dt.date(1970, 1, 1), dt.date(2024, 2, 29)],
    pa.timestamp("us"): [None, dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 4)],
    pa.decimal128(30, 2): [None, Decimal("0.00"), Decimal("-1.50"), Decimal(10**27)],
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    kinds = draw(st.lists(st.sampled_from(list(FEW)), min_size=1, max_size=4))
    key = st.tuples(*(st.sampled_from(FEW[kind]) for kind in kinds))
    schema = pa.schema([(f"k{place}", kind) for place, kind in enumerate(kinds)])
    return _table(schema, draw(st.lists(key, max_size=12))), _table(schema, draw(st.lists(key, max_size=12)))


def _table(schema: pa.Schema, keys: list[tuple[Any, ...]]) -> pa.Table:
    columns = [pa.array([key[place] for key in keys], field.type) for place, field in enumerate(schema)]
    cut = len(keys) // 2  # in two pieces, as rows of several changes are
    whole = pa.table(columns, schema)
    return pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])


@examples(100)
@given(tables())
def test_as_sets_of_tuples_say(drawn: tuple[pa.Table, pa.Table]) -> None:
    """Null is a value like any other, equal to itself."""
    rows, others = drawn
    known = {tuple(row.values()) for row in others.to_pylist()}
    expected = [tuple(row.values()) in known for row in rows.to_pylist()]
    assert occurring(rows, others, rows.column_names).to_pylist() == expected


@pytest.mark.parametrize("count", [2, 3, 6])
def test_each_value_occurs_and_the_key_does_not(count: int) -> None:
    """The columns are not looked at one by one."""
    names = [f"k{place}" for place in range(count)]
    others = pa.table({name: [place, 100] for place, name in enumerate(names)})
    mixed = pa.table({name: [place if place % 2 else 100] for place, name in enumerate(names)})
    assert occurring(mixed, others, names).to_pylist() == [False]
    assert occurring(others, others, names).to_pylist() == [True, True]


def test_text_that_is_not_utf8() -> None:
    """Compared by its bytes."""
    texts = pa.array([b"\xff", b"\xfe", b"a"]).view(pa.string())
    rows, others = pa.table({"k": texts, "n": [1, 1, 1]}), pa.table({"k": texts[:1], "n": [1]})
    assert occurring(rows, others, ["k"]).to_pylist() == [True, False, False]
    assert occurring(rows, others, ["k", "n"]).to_pylist() == [True, False, False]


@pytest.mark.parametrize("known", [[], [0], [None], [5, -1, None], list(range(0, 500_000, 700))])
def test_many_numbers_are_told_apart_by_their_low_bits(known: list[int | None]) -> None:
    """As by a look at each: with nulls, negative numbers, and numbers whose low bits are alike."""
    numbers = np.concatenate([np.arange(-3000, 3000), np.arange(6000) << 16, [2**63 - 1, -(2**63)]])
    rows = pa.table({"k": pa.array(numbers, mask=np.arange(len(numbers)) % 1000 == 7)})
    others = pa.table({"k": pa.array(known, pa.int64())})
    expected = pc.is_in(rows.column("k"), value_set=others.column("k").combine_chunks())
    assert occurring(rows, others, ["k"]).to_pylist() == expected.to_pylist()
