"""Arrays and structs of rules, in DuckDB's SQL.

Owns what their functions mean: where DuckDB's own differ for a null, or an index out of range, Spark's answer
is written around them. Maps, and comparing arrays or structs, are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.state.rules.casts import Typed, as_type, may_fail, same_kind
from dstl_dagster.state.rules.parser import RefusedError
from dstl_dagster.state.rules.types import (
    common_type,
    duckdb_type,
    is_nested,
    quoted,
    quoted_text,
    spark_name,
)

_LONGEST: Final = 1 << 16
"""Of an expression: each function repeats its arguments some times."""


def array_of(values: Sequence[Typed]) -> Typed:
    """`array(…)`."""
    kind = common_type(each.kind for each in values)
    parts = [as_type(each, kind).sql for each in values]
    array = pa.list_(kind)
    return Typed(array, f"CAST([{', '.join(parts)}] AS {duckdb_type(array)})", may_fail(values))


def struct_of(names: Sequence[str], values: Sequence[Typed]) -> Typed:
    """`named_struct(…)`."""
    kind = pa.struct(list(zip(names, (each.kind for each in values), strict=True)))
    if duckdb_type(kind) is None:
        raise RefusedError(
            f"{spark_name(kind)}: a struct has fields, and their names differ by more than case"
        )
    parts = ", ".join(f"{quoted(name)} := {each.sql}" for name, each in zip(names, values, strict=True))
    return Typed(kind, f"CAST(struct_pack({parts}) AS {duckdb_type(kind)})", may_fail(values))


def field_of(value: Typed, name: str) -> Typed:
    """`value.name`; case does not count."""
    if not pt.is_struct(value.kind):
        raise RefusedError(f"{name} is a field of {spark_name(value.kind)}, which is no STRUCT")
    found = [each for each in value.kind.fields if each.name.lower() == name.lower()]
    if len(found) != 1:
        raise RefusedError(f"there is no field {name}: {spark_name(value.kind)}")
    (field,) = found
    if pt.is_null(field.type):
        raise RefusedError(f"field {name} has no type: it is null wherever the struct is made")
    if value.is_null:
        return Typed.null(field.type)
    return Typed(field.type, f"struct_extract({value.sql}, {quoted_text(field.name)})", value.may_fail)


def joined_arrays(values: Sequence[Typed]) -> Typed:
    """`concat(…)` of arrays: null if one of them is."""
    same = same_kind([_array("concat", each) for each in values])
    kind = same[0].kind
    if any(each.is_null for each in same):
        return Typed.null(kind)
    sql = same[0].sql
    for each in same[1:]:
        sql = f"list_concat({sql}, {each.sql})"
    return _unless_null(same, Typed(kind, sql, may_fail(same)))


def size_of(values: Sequence[Typed]) -> Typed:
    """`size(array)`: null for null."""
    array = _array("size", values[0])
    if array.is_null:
        return Typed.null(pa.int32())
    return Typed(pa.int32(), f"CAST(len({array.sql}) AS INTEGER)", array.may_fail)


def contains(values: Sequence[Typed]) -> Typed:
    """`array_contains(array, value)`: null if it may be among the nulls."""
    array, value = _array("array_contains", values[0]), values[1]
    kind = common_type([array.kind.value_type, value.kind])
    if is_nested(kind) or pt.is_null(value.kind) or pt.is_null(array.kind.value_type):
        raise RefusedError(
            f"array_contains compares {spark_name(kind)}, which rules on rows in memory cannot"
        )
    array, value = as_type(array, pa.list_(kind)), as_type(value, kind)
    if array.is_null or value.is_null:
        return Typed.null(pa.bool_())
    found = f"list_contains({array.sql}, {value.sql})"
    unknown = f"len({array.sql}) > list_count({array.sql})"
    sql = f"CASE WHEN {found} THEN true WHEN {unknown} THEN NULL ELSE false END"
    return _unless_null([array, value], Typed(pa.bool_(), sql, may_fail([array, value])))


def _item(array: Typed, index: Typed, *, first: int) -> Typed:
    """An element by its number from `first` on, from 1 also from the end; one that is not there fails."""
    array, index = _array("an index", array), _number(index)
    kind = array.kind.value_type
    name = duckdb_type(kind)
    if pt.is_null(kind) or name is None:
        raise RefusedError("an element of an array that has none")
    if array.is_null or index.is_null:
        return Typed.null(kind)
    size, place = f"len({array.sql})", f"CAST({index.sql} AS BIGINT)"
    outside = f"{place} < 0 OR {place} >= {size}" if first == 0 else f"{place} = 0 OR abs({place}) > {size}"
    failed = f"CAST(error('there is no such element of an array') AS {name})"
    element = f"list_extract({array.sql}, {place} + {1 - first})"
    return _unless_null(
        [array, index], Typed(kind, f"CASE WHEN {outside} THEN {failed} ELSE {element} END", True)
    )


def element_at(values: Sequence[Typed]) -> Typed:
    """`element_at(array, number)`: from 1 on, or from -1 back."""
    return _item(*values, first=1)


def item_of(values: Sequence[Typed]) -> Typed:
    """`array[number]`: from 0 on."""
    return _item(*values, first=0)


def slice_of(values: Sequence[Typed]) -> Typed:
    """`slice(array, start, length)`: `start` as of `element_at`; what is not there is left out."""
    array = _array("slice", values[0])
    bounds = [_number(each) for each in values[1:]]
    same = [array, *bounds]
    if any(each.is_null for each in same):
        return Typed.null(array.kind)
    start, length = (f"CAST({each.sql} AS BIGINT)" for each in bounds)
    from_end = f"len({array.sql}) + {start}"
    failed = f"CAST(error('a slice starts at no 0, and has no length below it') AS {duckdb_type(array.kind)})"
    sql = (
        f"CASE WHEN {start} = 0 OR {length} < 0 THEN {failed} "
        f"WHEN {start} > 0 THEN list_slice({array.sql}, {start}, {start} + {length} - 1) "
        f"WHEN {from_end} < 0 THEN list_slice({array.sql}, 1, 0) "
        f"ELSE list_slice({array.sql}, {from_end} + 1, {from_end} + {length}) END"
    )
    return _unless_null(same, Typed(array.kind, sql, True))


def _array(name: str, value: Typed) -> Typed:
    if not pt.is_list(value.kind):
        raise RefusedError(f"{name} takes ARRAY, not {spark_name(value.kind)}")
    return value


def _number(value: Typed) -> Typed:
    """Of an element."""
    if not pt.is_integer(value.kind) or pt.is_int64(value.kind):
        raise RefusedError(f"the number of an element is INT, not {spark_name(value.kind)}")
    return value


def _unless_null(values: Sequence[Typed], found: Typed) -> Typed:
    known = " AND ".join(f"{each.sql} IS NOT NULL" for each in values)
    sql = f"(CASE WHEN {known} THEN {found.sql} END)"
    if len(sql) > _LONGEST:
        raise RefusedError("arrays of arrays of arrays: compute some of them before the merge")
    return Typed(found.kind, sql, found.may_fail)
