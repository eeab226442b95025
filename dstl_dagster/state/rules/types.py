"""The types of rules: by Spark's names, and where values of several types meet.

Owns both. Does not own which types can be stored (`state.types`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.state.rules.parser import Parser, RefusedError
from dstl_dagster.state.schema import require_spark_schema

MAX_DIGITS: Final = 38
INSTANT: Final = pa.timestamp("us", "UTC")

_NAMES: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": INSTANT,
    "TIMESTAMP_LTZ": INSTANT,
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_DUCKDB: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    INSTANT: "TIMESTAMPTZ",
    pa.timestamp("us"): "TIMESTAMP",
}
_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_UNITS: Final = frozenset({"day", "hour", "minute", "second"})
_DECIMAL: Final = re.compile(r"(?:DECIMAL|DEC|NUMERIC)(?:\((\d+)(?:, (\d+))?\))?")


def declared_columns(schema: Any, what: str) -> pa.Schema:
    """The columns of Spark's text, such as `customer STRING, total DOUBLE`, or of its StructType.

    `what`: names the state in errors. Raises: InvalidInputError.
    """
    require_spark_schema(schema, what)
    try:
        if isinstance(schema, str):
            parser = Parser(schema)
            columns = _columns(parser)
            parser.end()
        else:
            columns = [pa.field(each.name, _of_spark(each.dataType)) for each in schema]
        names = [column.name for column in columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise RefusedError(f"column {twice!r} occurs twice")
    except RefusedError as error:
        raise InvalidInputError(
            f"{what}: the schema {schema!r} is not columns such as 'customer STRING, total DOUBLE': {error}"
        ) from error
    return pa.schema(columns)


def _of_spark(kind: Any) -> pa.DataType:
    """Of a type of PySpark's, which is not imported."""
    if hasattr(kind, "elementType"):
        return pa.list_(pa.field("element", _of_spark(kind.elementType)))
    if hasattr(kind, "keyType"):
        return pa.map_(_of_spark(kind.keyType), pa.field("value", _of_spark(kind.valueType)))
    if hasattr(kind, "fields"):
        return pa.struct([pa.field(each.name, _of_spark(each.dataType)) for each in kind.fields])
    parser = Parser(kind.simpleString())
    kind = _type(parser)
    parser.end()
    return kind


def _columns(parser: Parser) -> list[pa.Field]:
    columns = []
    while True:
        name = parser.name()
        parser.took(":")
        columns.append(pa.field(name, _type(parser)))
        parser.took("not", "null")
        if parser.took("comment"):
            parser.text()
        if not parser.took(","):
            return columns


def _type(parser: Parser) -> pa.DataType:
    if parser.took("array", "<"):
        element = _type(parser)
        parser.need(">")
        return pa.list_(pa.field("element", element))
    if parser.took("map", "<"):
        key = _type(parser)
        parser.need(",")
        value = _type(parser)
        parser.need(">")
        return pa.map_(key, pa.field("value", value))
    if parser.took("struct", "<"):
        fields = _columns(parser)
        parser.need(">")
        return pa.struct(fields)
    if parser.took("interval"):
        units = [parser.name().lower(), *([parser.name().lower()] if parser.took("to") else [])]
        if not set(units) <= _UNITS:
            raise RefusedError("an interval of years and months is no type that keyed state stores")
        return pa.duration("us")
    return named_type(parser.type_name())


def named_type(name: str) -> pa.DataType:
    """The type of Spark's upper-case name. Raises: RefusedError."""
    if name in _NAMES:
        return _NAMES[name]
    match = _DECIMAL.fullmatch(name)
    if match is None:
        raise RefusedError(
            f"{name} is no type that keyed state stores: use one of {', '.join(_NAMES)}, DECIMAL(p, s)"
        )
    digits, scale = int(match[1] or 10), int(match[2] or 0)
    if not (1 <= digits <= MAX_DIGITS and scale <= digits):
        raise RefusedError(
            f"{name} has no such digits: a decimal has 1 to {MAX_DIGITS}, its scale among them"
        )
    return pa.decimal128(digits, scale)


