"""Rows that could not be read back as they are given, or not at all: refused when they are encoded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.state import StateSchema
from dstl_dagster.state.changes import decode_change
from tests.doubles.encoded import encode_changes


@pytest.mark.parametrize("kind", [pa.time64("us"), pa.struct([("t", pa.time64("us")), ("s", pa.string())])])
def test_bits_that_are_no_value_of_the_type_are_refused(kind: pa.DataType) -> None:
    """Readers check them, so state that holds them could never be read; text beside them is not checked."""
    schema = StateSchema.of(pa.schema({"id": pa.int8(), "value": kind}), ["id"], 8)
    for microseconds, good in ((0, True), (-1, False)):
        value = pa.array([microseconds], pa.int64()).view(pa.time64("us"))
        if pa.types.is_struct(kind):
            text = pa.array([b"\xff"], pa.binary()).view(pa.string())
            value = pa.StructArray.from_arrays([value, text], fields=list(kind.fields))
        batch = pa.table([pa.array([1], pa.int8()), value], schema=schema.columns)
        if good:
            change = encode_changes(schema, batch, np.array([0])).changes[0].as_py()
            assert decode_change(schema, change).num_rows == 1
        else:
            with pytest.raises(InvalidInputError, match="'value' does not fit its type"):
                encode_changes(schema, batch, np.array([0]))


@pytest.mark.parametrize("fields", [["Name"], ["name", "more"]])
@pytest.mark.parametrize("wrap", [lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind)])
def test_a_struct_with_other_fields_is_refused(fields: list[str], wrap: Any) -> None:
    """Arrow's cast would leave out what the state's type lacks, and fill in null, without a word."""
    schema = StateSchema.of(
        pa.schema({"id": pa.int8(), "s": wrap(pa.struct([("name", pa.string())]))}), ["id"], 8
    )
    given = wrap(pa.struct([(name, pa.string()) for name in fields]))
    batch = pa.table({"id": pa.array([1], pa.int8()), "s": pa.nulls(1, given)})
    with pytest.raises(InvalidInputError, match="names of a struct's fields are part of its type") as caught:
        encode_changes(schema, batch, np.array([0]))
    assert caught.value.kind == "schema_change"


def test_the_case_of_a_structs_fields_is_part_of_its_type() -> None:
    """The error says so, and what to do."""
    one, other = (
        StateSchema.of(pa.schema({"id": pa.int8(), "s": pa.struct([(name, pa.string())])}), ["id"], 8)
        for name in ("Name", "name")
    )
    with pytest.raises(InvalidInputError, match="Cast the column to the state's type") as caught:
        one.evolved_to(other)
    assert caught.value.kind == "schema_change"
