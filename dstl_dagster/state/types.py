"""Which Arrow types keyed state can store, which can be keys, and which type widens to which.

Owns these three decisions. Does not own the bytes of a row (`changes`) or a schema (`schema`).

Each type has one stored form, under any settings of the producer: text is `string`, instants are microseconds
in UTC, and dictionaries are decoded. So a state does not change type because a session was configured
differently.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.errors import ErrorKind, InvalidInputError

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float32(), pa.float64())
_MAX_DECIMAL_PRECISION = 38
_WIDER_KINDS = {
    **{(each, pa.float32()): pa.float32() for each in (pa.int8(), pa.int16())},
    **{(each, pa.float64()): pa.float64() for each in (pa.int8(), pa.int16(), pa.int32())},
    (pa.int32(), pa.float32()): pa.float64(),
    (pa.date32(), pa.timestamp("us")): pa.timestamp("us"),
}
"""Of two types the one that holds every value of both, though it is of another kind than one of them."""


def stored_type(arrow_type: pa.DataType, column: str) -> pa.DataType:
    """The stored form of a column of this type. `column`: its name, for the error.

    Raises: InvalidInputError (kind `unsupported_type`) if keyed state cannot store the type.
    """
    if pt.is_dictionary(arrow_type):
        return stored_type(arrow_type.value_type, column)
    if pt.is_string(arrow_type) or pt.is_large_string(arrow_type) or pt.is_string_view(arrow_type):
        return pa.string()
    if pt.is_binary(arrow_type) or pt.is_large_binary(arrow_type) or pt.is_binary_view(arrow_type):
        return pa.binary()
    if pt.is_timestamp(arrow_type):
        return pa.timestamp("us", None if arrow_type.tz is None else "UTC")
    if pt.is_map(arrow_type):
        key = stored_type(arrow_type.key_type, f"{column}.key")
        return pa.map_(key, pa.field("value", stored_type(arrow_type.item_type, f"{column}.value")))
    if pt.is_list(arrow_type) or pt.is_large_list(arrow_type):
        return pa.list_(pa.field("element", stored_type(arrow_type.value_type, f"{column}.element")))
    if pt.is_struct(arrow_type):
        fields = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
        if len({f.name for f in fields}) < len(fields):
            raise InvalidInputError(
                f"column {column!r} is {arrow_type}, two fields of one name, which Spark does not read: "
                "rename one",
                kind=ErrorKind.UNSUPPORTED_TYPE,
            )
        return pa.struct([pa.field(f.name, stored_type(f.type, f"{column}.{f.name}")) for f in fields])
    if pt.is_decimal128(arrow_type):
        # Arrow alone has digits left out before the point, or behind it.
        scale = max(arrow_type.scale, 0)
        digits = max(arrow_type.precision - arrow_type.scale, 0) + scale
        if digits <= _MAX_DECIMAL_PRECISION:
            return pa.decimal128(digits, scale)
    unchanged = (
        pt.is_boolean(arrow_type)
        or arrow_type in _INTEGERS
        or arrow_type in _FLOATS
        or pt.is_date32(arrow_type)
        or pt.is_time64(arrow_type)
        or arrow_type == pa.duration("us")
    )
    if not unchanged:
        raise InvalidInputError(
            f"column {column!r} has type {arrow_type}, which keyed state cannot store: "
            "cast it, or leave it out",
            kind=ErrorKind.UNSUPPORTED_TYPE,
        )
    return arrow_type


def can_be_key(arrow_type: pa.DataType) -> bool:
    """Whether a stored type has one equality, the same in Arrow and in SQL.

    Floating point does not (NaN, signed zero), and nested types are not hashed alike everywhere.
    """
    return bool(
        pt.is_boolean(arrow_type)
        or arrow_type in _INTEGERS
        or pt.is_decimal128(arrow_type)
        or pt.is_string(arrow_type)
        or pt.is_binary(arrow_type)
        or pt.is_date32(arrow_type)
        or pt.is_timestamp(arrow_type)
    )


def has_checked_values(arrow_type: pa.DataType) -> bool:
    """Whether some bits of the stored type's width are no value of it, though an Arrow array may hold them.

    Does not look at text, which may hold any bytes here.
    """
    if pt.is_map(arrow_type):
        return has_checked_values(arrow_type.key_type) or has_checked_values(arrow_type.item_type)
    if pt.is_list(arrow_type):
        return has_checked_values(arrow_type.value_type)
    if pt.is_struct(arrow_type):
        return any(has_checked_values(field.type) for field in arrow_type.fields)
    return bool(pt.is_time64(arrow_type) or pt.is_decimal128(arrow_type))


def has_fields_of(kind: pa.DataType, other: pa.DataType) -> bool:
    """Whether every struct in the one type has each field of its counterpart in the other, in any order.

    Arrow casts a struct by its fields' names, drops those not in the target, and puts null where it has more.
    """
    if pt.is_struct(kind) and pt.is_struct(other):
        known = {field.name: field.type for field in kind.fields}
        return all(
            field.name in known and has_fields_of(known[field.name], field.type) for field in other.fields
        )
    if pt.is_map(kind) and pt.is_map(other):
        return has_fields_of(kind.key_type, other.key_type) and has_fields_of(kind.item_type, other.item_type)
    if _is_any_list(kind) and _is_any_list(other):
        return has_fields_of(kind.value_type, other.value_type)
    return True


def _is_any_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind))


def wider_type(one: pa.DataType, other: pa.DataType, *, of_its_kind: bool = False) -> pa.DataType | None:
    """The stored type that holds every value of both exactly; `None` if there is none.

    Whole numbers widen to longer ones and to floating point that has them all, float to double, decimals to
    more digits on either side of the point, dates to time stamps without a zone. A struct has the fields of
    both, the first one's before the others, which are not spelled alike. All other types must be equal.

    Args:
        of_its_kind: no whole number becomes floating point, and no date a time stamp.
    """
    if one == other:
        return one
    wider = partial(wider_type, of_its_kind=of_its_kind)
    for family in (_INTEGERS, _FLOATS):
        if one in family and other in family:
            return family[max(family.index(one), family.index(other))]
    if pt.is_decimal128(one) and pt.is_decimal128(other):
        scale = max(one.scale, other.scale)
        precision = max(one.precision - one.scale, other.precision - other.scale) + scale
        return pa.decimal128(precision, scale) if precision <= _MAX_DECIMAL_PRECISION else None
    if pt.is_struct(one) and pt.is_struct(other):
        return _with_fields_of_both(one, other, wider)
    if pt.is_list(one) and pt.is_list(other):
        element = wider(one.value_type, other.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if pt.is_map(one) and pt.is_map(other) and one.key_type == other.key_type:
        value = wider(one.item_type, other.item_type)
        return None if value is None else pa.map_(one.key_type, pa.field("value", value))
    return None if of_its_kind else _WIDER_KINDS.get((one, other)) or _WIDER_KINDS.get((other, one))


def _with_fields_of_both(
    one: pa.StructType, other: pa.StructType, wider: Callable[[pa.DataType, pa.DataType], pa.DataType | None]
) -> pa.DataType | None:
    fields = {field.name: field for field in one.fields}
    for field in other.fields:
        known = fields.get(field.name)
        joined = field.type if known is None else wider(known.type, field.type)
        if joined is None:
            return None
        fields[field.name] = pa.field(field.name, joined)
    alike = {name.lower() for name in fields}
    return pa.struct([*fields.values()]) if len(alike) == len(fields) else None
