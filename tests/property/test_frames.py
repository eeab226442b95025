"""Rows of every library, written to keyed state twice: what is read back is the plain Python values.

The producers and the drift between two writes are drawn; the oracle is Python's own arithmetic.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.jobs import merge_frame, write_frame
from dstl_dagster.storage import MemoryObjectStore
from tests.profiles import examples

Columns = dict[str, list[Any]]
"""Plain values; a column's Arrow type is `TYPES`'s of its name."""

UTC = dt.UTC
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)),
    "octets": (pa.binary(), st.binary(max_size=20)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "flag": (pa.bool_(), st.booleans()),
    "share": (pa.float64(), st.floats(allow_nan=False)),
    "price": (pa.decimal128(10, 2), st.decimals(-99999999, 99999999, places=2)),
    "day": (pa.date32(), st.dates()),
    "at": (
        pa.timestamp("us", "UTC"),
        st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(UTC)),
    ),
    "texts": (pa.list_(pa.string()), st.lists(st.text("ab", max_size=15), max_size=3)),
    "pair": (
        pa.struct([("x", pa.string()), ("y", pa.int64())]),
        st.fixed_dictionaries({"x": st.none() | st.text("xyz", max_size=14), "y": st.integers(0, 9)}),
    ),
}
KINDS = {name: kind for name, (kind, _) in VALUES.items()}


def arrow_of(columns: Columns) -> pa.Table:
    return pa.table({name: pa.array(values, KINDS.get(name, pa.int64())) for name, values in columns.items()})


def as_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.string_view()
    if pa.types.is_binary(kind):
        return pa.binary_view()
    if pa.types.is_list(kind):
        return pa.large_list(as_views(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, as_views(field.type)) for field in kind.fields])
    return kind


def in_views(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([(field.name, as_views(field.type)) for field in table.schema]))


def in_dictionaries(table: pa.Table) -> pa.Table:
    encoded = [
        column.dictionary_encode() if name in {"text", "octets", "day"} else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return pa.table(encoded, names=table.column_names)


def in_pieces(table: pa.Table) -> pa.Table:
    """Chunks that are slices of something larger, the first one empty."""
    twice = pa.concat_tables([table, table]).combine_chunks()
    half = table.num_rows // 2
    return pa.concat_tables(
        [twice.slice(1, 0), twice.slice(table.num_rows, half), twice.slice(half, table.num_rows - half)]
    )


class Streams:
    """Nothing but the Arrow C stream interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def of_duckdb(table: pa.Table) -> Any:
    connection = duckdb.connect()
    connection.register("given", table)
    return connection.sql("SELECT * FROM given")


def categorical(frame: pl.DataFrame) -> pl.DataFrame:
    if "text" not in frame.columns:
        return frame
    return frame.with_columns(pl.col("text").cast(pl.Categorical))


def enumerated(frame: pl.DataFrame) -> pl.DataFrame:
    if "text" not in frame.columns:
        return frame
    names = frame["text"].drop_nulls().unique(maintain_order=True).to_list()
    return frame.with_columns(pl.col("text").cast(pl.Enum(names)))


def pandas_categories(table: pa.Table) -> pd.DataFrame:
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return frame.astype({"text": "category"}) if "text" in frame else frame


def nullable(table: pa.Table) -> pd.DataFrame:
    """Pandas' own dtypes that have a null."""
    known = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype(), pa.string(): pd.StringDtype()}
    return table.to_pandas(types_mapper=known.get)


