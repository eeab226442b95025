"""From one type to another, as Spark casts by its ANSI rules, in DuckDB's SQL.

Owns an expression with its type, and its casts. Does not own what functions mean (`translate`, `nested`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.state.rules.parser import RefusedError
from dstl_dagster.state.rules.types import (
    common_type,
    duckdb_type,
    is_decimal,
    is_nested,
    names_of,
    spark_name,
)

_EXACT_DIGITS: Final = 15  # of a decimal that a double has, and so has its power of ten
_NULL: Final = "NULL"


@dataclass(frozen=True)
class Typed:
    """An expression of DuckDB. `may_fail`: on some values, so not to be evaluated where Spark would not."""

    kind: pa.DataType
    sql: str
    may_fail: bool = False

    @classmethod
    def null(cls, kind: pa.DataType) -> Typed:
        """NULL as a value of this type."""
        return cls(kind, _NULL if pt.is_null(kind) else f"CAST({_NULL} AS {duckdb_type(kind)})")

    @property
    def is_null(self) -> bool:
        """Whether it is NULL for each row. What is made of it is so too, even where the rest would fail."""
        return self == Typed.null(self.kind)


def may_fail(values: Iterable[Typed]) -> bool:
    """Whether what is made of these may fail."""
    return any(each.may_fail for each in values)


def same_kind(values: Sequence[Typed]) -> list[Typed]:
    """The values in the type in which they meet. Raises: RefusedError."""
    kind = common_type(each.kind for each in values)
    return [as_type(each, kind) for each in values]


def as_type(value: Typed, kind: pa.DataType) -> Typed:
    """CAST, as Spark casts by its ANSI rules. Raises: RefusedError where DuckDB casts otherwise."""
    source, name = value.kind, duckdb_type(kind)
    if source == kind:
        return value
    if name is None:
        raise RefusedError(f"a column of type {kind} only takes over a column as it is")
    if value.is_null:
        return Typed.null(kind)
    found = _cast(value, kind, name)
    if found is None:
        raise RefusedError(
            f"{spark_name(source)} becomes {spark_name(kind)}, which DuckDB and Spark do by different rules: "
            "give the column this type before the merge"
        )
    return found


def _cast(value: Typed, kind: pa.DataType, name: str) -> Typed | None:
    source = value.kind
    if is_nested(source):
        return _cast_of_nested(value, kind, name)
    plain = Typed(kind, f"CAST({value.sql} AS {name})", value.may_fail)
    checked = Typed(kind, plain.sql, True)
    if pt.is_float32(source) and pt.is_float64(kind):
        return plain
    if pt.is_string(kind):
        return _cast_to_text(value, plain)
    if pt.is_boolean(source):
        return plain if pt.is_integer(kind) else None
    if pt.is_integer(source):
        return checked if pt.is_integer(kind) or is_decimal(kind) or pt.is_floating(kind) else None
    if is_decimal(source):
        return checked if is_decimal(kind) else _cast_of_decimal(value, plain, name)
    return _whole(value, kind, name) if pt.is_float64(source) and pt.is_integer(kind) else None


def _cast_to_text(value: Typed, plain: Typed) -> Typed | None:
    if pt.is_integer(value.kind) or pt.is_boolean(value.kind):
        return plain
    if not pt.is_date(value.kind):
        return None
    known = f"{value.sql} IS NULL OR {value.sql} BETWEEN DATE '0001-01-01' AND DATE '9999-12-31'"
    sql = f"(CASE WHEN {known} THEN {plain.sql} ELSE error('a year without four digits as text') END)"
    return Typed(plain.kind, sql, True)


def _cast_of_decimal(value: Typed, plain: Typed, name: str) -> Typed | None:
    if pt.is_integer(plain.kind):
        return Typed(plain.kind, f"CAST(trunc({value.sql}) AS {name})", True)
    if not pt.is_float64(plain.kind):
        return None
    if value.kind.precision <= _EXACT_DIGITS:
        return plain
    # As text: DuckDB divides by a power of ten, which is not exact for more digits.
    return Typed(plain.kind, f"CAST(CAST({value.sql} AS VARCHAR) AS DOUBLE)", value.may_fail)


def _whole(value: Typed, kind: pa.DataType, name: str) -> Typed:
    """Towards zero; DuckDB rounds. Spark takes 2**63 for the longest number below it."""
    sql = f"CAST(trunc({value.sql}) AS {name})"
    if pt.is_int64(kind):
        sql = f"(CASE WHEN {value.sql} = 9223372036854775808 THEN 9223372036854775807 ELSE {sql} END)"
    return Typed(kind, sql, True)


def _cast_of_nested(value: Typed, kind: pa.DataType, name: str) -> Typed | None:
    """Where all its parts are cast by DuckDB alone."""
    source = value.kind
    if pt.is_list(source) and pt.is_list(kind):
        pairs = [(source.value_type, kind.value_type)]
    elif pt.is_struct(source) and pt.is_struct(kind) and names_of(source) == names_of(kind):
        pairs = [(mine.type, theirs.type) for mine, theirs in zip(source.fields, kind.fields, strict=True)]
    else:
        return None
    may_fail = value.may_fail
    for mine, theirs in pairs:
        if mine == theirs or pt.is_null(mine):
            continue
        own = duckdb_type(theirs)
        part = None if own is None else _cast(Typed(mine, "part"), theirs, own)
        if part is None or part.sql != f"CAST(part AS {own})":
            return None
        may_fail = may_fail or part.may_fail
    return Typed(kind, f"CAST({value.sql} AS {name})", may_fail)
