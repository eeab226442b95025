"""Text that is not UTF-8: stored as it is, returned to Python as bytes, refused where it does not fit.

A Spark string may hold any bytes (`CAST(value AS STRING)` of Kafka, `spark.read.text` of Latin-1), and
reaches Arrow unchecked. So a text column may hold any bytes too. Arrow's functions work on them, and keys are
compared by them; only a conversion to Python's or Parquet's strings checks them.

Owns text's view as bytes, and its conversion to Python. Does not own equality (`keys`, `equality`).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.errors import ErrorKind, InvalidInputError


class RawText(bytes):
    """The bytes of text that is not UTF-8; its own class, to distinguish it from a binary column's value."""


def text_as_bytes(kind: pa.DataType) -> pa.DataType:
    """The stored type with binary in place of text, also inside nested types; its layout is the same."""
    if pt.is_string(kind):
        return pa.binary()
    if pt.is_map(kind):
        return pa.map_(text_as_bytes(kind.key_type), _field_as_bytes(kind.item_field))
    if pt.is_list(kind):
        return pa.list_(_field_as_bytes(kind.value_field))
    if pt.is_struct(kind):
        return pa.struct([_field_as_bytes(kind.field(index)) for index in range(kind.num_fields)])
    return kind


def schema_as_bytes(schema: pa.Schema) -> pa.Schema:
    """The schema with `text_as_bytes` of every column's type."""
    return pa.schema([_field_as_bytes(field) for field in schema])


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Like `to_pylist`, which raises for text that is not UTF-8; such text is `RawText` here."""
    try:
        found: list[dict[str, Any]] = rows.to_pylist()
    except UnicodeDecodeError:
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


def _field_as_bytes(field: pa.Field) -> pa.Field:
    return field.with_type(text_as_bytes(field.type))


def _python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        as_bytes = column.cast(text_as_bytes(column.type))
        values = [_with_text(value, column.type) for value in as_bytes.to_pylist()]
    return values


def _with_text(value: Any, kind: pa.DataType) -> Any:
    """The value with its bytes decoded wherever the type is text."""
    if value is None:
        return None
    if pt.is_string(kind):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return RawText(value)
    if pt.is_map(kind):
        return [(_with_text(key, kind.key_type), _with_text(item, kind.item_type)) for key, item in value]
    if pt.is_list(kind):
        return [_with_text(each, kind.value_type) for each in value]
    if pt.is_struct(kind):
        return {field.name: _with_text(value[field.name], field.type) for field in kind.fields}
    return value
