"""Values are the same bit for bit, whatever their type."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.state.equality import same_rows, same_values
from tests.profiles import examples

scalars = st.one_of(st.none(), st.integers(-2, 2))
structs = st.one_of(st.none(), st.fixed_dictionaries({"a": scalars, "b": st.lists(scalars, max_size=2)}))
maps = st.one_of(st.none(), st.lists(st.tuples(st.sampled_from("xy"), scalars), max_size=2))
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))])
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), scalars),
    (pa.string(), st.one_of(st.none(), st.sampled_from(["", "a", "b"]))),
    (STRUCT, structs),
    (pa.list_(STRUCT), st.one_of(st.none(), st.lists(structs, max_size=2))),
    (pa.map_(pa.string(), pa.int64()), maps),
    (pa.list_(pa.map_(pa.string(), pa.int64())), st.one_of(st.none(), st.lists(maps, max_size=2))),
]


@examples(60)
@given(st.data())
def test_nested_values_are_compared_as_python_compares_them(data: st.DataObject) -> None:
    """Nulls, empty lists, lists in lists, at any offset in their buffers."""
    for kind, values in KINDS:
        pairs = data.draw(st.lists(st.tuples(values, values), max_size=8))
        left, right = (pa.array([pair[side] for pair in [(None, None), *pairs]], kind) for side in (0, 1))
        assert same_values(left[1:], right[1:]).tolist() == [one == other for one, other in pairs], kind


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floating_point_is_compared_by_bits(kind: pa.DataType) -> None:
    """NaN equals itself, and 0.0 differs from -0.0."""
    left = pa.array([math.nan, 0.0, 1.5, None, math.nan], kind)
    right = pa.array([math.nan, -0.0, 1.5, math.nan, 1.0], kind)
    assert same_values(left, right).tolist() == [True, False, True, False, False]


def test_a_row_is_the_same_if_every_column_is() -> None:
    """One differing column is enough; tables without columns or rows are equal."""
    left = pa.table({"a": [1, 2, 3], "b": ["x", "y", None]})
    right = pa.table({"a": [1, 2, 4], "b": ["x", "z", None]})
    assert same_rows(left, right).tolist() == [True, False, False]
    assert same_rows(left.slice(0, 0), right.slice(0, 0)).tolist() == []