def spark_name(kind: pa.DataType) -> str:
    """The type as Spark names it, for messages; Arrow's name for one that rules have no values of."""
    if is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pt.is_null(kind):
        return "VOID"
    if pt.is_list(kind):
        return f"ARRAY<{spark_name(kind.value_type)}>"
    if pt.is_struct(kind):
        return f"STRUCT<{', '.join(f'{each.name}: {spark_name(each.type)}' for each in kind.fields)}>"
    return next((name for name, known in _NAMES.items() if known == kind), str(kind))


def quoted(name: str) -> str:
    """`name` as an identifier of DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """`text` as text of DuckDB."""
    return "'" + text.replace("'", "''") + "'"


def duckdb_type(kind: pa.DataType) -> str | None:
    """DuckDB's name of the type; `None` if rules have no values of it."""
    if pt.is_list(kind):
        element = _inner_type(kind.value_type)
        return None if element is None else f"{element}[]"
    if pt.is_struct(kind):
        inner = [_inner_type(each.type) for each in kind.fields]
        names = [each.name.lower() for each in kind.fields]  # as DuckDB compares them
        if not inner or None in inner or len(set(names)) < len(names):
            return None
        parts = zip(kind.fields, inner, strict=True)
        return f"STRUCT({', '.join(f'{quoted(each.name)} {name}' for each, name in parts)})"
    return f"DECIMAL({kind.precision}, {kind.scale})" if is_decimal(kind) else _DUCKDB.get(kind)


def _inner_type(kind: pa.DataType) -> str | None:
    # From text there is a cast to every type, as is needed of values that are all null.
    return "VARCHAR" if pt.is_null(kind) else duckdb_type(kind)


def is_nested(kind: pa.DataType) -> bool:
    """Whether its values are arrays or structs."""
    return bool(pt.is_list(kind) or pt.is_struct(kind))


def unnamed(kind: pa.DataType) -> pa.DataType:
    """The type without what Arrow adds to Spark's: names of elements, whether they may be null."""
    if pt.is_list(kind):
        return pa.list_(unnamed(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([(each.name, unnamed(each.type)) for each in kind.fields])
    return kind


def is_decimal(kind: pa.DataType) -> bool:
    """Whether it is a decimal that can be stored."""
    return bool(pt.is_decimal128(kind))


def common_type(kinds: Iterable[pa.DataType]) -> pa.DataType:
    """The type in which values of these meet, by Spark's rules. Raises: RefusedError."""
    found = pa.null()
    for kind in kinds:
        found = _common_of_two(found, kind)
    return found


def _common_of_two(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other or pt.is_null(other):
        return one
    if pt.is_null(one):
        return other
    if pt.is_list(one) and pt.is_list(other):
        return pa.list_(_common_of_two(one.value_type, other.value_type))
    if pt.is_struct(one) and pt.is_struct(other) and names_of(one) == names_of(other):
        both = zip(one.fields, other.fields, strict=True)
        return pa.struct([(mine.name, _common_of_two(mine.type, theirs.type)) for mine, theirs in both])
    if not (_is_number(one) and _is_number(other)):
        raise RefusedError(
            f"{spark_name(one)} and {spark_name(other)} meet, which DuckDB and Spark "
            "convert by different rules: make them of one type before the merge"
        )
    if pt.is_floating(one) or pt.is_floating(other):
        return pa.float64()
    if is_decimal(one) or is_decimal(other):
        one, other = as_decimal(one), as_decimal(other)
        scale = max(one.scale, other.scale)
        return decimal_of(max(one.precision - one.scale, other.precision - other.scale) + scale, scale)
    return max(one, other, key=lambda kind: kind.bit_width)


def names_of(kind: pa.DataType) -> list[str]:
    """Of a struct's fields."""
    return [each.name for each in kind.fields]


def as_decimal(kind: pa.DataType) -> pa.DataType:
    """The decimal that has every value of a whole number's type; a decimal itself."""
    return kind if is_decimal(kind) else pa.decimal128(_DIGITS[kind], 0)


def decimal_of(digits: int, scale: int) -> pa.DataType:
    """Raises: RefusedError for more digits than there are, where Spark rounds."""
    if digits > MAX_DIGITS:
        raise RefusedError(
            f"a decimal of {digits} digits: Spark rounds it to {MAX_DIGITS}, and DuckDB does not; "
            "CAST what it is made of to fewer digits"
        )
    return pa.decimal128(digits, scale)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or is_decimal(kind))
