"""Text that is not UTF-8: stored as it is, returned to Python as bytes, refused where it does not fit.

A Spark string may hold any bytes (`CAST(value AS STRING)` of Kafka, `spark.read.text` of Latin-1), and
reaches Arrow unchecked. So a text column may hold any bytes too. Arrow's functions work on them, and keys are
compared by them; only a conversion to Python's or Parquet's strings checks them.

Owns text's view as bytes, and the conversion of rows to Python. Does not own equality (`keys`, `equality`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.errors import ErrorKind, InvalidInputError


class RawText(bytes):
    """The bytes of text that is not UTF-8; its own class, to distinguish it from a binary column's value."""


_BYTES: Final = {pa.string(): pa.binary()}
_NUMBERS: Final = {
    **{pa.timestamp("us", zone): pa.int64() for zone in (None, "UTC")},
    pa.date32(): pa.int32(),
}
"""Of what Python has from the year 1 to 9999."""


def text_as_bytes(kind: pa.DataType) -> pa.DataType:
    """The stored type with binary in place of text, also inside nested types; its layout is the same."""
    return _with_parts(kind, _BYTES)


def schema_as_bytes(schema: pa.Schema) -> pa.Schema:
    """The schema with `text_as_bytes` of every column's type."""
    return pa.schema([_with_parts_of(field, _BYTES) for field in schema])


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Like `to_pylist`, which raises for text that is not UTF-8, and for years that Python does not have.

    Such text is `RawText` here, and such a time the text of its stored number.
    """
    try:
        found: list[dict[str, Any]] = rows.to_pylist()
    except (UnicodeDecodeError, OverflowError):
        names = rows.schema.names
        values = zip(*(_python_values(column) for column in rows.columns), strict=True)
        found = [dict(zip(names, row, strict=True)) for row in values]
    return found


def refuse_raw_text(rows: pa.Table, instead: str) -> None:
    """Pass if all text is UTF-8. Raises: InvalidInputError naming the first column whose
    text is not. `instead`: what to do about it.
    """
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if text_as_bytes(field.type) == field.type:
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                f"column {field.name!r} has text that is not UTF-8 ({error}): {instead}",
                kind=ErrorKind.UNSUPPORTED_TYPE,
            ) from error


def _with_parts(kind: pa.DataType, parts: Mapping[pa.DataType, pa.DataType]) -> pa.DataType:
    """The type with others of the same layout in place of these, also inside nested types."""
    if pt.is_map(kind):
        return pa.map_(_with_parts(kind.key_type, parts), _with_parts_of(kind.item_field, parts))
    if pt.is_list(kind):
        return pa.list_(_with_parts_of(kind.value_field, parts))
    if pt.is_struct(kind):
        return pa.struct([_with_parts_of(kind.field(index), parts) for index in range(kind.num_fields)])
    return parts.get(kind, kind)


def _with_parts_of(field: pa.Field, parts: Mapping[pa.DataType, pa.DataType]) -> pa.Field:
    return field.with_type(_with_parts(field.type, parts))


def _python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (UnicodeDecodeError, OverflowError):
        stored = column.cast(_with_parts(column.type, _BYTES | _NUMBERS))
        values = [_python_value(value, column.type) for value in stored.to_pylist()]
    return values


def _python_value(value: Any, kind: pa.DataType) -> Any:
    """The value, with its bytes decoded wherever the type is text, and its numbers where it is a time."""
    if value is None:
        return None
    if pt.is_string(kind):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return RawText(value)
    if kind in _NUMBERS:
        try:
            return pa.scalar(value, kind).as_py()
        except OverflowError:
            return f"{value} ({kind})"
    if pt.is_map(kind):
        return [
            (_python_value(key, kind.key_type), _python_value(item, kind.item_type)) for key, item in value
        ]
    if pt.is_list(kind):
        return [_python_value(each, kind.value_type) for each in value]
    if pt.is_struct(kind):
        return {field.name: _python_value(value[field.name], field.type) for field in kind.fields}
    return value
