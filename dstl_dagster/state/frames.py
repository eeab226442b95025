"""Rows in any form that a program has them in, as an Arrow table.

Owns which objects are rows, and how each becomes Arrow: DataFrames of pandas and Polars, tables, batches,
readers and data sets of PyArrow, relations of DuckDB, and any other object with the Arrow C stream
interface. Does not own which types a state has for them (`fitting`). Imports none of these libraries: an
object of one is the proof that it is there.

What has no value is null: also pandas' NaN, except in its columns backed by Arrow, where NaN is a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.errors import ErrorKind, InvalidInputError

_EXPECTED = (
    "a DataFrame of Spark, pandas or Polars, a table, batch, reader or data set of PyArrow, a relation of "
    "DuckDB, or anything else with the Arrow C stream interface"
)

_LIBRARIES = ("pandas", "polars", "pyarrow", "pyspark")

# What a library raises for a value or a type that it cannot hand over. An OSError is a read that failed.
_REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError, OverflowError)


def as_table(rows: Any, what: str) -> pa.Table:
    """The rows, in the types that their library gives them. Executes what is lazy, such as a LazyFrame.

    Args:
        what: names the rows in errors, as in `state of operator 'totals'`.

    Raises: InvalidInputError for an object that is no rows, a column name that occurs twice, a named index of
    pandas that is no column as well, and a column that its library cannot hand over. An error of a lazy
    computation itself is its library's.
    """
    library = library_of(rows)
    if library == "pyspark":
        raise InvalidInputError(
            f"{what}: {type(rows).__name__} is of pandas-on-Spark, whose index is no column: pass "
            "frame.to_spark()"
        )
    if library == "pandas" and hasattr(rows, "columns"):
        table = _of_pandas(rows, what)
    elif library == "polars" and hasattr(rows, "columns" if hasattr(rows, "height") else "collect"):
        table = _of_polars(rows if hasattr(rows, "height") else rows.collect(), what)
    elif isinstance(rows, pa.Table):
        table = rows
    elif isinstance(rows, pa.RecordBatch):
        table = pa.Table.from_batches([rows])
    elif isinstance(rows, pa.RecordBatchReader):
        table = rows.read_all()
    elif library == "pyarrow" and hasattr(rows, "to_table"):
        table = rows.to_table()
    elif _is_rows(rows):
        table = _of_stream(rows, library, what)
    else:
        raise InvalidInputError(f"{what}: {type(rows).__name__} is no rows: expected {_EXPECTED}")
    table = table.drop_columns(_unnamed_index(table.schema))
    return pa.table(table.columns, schema=pa.schema(_unique(table.schema, what)))


def _unnamed_index(schema: pa.Schema) -> list[str]:
    """Columns that pandas made of a frame's index, which has no name: as in a frame itself, they are none."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in index if name in schema.names and name.startswith("__index_level_")]


def library_of(rows: object) -> str:
    """The library of its class, or the one that this is derived from, as GeoPandas' is from pandas'."""
    of_bases = [each.__module__.partition(".")[0] for each in type(rows).__mro__]
    return next((each for each in of_bases if each in _LIBRARIES), of_bases[0])


def _is_rows(rows: Any) -> bool:
    """Also a single column has an Arrow stream, in PyArrow and in Polars."""
    columns_alone = isinstance(rows, (pa.Array, pa.ChunkedArray)) or type(rows).__name__ == "Series"
    return hasattr(rows, "__arrow_c_stream__") and not columns_alone


def _unique(fields: Iterable[pa.Field], what: str) -> list[pa.Field]:
    """Without metadata."""
    found: dict[str, pa.Field] = {}
    for field in fields:
        if field.name in found:
            raise _named_twice(field.name, what)
        found[field.name] = pa.field(field.name, field.type)
    return [*found.values()]


def _named_twice(name: str, what: str) -> InvalidInputError:
    return InvalidInputError(f"{what}: two columns are named {name!r}: rename one")