PRODUCERS: dict[str, Callable[[pa.Table], Any]] = {
    "arrow": lambda table: table,
    "arrow views": in_views,
    "arrow large": lambda t: t.cast(
        pa.schema([(f.name, pa.large_string() if pa.types.is_string(f.type) else f.type) for f in t.schema])
    ),
    "arrow dictionaries": in_dictionaries,
    "arrow pieces": in_pieces,
    "arrow pieces of views": lambda table: in_pieces(in_views(table)),
    "record batch": lambda table: table.combine_chunks().to_batches()[0] if table.num_rows else table,
    "reader": lambda table: table.to_reader(max_chunksize=2),
    "dataset": ds.dataset,
    "scanner": lambda table: ds.dataset(table).scanner(),
    "stream": Streams,
    "pandas": lambda table: table.to_pandas(),
    "pandas nullable": nullable,
    "pandas arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "pandas arrow views": lambda table: in_views(table).to_pandas(types_mapper=pd.ArrowDtype),
    "pandas categorical": pandas_categories,
    "polars": pl.from_arrow,
    "polars categorical": lambda table: categorical(pl.from_arrow(table)),  # type: ignore[arg-type]
    "polars enum": lambda table: enumerated(pl.from_arrow(table)),  # type: ignore[arg-type]
    "polars lazy": lambda table: pl.from_arrow(table).lazy(),  # type: ignore[union-attr]
    "duckdb": of_duckdb,
}

LOSSY_INTEGERS = {"pandas"}
"""Whose whole numbers become floats beside a null, before we see them."""


class Written:
    """A job in memory, and what its operator has."""

    def __init__(self) -> None:
        self.coordinator = CheckpointCoordinator("job", MemoryObjectStore())

    def write(self, rows: Any, **how: Any) -> None:
        batch = Batch.open(self.coordinator)
        try:
            write = merge_frame if "update" in how else write_frame
            batch.add(write(rows, batch, operator="op", keys=["k"], **how))
        except BaseException as error:
            batch.abort(str(error))
            raise
        batch.complete()

    @property
    def table(self) -> pa.Table:
        return self.coordinator.read_state("op").to_arrow().sort_by("k")

    @property
    def values(self) -> Columns:
        found: Columns = self.table.to_pydict()
        return found


@st.composite
def tables(draw: st.DrawFn) -> Columns:
    size = draw(st.integers(0, 6))
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True))
    columns: Columns = {"k": list(range(size))}
    for name in names:
        columns[name] = [draw(st.none() | VALUES[name][1]) for _ in range(size)]
    return columns


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.copysign(1, one) == math.copysign(1, other) and one == other
    return bool(one == other)


@pytest.mark.parametrize("producer", sorted(PRODUCERS))
@given(columns=tables(), again=tables())
@examples(8)
def test_what_is_read_is_what_was_returned(producer: str, columns: Columns, again: Columns) -> None:
    """In the types of its values; a second write of the same library replaces rows and adds columns."""
    if producer in LOSSY_INTEGERS:
        for each in (columns, again):
            each["long"] = [v if v is None or abs(v) <= 2**53 else 7 for v in each.get("long", each["k"])]
    job, expected = Written(), {}
    # The first one has a type for every column, whichever library it is.
    job.write(arrow_of({name: [] for name in {**columns, **again}}))
    for each in (columns, again):
        job.write(PRODUCERS[producer](arrow_of(each)))
        for row, key in enumerate(each["k"]):
            expected[key] = {name: values[row] for name, values in each.items()}
    found = job.table
    for field in found.schema:
        assert field.type == KINDS.get(field.name, pa.int64())
    rows = found.to_pylist()
    assert [row["k"] for row in rows] == sorted(expected)
    for row in rows:
        for name, value in row.items():
            assert same(value, expected[row["k"]].get(name)), (name, value)


NUMBERS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "int64": (pa.int64(), st.sampled_from([0, 1, -1, 2**53, 2**53 + 1, 2**60, 2**63 - 1, -(2**63)])),
    "uint32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "uint64": (pa.uint64(), st.sampled_from([0, 7, 2**63, 2**63 - 1, 2**64 - 1])),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (
        pa.float64(),
        st.floats() | st.integers(-(2**55), 2**55).map(float) | st.sampled_from([2.0**63, -(2.0**63), -0.0]),
    ),
    "decimal(5,2)": (pa.decimal128(5, 2), st.decimals(-999, 999, places=2)),
    "decimal(38,0)": (pa.decimal128(38, 0), st.integers(-(2**70), 2**70).map(Decimal)),
    "text": (pa.string(), st.text("12", max_size=3)),
    "null": (pa.null(), st.none()),
    "bool": (pa.bool_(), st.booleans()),
}


