"""A repeated key is found by its hash; equal hashes alone prove nothing."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.state import ChangeEncoder, StateSchema, key_group_of
from dstl_dagster.state.keys import last_occurrences, refuse_repeated_keys
from tests.doubles.encoded import encode_changes

SCHEMA = StateSchema.of(pa.schema({"id": pa.int64(), "value": pa.int64()}), ["id"], 16)


def batch(ids: range) -> pa.RecordBatch:
    return pa.record_batch([pa.array(list(ids)), pa.array([0] * len(ids))], ["id", "value"])


def test_other_keys_with_one_hash_are_taken() -> None:
    """All keys collide, none is repeated: every row is encoded."""
    encoder = ChangeEncoder(SCHEMA, chunk_bytes=100)
    for ids in (range(50), range(50, 100)):
        rows = batch(ids)
        encoder.add(rows, key_group_of(rows, SCHEMA), hashes=np.zeros(50, np.int32))
    encoder.finish()
    assert encoder.upserts == 100


@pytest.mark.parametrize("second", [range(49, 60), range(60, 70)])
def test_a_key_in_two_chunks_is_named(second: range) -> None:
    """Found at the end, wherever its rows are; with one row fewer nothing is refused."""
    encoder = ChangeEncoder(SCHEMA, chunk_bytes=100)
    for ids in (range(50), second):
        rows = batch(ids)
        encoder.add(rows, key_group_of(rows, SCHEMA))
    if 49 not in second:
        encoder.finish()
        return
    with pytest.raises(InvalidInputError, match=r"key \(id=49\) occurs 2 times") as refused:
        encoder.finish()
    assert refused.value.kind == "duplicate_key"


@pytest.mark.parametrize("name", [".a", ".", "[0]", "a.b", "count_all", "index_max", ""])
def test_a_key_column_may_have_any_name(name: str) -> None:
    """Also one that an Arrow grouping reads as a path, or gives to its own result."""
    rows = pa.table({name: [1, 2, 1], "value": [1, 2, 3]})
    assert last_occurrences(rows, [name]).tolist() == [1, 2]
    with pytest.raises(InvalidInputError, match=re.escape(f"key ({name}=1) occurs 2 times")):
        refuse_repeated_keys(rows, [name], np.zeros(3, np.uint16))


@pytest.mark.parametrize(
    ("kind", "number"), [(pa.date32(), 2**31 - 1), (pa.date32(), -(2**31)), (pa.timestamp("us"), 2**63 - 1)]
)
def test_a_repeated_date_outside_of_pythons_range_is_named_by_its_number(
    kind: pa.DataType, number: int
) -> None:
    """Spark's dates reach further than Python's: the refusal must not become another error."""
    schema = StateSchema.of(pa.schema({"day": kind}), ["day"], 4)
    stored = pa.array([number, number], pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
    with pytest.raises(InvalidInputError, match=rf"day='{number} .*occurs 2 times") as refused:
        encode_changes(schema, pa.table({"day": stored}), np.zeros(2, np.int32))
    assert refused.value.kind == "duplicate_key"
