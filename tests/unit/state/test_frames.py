"""Objects that are no rows, and columns that their library cannot hand over: one sentence for each."""

from __future__ import annotations

import datetime as dt
import struct
import subprocess
import sys
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.state import StateSchema, as_table, fitted_rows, pieces, schema_to_write

WHAT = "state of operator 'op'"
KNOWN = StateSchema.of(
    pa.schema(
        {
            "k": pa.string(),
            "v": pa.int64(),
            "t": pa.timestamp("us"),
            "d": pa.decimal128(5, 2),
            "f": pa.float32(),
        }
    ),
    ["k"],
)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (None, "NoneType is no rows: expected a DataFrame of Spark, pandas or Polars"),
        ([{"k": 1}], "list is no rows"),
        (pd.Series([1]), "Series is no rows"),
        (pl.Series("a", [1]), "Series is no rows"),
        (pa.array([{"a": 1}]), "StructArray is no rows"),
        (pa.chunked_array([[1]]), "ChunkedArray is no rows"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns are named 'a': rename one"),
        (pa.table([[1], [2]], names=["a", "a"]), "two columns are named 'a': rename one"),
        (
            pd.DataFrame({"k": [1, 2], "a": [1, "x"]}),
            "pandas cannot hand over column 'a', from row 1 on, which has 'x' (str)",
        ),
        (
            pd.DataFrame({"a": ["x", None, 7]}),
            "column 'a', from row 2 on, which has 7",
        ),
        (pd.DataFrame({"a": [2**70]}), f"column 'a', from row 0 on, which has {2**70} (int)"),
        (pd.DataFrame({"a": [object()]}), "pandas cannot hand over column 'a', from row 0 on"),
        (pd.DataFrame({"a": [1j]}), "pandas cannot hand over column 'a' ("),
        (
            pl.DataFrame({"k": ["x"], "i": pl.Series([1], dtype=pl.Int128)}),
            "polars cannot hand over column 'i', of type Int128",
        ),
        (pl.DataFrame({"o": pl.Series([object()], dtype=pl.Object)}), "polars cannot hand over column 'o'"),
    ],
)
def test_what_is_no_rows_is_named(rows: Any, reason: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        as_table(rows, WHAT)
    assert str(caught.value).startswith(f"{WHAT}: ")
    assert reason.lower() in str(caught.value).lower()


DAY, NOON = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 12)
NEW_YORK = ZoneInfo("America/New_York")
AWARE = NOON.replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("values", "row"),
    [
        ([DAY, None, NOON], 2),  # Arrow leaves out the time of day,
        ([NOON, AWARE], 1),  # or the zone,
        ([AWARE, NOON], 1),  # or makes one up,
        ([NOON, pd.Timestamp(1)], 1),  # or leaves out nanoseconds
        ([pd.Timedelta(1)], 0),
        ([dt.time(1, tzinfo=dt.UTC)], 0),
        ([b"a", "b"], 1),
        ([{"at": [DAY]}, {"at": None}, {"at": [None, NOON]}], 2),
    ],
)
def test_objects_that_arrow_would_change_are_refused(values: list[Any], row: int) -> None:
    """In pandas' columns of objects, which it takes to be of one type."""
    frame = pd.DataFrame({"a": pd.Series(values, dtype=object)})
    with pytest.raises(InvalidInputError, match=f"column 'a', from row {row} on") as caught:
        as_table(frame, WHAT)
    assert caught.value.kind == "unsupported_type"


def test_categories_may_be_objects() -> None:
    with pytest.raises(InvalidInputError, match="column 'a', from row 2 on"):
        as_table(pd.DataFrame({"a": pd.Categorical([DAY, None, NOON])}), WHAT)
    days = pd.DataFrame({"a": pd.Categorical([DAY, None])})
    assert as_table(days, WHAT)["a"].to_pylist() == [DAY, None]


@pytest.mark.parametrize(
    "values",
    [
        [DAY, None, float("nan"), pd.NaT],
        [NOON, pd.Timestamp(NOON)],
        # an hour that comes twice
        [dt.datetime(2020, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=fold) for fold in (0, 1)],
        [AWARE.astimezone(NEW_YORK), AWARE, pd.NaT],
        [b"a", bytearray(b"b"), None],
        [{"at": [DAY, None]}, None, {"at": []}],
        [{"at": np.array(["2020-01-01", "NaT"], "datetime64[us]")}],
    ],
)
def test_objects_that_stay_what_they_are_pass(values: list[Any]) -> None:
    found = as_table(pd.DataFrame({"a": pd.Series(values, dtype=object)}), WHAT)["a"]
    assert found.equals(pa.chunked_array([pa.array(values, from_pandas=True)]))