def holds(kind: pa.DataType, value: Any) -> bool:
    """Whether a column of this type has a value equal to this one, by Python's arithmetic alone."""
    if value is None:
        return True
    number = not isinstance(value, (str, bool))
    if pa.types.is_integer(kind):
        bound = 2 ** (kind.bit_width - 1)
        return number and math.isfinite(value) and value == int(value) and -bound <= value < bound
    if pa.types.is_floating(kind):
        if isinstance(value, float):
            return True
        exact = number and value == int(value) and abs(value) < 2**63 and float(value) == value
        return exact and (kind == pa.float64() or float(np.float32(float(value))) == value)
    if pa.types.is_decimal(kind):
        whole = number and math.isfinite(value) and abs(value) < 10 ** (kind.precision - kind.scale)
        if isinstance(value, Decimal):
            return whole and value == round(value, kind.scale)
        return whole and value == int(value) and -(2**63) <= value < 2**63
    return isinstance(value, str if pa.types.is_string(kind) else bool)


def widened(kind: pa.DataType, then: pa.DataType) -> pa.DataType:
    """The type of the column afterwards: of its own kind it becomes a longer one, also in a list."""
    then = pa.int64() if then == pa.uint32() else then
    for is_of_kind in (pa.types.is_signed_integer, pa.types.is_floating):
        if is_of_kind(kind) and is_of_kind(then):
            return max(kind, then, key=lambda each: each.bit_width)
    return kind


@given(st.data())
@examples(40)
def test_a_column_that_drifts_is_held_exactly_or_refused_by_its_row(data: st.DataObject) -> None:
    """Nothing is rounded, wrapped or cut, in a plain column and inside of a list."""
    first = data.draw(st.sampled_from(sorted(set(NUMBERS) - {"null", "uint64"})), label="first")
    then = data.draw(st.sampled_from(sorted(NUMBERS)), label="then")
    nested = data.draw(st.booleans(), label="in a list")
    before = data.draw(st.lists(NUMBERS[first][1], min_size=1, max_size=2), label="before")
    after = data.draw(st.lists(st.none() | NUMBERS[then][1], max_size=4), label="after")

    def table(kind: pa.DataType, values: list[Any], start: int) -> pa.Table:
        column = pa.array(values, kind)
        if nested:
            column = pa.array([[None, value] for value in values], pa.list_(kind))
        return pa.table({"k": pa.array(range(start, start + len(values)), pa.int64()), "v": column})

    job = Written()
    job.write(table(NUMBERS[first][0], before, 0))
    (kind,) = [field.type for field in job.table.schema if field.name == "v"]
    kind = widened(kind.value_type if nested else kind, NUMBERS[then][0])
    offender = next((row for row, value in enumerate(after) if not holds(kind, value)), None)
    if offender is not None:
        message = rf"^state of operator 'op': column 'v' is .* of row {offender}:"
        with pytest.raises(InvalidInputError, match=message):
            job.write(table(NUMBERS[then][0], after, 10))
        assert len(job.values["k"]) == len(before)
        return
    job.write(table(NUMBERS[then][0], after, 10))
    found = job.values["v"][len(before) :]
    held = [each[1] for each in found] if nested else found
    for value, stored in zip(after, held, strict=True):
        assert (value is None) == (stored is None)
        assert value is None or stored == value or (value != value and stored != stored)


ONE = pd.DataFrame({"k": [1], "v": [1]})
TEXT = pd.DataFrame({"k": [1], "v": ["a"]})
NAN = float("nan")