def _of_pandas(frame: Any, what: str) -> pa.Table:
    names = [str(name) for name in frame.columns]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise _named_twice(twice, what)
    lost = next((name for name in frame.index.names if name is not None and str(name) not in names), None)
    if lost is not None:
        raise InvalidInputError(
            f"{what}: {lost!r} is the frame's index, which is not stored: return frame.reset_index(), or "
            "frame.reset_index(drop=True) to leave it out"
        )
    columns = []
    for place, name in enumerate(names):
        series = frame.iloc[:, place]
        try:
            columns.append(pa.Array.from_pandas(series))
        except _REFUSALS as error:
            raise _refused(what, name, "pandas", _where(series), error) from error
        if getattr(series.dtype, "categories", series).dtype == object:
            _refuse_changed(what, name, series, columns[-1])
    return pa.table(columns, names=names)


def _where(series: Any) -> str:
    """Which row of pandas' column is the first that does not convert; nothing if its whole type does not."""
    good, bad = 0, len(series)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            pa.Array.from_pandas(series.iloc[:middle])
        except _REFUSALS:
            bad = middle
        else:
            good = middle
    if not len(series) or (bad == 1 and str(series.dtype) != "object"):
        return ""
    return _from_row(bad - 1, series.iloc[bad - 1])


def _from_row(row: int, value: object) -> str:
    return f", from row {row} on, which has {value!r} ({type(value).__name__})"


def _refuse_changed(what: str, column: str, series: Any, array: pa.Array | pa.ChunkedArray) -> None:
    """Pass if each object is in the array as it was. Arrow goes by some of them: beside a date it leaves out
    a time of day, beside a time stamp a zone, and nanoseconds everywhere.
    """
    if not _may_change(array.type) or _are_plain(series.dropna()):
        return
    for row, (value, stored) in enumerate(zip(series, array.to_pylist(), strict=True)):
        if not _is_same(value, stored):
            reason = f"Arrow takes it for {stored!r}"
            raise _refused(what, column, "pandas", _from_row(row, value), reason)


def _may_change(kind: pa.DataType) -> bool:
    if pt.is_dictionary(kind):
        return _may_change(kind.value_type)
    if pt.is_nested(kind):
        return any(_may_change(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pt.is_temporal(kind) or pt.is_binary(kind) or pt.is_large_binary(kind))


def _are_plain(objects: Any) -> bool:
    """Whether they are of one class and kind, of which Arrow loses nothing: a quick look at most columns."""
    classes = {*map(type, objects)}
    if classes == {datetime}:
        return len({each.tzinfo is None for each in objects}) == 1
    return classes in ({date}, {timedelta}, {bytes})


def _is_same(value: Any, stored: Any) -> bool:
    match stored:
        case None:
            return True
        case dict():
            return all(_is_same(value.get(name), each) for name, each in stored.items())
        case list():
            return all(map(_is_same, value, stored))
        case datetime() if getattr(value, "tzinfo", None) and stored.tzinfo:
            # In an hour that comes twice, Python finds no two time stamps of different zones equal.
            return bool(value.astimezone(UTC) == stored.astimezone(UTC))
    return bool(value == stored)


def _of_polars(frame: Any, what: str) -> pa.Table:
    for name, kind in frame.schema.items():
        if "Object" in str(kind):  # Arrow would get the addresses of the objects
            raise _refused(what, name, "Polars", "", f"its type is {kind}")
    try:
        return pa.table(frame)
    except _REFUSALS as error:
        name = _first_refused(frame.columns, lambda name: frame.select(name))
        raise _refused(what, name, "Polars", f", of type {frame.schema.get(name)}", error) from error


def _of_stream(rows: Any, library: str, what: str) -> pa.Table:
    try:
        return pa.table(rows)
    except _REFUSALS as error:
        names = getattr(rows, "columns", None)
        names = [each for each in names if isinstance(each, str)] if isinstance(names, list) else []
        by_name = getattr(rows, "select", None)
        name = _first_refused(names, lambda name: by_name(_quoted(name))) if by_name else None
        raise _refused(what, name, library, "", error) from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _first_refused(names: Iterable[str], one: Callable[[str], Any]) -> str | None:
    for name in names:
        try:
            pa.table(one(name))
        except _REFUSALS:
            return name
    return None


def _refused(what: str, column: str | None, library: str, where: str, reason: object) -> InvalidInputError:
    which = "its rows" if column is None else f"column {column!r}"
    said = " ".join(str(reason).split())
    return InvalidInputError(
        f"{what}: {library} cannot hand over {which}{where} ({said}): cast it to a type that Arrow has",
        kind=ErrorKind.UNSUPPORTED_TYPE,
    )