class Frame(pd.DataFrame):
    """As GeoPandas' or a program's own: pandas hands its index over as a column of its Arrow stream."""

    @property
    def _constructor(self) -> type[Frame]:
        return Frame


def test_a_class_derived_from_pandas_is_pandas() -> None:
    frame = Frame({"k": [1, 2, 3], "v": [1.5, None, 2.5]})
    assert as_table(frame[frame["k"] > 1], WHAT).to_pydict() == {"k": [2, 3], "v": [None, 2.5]}
    with pytest.raises(InvalidInputError, match="'k' is the frame's index, which is not stored"):
        as_table(frame.set_index("k"), WHAT)


def test_an_index_without_a_name_is_no_column_of_an_arrow_table_either() -> None:
    """A frame that is filtered has another index than a whole one, and would have another column."""
    frame = pd.DataFrame({"k": [1, 2]})
    for each in (frame, frame[frame["k"] > 1]):
        assert as_table(pa.Table.from_pandas(each), WHAT).column_names == ["k"]
    named = pa.Table.from_pandas(frame.set_index("k"))
    assert as_table(named, WHAT).to_pydict() == {"k": [1, 2]}


def test_pandas_on_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Arrow stream has the index as a column `__index_level_0__`."""
    monkeypatch.setattr(Frame, "__module__", "pyspark.pandas.frame")
    with pytest.raises(InvalidInputError, match=r"whose index is no column: pass frame\.to_spark\(\)"):
        as_table(Frame({"k": [1]}), WHAT)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"v": [1, 1.5]}, "column 'v' is int64, which cannot hold 1.5 (double) of row 1: cast or round it"),
        ({"v": ["x"]}, "column 'v' is int64, which cannot hold 'x' (string) of row 0"),
        ({"v": [None, True]}, "column 'v' is int64, which cannot hold True (bool) of row 1"),
        ({"d": [1, 1000]}, "column 'd' is decimal128(5, 2), which cannot hold 1000 (int64) of row 1"),
        ({"d": [1.0, 0.5]}, "column 'd' is decimal128(5, 2), which cannot hold 0.5 (double) of row 1"),
        ({"t": pa.array([1000, 1], pa.timestamp("ns"))}, "(timestamp[ns]) of row 1"),
        ({"t": pa.array([0], pa.timestamp("us", "UTC"))}, "(timestamp[us, tz=UTC]) of row 0"),
        ({"t": pa.array([2**60], pa.timestamp("s"))}, f"cannot hold {2**60} (timestamp[s]) of row 0"),
        ({"f": [None, 2**24 + 1]}, "column 'f' is float, which cannot hold 16777217 (int64) of row 1"),
        ({"n": [None]}, "column 'n' is new and has no value but null, so its type is unknown: give it one"),
        ({"n": [[], [None]]}, "column 'n' is new and has no value but null"),
        ({"n": pa.array([1], pa.uint64())}, "column 'n' has type uint64, which keyed state cannot store"),
        (
            {"n": pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])},
            "column 'n' is struct<a: int64, a: int64>, two fields of one name",
        ),
        ({"k": [1]}, "column 'k' is string, which cannot hold 1 (int64) of row 0"),
    ],
)
def test_a_value_that_a_state_cannot_hold_is_named(columns: dict[str, Any], reason: str) -> None:
    """With its row, its value and its type."""
    with pytest.raises(InvalidInputError) as caught:
        fitted_rows(pa.table(columns), KNOWN, WHAT)
    assert str(caught.value).startswith(f"{WHAT}: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("given", "stored"),
    [((5, -2), (7, 0)), ((2, 5), (5, 5)), ((38, 38), (38, 38)), ((38, -1), None)],
)
def test_a_decimal_is_one_that_every_reader_has(given: tuple[int, int], stored: Any) -> None:
    """Spark, Polars and DuckDB have no scale below 0, and none beyond the digits."""
    digits = pa.array([(15).to_bytes(16, "little"), None], pa.binary(16))
    rows = pa.table({"v": digits.view(pa.decimal128(*given))})
    if stored is None:
        with pytest.raises(InvalidInputError, match="which keyed state cannot store"):
            fitted_rows(rows, None, WHAT)
        return
    found = fitted_rows(rows, None, WHAT)["v"]
    assert found.type == pa.decimal128(*stored)
    assert found.to_pylist() == [Decimal(15).scaleb(-given[1]), None]


def test_a_row_counts_over_chunks_and_inside_of_lists_and_maps() -> None:
    """From the first row of the whole table, with nulls and what is below them."""
    kind = pa.map_(pa.string(), pa.list_(pa.int8()))
    known = StateSchema.of(pa.schema({"k": pa.int64(), "v": kind}), ["k"])
    wide = pa.map_(pa.string_view(), pa.list_(pa.float64()))
    chunks = [
        pa.array([None, [("a", [1.0])]], wide),
        pa.array([[("x", [9.0])], None, [("b", [1.0]), ("c", [2.0, 300.0])]], wide).slice(1),
    ]
    rows = pa.table({"v": pa.chunked_array(chunks)})
    with pytest.raises(InvalidInputError, match=r"cannot hold 300\.0 \(double\) of row 3:"):
        fitted_rows(rows, known, WHAT)
    held = fitted_rows(rows.slice(0, 3), known, WHAT)
    assert held.schema.field("v").type == kind
    assert held.column("v").to_pylist() == [None, [("a", [1])], None]


WIDE_TYPES = [
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.string_view()),
    pa.large_list(pa.large_string()),
    pa.map_(pa.string_view(), pa.large_binary()),
    pa.struct({"inner": pa.list_(pa.dictionary(pa.int32(), pa.string()))}),
]


def wide_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):  # of views, Arrow makes none itself
        plain = pa.array(values).dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            plain.indices.cast(kind.index_type), plain.dictionary.cast(kind.value_type)
        )
    return pa.array(values, kind)


@pytest.mark.parametrize("kind", WIDE_TYPES, ids=str)
def test_more_than_an_array_holds_is_cut(kind: pa.DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is lowered, to avoid GiB. What other libraries hold in one array may be far more in ours."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 100)
    values: list[Any] = ["x" * size for size in (30, 5, 400, 0, 20, 30, 30)]
    if pa.types.is_large_list(kind):
        values = [[value, "y"] for value in values]
    elif pa.types.is_map(kind):
        values = [[(value, b"z")] for value in values]
    elif pa.types.is_struct(kind):
        values = [{"inner": [value]} for value in values]
    (column,) = fitted_rows(pa.table({"v": wide_array([None, *values], kind)[1:]}), None, WHAT).columns
    assert column.to_pylist() == values
    assert all(len(chunk) == 1 or chunk.nbytes < 150 for chunk in column.chunks)
    assert column.num_chunks > 2


@pytest.mark.soak  # 5 GiB
@pytest.mark.parametrize("kind", WIDE_TYPES[:3], ids=str)
def test_text_of_more_than_2_gib_in_one_array(kind: pa.DataType) -> None:
    """As libraries with wide offsets hand it over: it is cut, for no stored array has so much."""
    count, text = 2_300, b"x" * 1_000_000
    if pa.types.is_dictionary(kind):
        wide = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), [text.decode()])
    elif pa.types.is_string_view(kind):
        view = struct.pack("<i4sii", len(text), text[:4], 0, 0)
        wide = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(view * count), pa.py_buffer(text)])
    else:
        offsets = pa.array(range(0, (count + 1) * len(text), len(text)), pa.int64())
        wide = pa.LargeStringArray.from_buffers(count, offsets.buffers()[1], pa.py_buffer(text * count))
    (column,) = fitted_rows(pa.table({"text": wide}), None, "rows").columns
    assert column.type == pa.string()
    assert (len(column), column.num_chunks) == (count, 4)
    assert column[-1].as_buffer() == pa.py_buffer(text)
    column.validate(full=True)


def test_a_decimal_of_other_digits_widens_the_state() -> None:
    """As in Spark: by its type, and not by its values."""
    rows = fitted_rows(pa.table({"d": [Decimal("1.2345")]}), KNOWN, WHAT)
    assert rows.schema.field("d").type == pa.decimal128(7, 4)


def test_none_of_the_libraries_is_imported_with_the_module() -> None:
    code = (
        "import sys, dstl_dagster.state, dstl_dagster.jobs as c; c.write_frame, c.merge_frame;"
        "libraries = {'pandas', 'polars', 'duckdb', 'pyspark', 'dagster'}; print(libraries & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_relation_that_cannot_be_handed_over_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"column 'b' has type .*bignum"):
        fitted_rows(as_table(duckdb.sql("SELECT '1'::BIGNUM AS b"), WHAT), None, WHAT)


@pytest.mark.parametrize("before", [None, KNOWN], ids=["first write", "later"])
@pytest.mark.parametrize("groups", [0, -1, 2**15 + 1])
def test_key_groups_out_of_range_are_refused(groups: int, before: StateSchema | None) -> None:
    """Zero, too, is no absence: it does not stand for the default."""
    with pytest.raises(InvalidInputError, match=rf"max_parallelism is {groups}, not a whole number from 1"):
        schema_to_write(KNOWN.columns, ["k"], groups, before)