def two(*values: Any) -> pd.DataFrame:
    return pd.DataFrame({"k": range(2, 2 + len(values)), "v": values})


DRIFTS: dict[str, tuple[Any, Any, list[Any]]] = {
    "a column of nothing": (TEXT, two(None), ["a", None]),
    "an empty frame": (TEXT, pd.DataFrame({"k": [], "v": []}), ["a"]),
    "a frame without columns": (TEXT, pd.DataFrame(), ["a"]),
    "an empty frame with a new column": (TEXT, pd.DataFrame({"k": [], "w": []}, dtype=object), ["a"]),
    "an empty frame of Polars": (TEXT, pl.DataFrame({"k": [], "v": []}), ["a"]),
    "whole numbers, then missing": (ONE, two(2, NAN), [1, 2, None]),
    "all missing": (ONE, two(NAN), [1, None]),
    "a flag that is missing": (pd.DataFrame({"k": [1], "v": [True]}), two(None, False), [True, None, False]),
    "fractions, then whole": (pd.DataFrame({"k": [1], "v": [1.5]}), two(2), [1.5, 2.0]),
    "decimals, then whole": (
        pd.DataFrame({"k": [1], "v": [Decimal("1.50")]}),
        two(2),
        [Decimal("1.50"), Decimal("2.00")],
    ),
    "a longer key": (pa.table({"k": pa.array([1], pa.int16()), "v": [1]}), two(2), [1, 2]),
    "lists, then an empty one": (pd.DataFrame({"k": [1], "v": [["a"]]}), two([]), [["a"], []]),
    "a count of Polars": (pl.DataFrame({"k": [1]}).group_by("k").len("v"), two(5), [1, 5]),
    "a sum of DuckDB": (ONE, duckdb.sql("SELECT 2 AS k, sum(x) AS v FROM range(3) t(x)"), [1, 3]),
    "durations": (
        pl.DataFrame({"k": [1], "v": [dt.timedelta(seconds=1)]}),
        two(pd.Timedelta("2s")),
        [dt.timedelta(seconds=1), dt.timedelta(seconds=2)],
    ),
}


@pytest.mark.parametrize("name", sorted(DRIFTS))
def test_ordinary_drift_goes_in(name: str) -> None:
    """The state's types stay."""
    first, then, expected = DRIFTS[name]
    job = Written()
    job.write(first)
    kinds = job.table.schema
    job.write(then)
    assert job.table.schema == kinds
    assert job.values["v"] == expected


NO_VALUES = {
    "nothing": two(None),
    "missing numbers": two(NAN),
    "no rows": pd.DataFrame({"k": [], "v": []}),
    "no columns": pd.DataFrame(),
    "no rows of Polars": pl.DataFrame({"k": [], "v": []}),
}


@pytest.mark.parametrize("name", sorted(NO_VALUES))
def test_a_column_without_values_is_merged(name: str) -> None:
    """By a rule in SQL, for which it has the type that it has on other days."""
    job = Written()
    rule = {"update": {"v": "coalesce(new.v, old.v)"}, "schema": "k BIGINT, v STRING"}
    for rows in (TEXT, NO_VALUES[name]):
        job.write(rows, **rule)
    assert job.values["v"] == ["a", None][: 1 + len(NO_VALUES[name])]


def test_deletes_come_from_any_column_of_flags() -> None:
    """Null means no, and a column of nothing deletes none."""
    job = Written()
    job.write(pd.DataFrame({"k": [1, 2, 3], "v": ["a", "b", "c"]}))
    job.write(pd.DataFrame({"k": [1, 2], "v": ["x", "y"], "gone": [None, None]}), deleted="gone")
    job.write(pl.DataFrame({"k": [1, 3], "v": ["z", None], "gone": [None, True]}), deleted="gone")
    assert job.values == {"k": [1, 2], "v": ["z", "y"]}
