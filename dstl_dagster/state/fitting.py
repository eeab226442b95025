"""A program's columns in the types of a state: unchanged in value, or refused by row.

Owns what a state's column takes of other types: all that it can hold without loss. Does not own how the rows
became Arrow (`frames`), what can be stored at all and what widens (`types`), or how a state's schema evolves
(`schema`).

    in the state          takes
    any                   nulls of any type; the same values in another layout (views, dictionaries, chunks)
    a whole number        whole values of any other number, in its range: 2.0, decimal 2.00
    float, double         whole numbers that it has exactly: up to 2**24, 2**53
    decimal               whole values, and decimals, of its digits
    time stamp, duration  other units, in whole microseconds; a zone stays a zone, and none stays none; a
                          date where there is no zone
    list, map, struct     of what takes its parts; fields that are missing are null
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.state import pieces
from dstl_dagster.state.schema import StateSchema
from dstl_dagster.state.types import has_fields_of, stored_type, wider_type

_INT64_DIGITS = 19
_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}


class _MisfitError(Exception):
    """A value that a type cannot hold. `row`: of the array that was to be converted."""

    def __init__(self, row: int, value: Any, kind: pa.DataType) -> None:
        super().__init__()
        self.row, self.value, self.kind = row, value, kind


def fitted_rows(rows: pa.Table, known: StateSchema | None, what: str) -> pa.Table:
    """The rows in types that a state stores: of columns that it has, in its types or in wider ones.

    Args:
        known: the state's schema; `None`: this is its first write.
        what: names the rows in errors.

    Raises: InvalidInputError: kind `schema_change` for a value that the state's column cannot hold, kind
    `unsupported_type` for a new column whose type cannot be stored, or that has no type because all of its
    values are null.
    """
    columns, names = [], []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        has_type = not _has_null_type(field.type)
        if known is not None and field.name in known.columns.names:
            kind = _kind_to_write(known, field, has_type)
        elif has_type:
            kind = _new_kind(field, what)
        elif known is not None and not rows.num_rows:
            continue  # an empty frame says nothing of its columns
        else:
            raise InvalidInputError(
                f"{what}: column {field.name!r} is new and has no value but null, so its type is unknown: "
                f'give it one, as in frame.astype({{{field.name!r}: "string"}}) of pandas, or leave it out',
                kind=ErrorKind.UNSUPPORTED_TYPE,
            )
        columns.append(fitted_column(column, kind, field.name, what))
        names.append(field.name)
    return pa.table(
        columns, schema=pa.schema([pa.field(n, c.type) for n, c in zip(names, columns, strict=True)])
    )


def stored_rows(rows: pa.Table, what: str) -> pa.Table:
    """The rows in stored types of their own; columns that cannot be stored, and those without a type, stay.

    Raises: InvalidInputError (kind `schema_change`) for a time stamp between two microseconds.
    """
    columns = {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        try:
            kind = stored_type(_plain(field.type), field.name)
        except InvalidInputError:
            columns[field.name] = column
        else:
            columns[field.name] = fitted_column(column, kind, field.name, what)
    return pa.table(columns)


def fitted_column(column: pa.ChunkedArray, kind: pa.DataType, name: str, what: str) -> pa.ChunkedArray:
    """The column as the stored type `kind`. Raises: InvalidInputError (kind `schema_change`)."""
    if column.type == kind:
        return column
    chunks, before = [], 0
    for chunk in (part for each in column.chunks for part in _narrow(each)):
        try:
            chunks.append(_fitted(chunk, kind))
        except _MisfitError as error:
            raise InvalidInputError(
                f"{what}: column {name!r} is {kind}, which cannot hold {_shown(error.value)} "
                f"({error.kind}) of row {before + error.row}: cast or round it, or write it as a column of "
                "another name: a column of a state only widens to longer numbers of its own kind",
                kind=ErrorKind.SCHEMA_CHANGE,
            ) from error.__cause__
        before += len(chunk)
    return pa.chunked_array(chunks, kind)


def _narrow(chunk: pa.Array) -> Iterator[pa.Array]:
    """Slices of it that one array in stored types can have. More than that Arrow casts, to wrong offsets."""
    if len(chunk) < 2 or _narrow_bytes(chunk) <= pieces.PIECE_BYTES:
        yield chunk
        return
    half = len(chunk) // 2
    for part in (chunk[:half], chunk[half:]):
        # Concatenated it begins at 0: a cast looks at where a slice ends.
        yield from _narrow(pa.concat_arrays([part, part[:0]]))


def _narrow_bytes(array: pa.Array) -> int:
    """Of its values in a stored type, as far as a layout of other types may hold more of them."""
    kind = array.type
    if pt.is_dictionary(kind):
        values = array.dictionary
        if _is_view(values.type):
            lengths = pa.array(_view_lengths(values))
        elif _is_text(values.type) or _is_octets(values.type):
            lengths = pc.binary_length(values)
        else:
            return int(array.nbytes)
        return int(pc.sum(lengths.cast(pa.int64()).take(array.indices)).as_py() or 0)
    if _is_view(kind):
        return int(_view_lengths(array).sum())
    if _is_list(kind):
        values = array.flatten()
        return len(values) + _narrow_bytes(values)
    if pt.is_map(kind):
        entries = slice(array.offsets[0].as_py(), array.offsets[-1].as_py())
        return len(array.keys[entries]) + sum(_narrow_bytes(e[entries]) for e in (array.keys, array.items))
    if pt.is_struct(kind):
        return sum(map(_narrow_bytes, array.flatten()))
    is_wide = pt.is_large_string(kind) or pt.is_large_binary(kind)
    return int(array.nbytes) if is_wide else 0


def _is_view(kind: pa.DataType) -> bool:
    return bool(pt.is_string_view(kind) or pt.is_binary_view(kind))


def _view_lengths(views: pa.Array) -> npt.NDArray[np.int64]:
    lengths = np.frombuffer(views.buffers()[1], np.int32)[::4][views.offset :][: len(views)]
    return np.where(views.is_valid().to_numpy(zero_copy_only=False), lengths, 0).astype(np.int64)


def _kind_to_write(known: StateSchema, field: pa.Field, has_type: bool) -> pa.DataType:
    """The state's type, or the one that it widens to for these rows, independent of their values."""
    kind = known.columns.field(field.name).type
    if field.name in known.key_columns or not has_type:
        return kind
    try:
        own = stored_type(_plain(field.type), field.name)
    except InvalidInputError:
        return kind
    return wider_type(kind, own, of_its_kind=True) or kind


def _new_kind(field: pa.Field, what: str) -> pa.DataType:
    try:
        return stored_type(_plain(field.type), field.name)
    except InvalidInputError as error:
        raise InvalidInputError(f"{what}: {error.message}", kind=ErrorKind.UNSUPPORTED_TYPE) from error


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without what only frames have: unsigned numbers, lists of a fixed length, other units."""
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if pt.is_dictionary(kind):
        return _plain(kind.value_type)
    if pt.is_duration(kind):
        return pa.duration("us")
    if _is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pt.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pt.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain(each.type)) for each in kind.fields])
    return kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _has_null_type(kind: pa.DataType) -> bool:
    if pt.is_dictionary(kind):
        return _has_null_type(kind.value_type)
    if pt.is_map(kind):
        return _has_null_type(kind.key_type) or _has_null_type(kind.item_type)
    if _is_list(kind):
        return _has_null_type(kind.value_type)
    if pt.is_struct(kind):
        return any(_has_null_type(field.type) for field in kind.fields)
    return bool(pt.is_null(kind))


def _fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Raises: _MisfitError."""
    source = array.type
    if source == kind:
        return array
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)
    if pt.is_dictionary(source):
        return _fitted(_decoded(array), kind)
    if pt.is_struct(source) and pt.is_struct(kind) and has_fields_of(kind, source):
        return _fitted_struct(array, kind)
    if pt.is_map(source) and pt.is_map(kind):
        return _fitted_map(array, kind)
    if _is_list(source) and pt.is_list(kind):
        return _fitted_list(array, kind)
    cast = _exact_cast(source, kind)
    if cast is None:
        raise _misfit(array, _first(array.is_valid()))
    try:
        return cast(array)
    except pa.ArrowInvalid as error:
        raise _misfit(array, _first_failing(array, cast)) from error


def _exact_cast(source: pa.DataType, kind: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    """The cast between these two, which raises ArrowInvalid for a value that would change; else `None`."""
    if _is_number(source) and _is_number(kind):
        if pt.is_floating(kind):
            if pt.is_floating(source):
                return lambda array: (
                    array.cast(kind) if source.bit_width < kind.bit_width else _narrowed(array, kind)
                )
            return lambda array: _as_float(_as_long(array), kind)
        if pt.is_decimal(kind) and not pt.is_decimal(source):
            return lambda array: _as_long(array).cast(pa.decimal128(_INT64_DIGITS, 0)).cast(kind)
        return lambda array: array.cast(kind)
    for is_same_kind in (_is_text, _is_octets, pt.is_time, pt.is_duration):
        if is_same_kind(source) and is_same_kind(kind):
            return lambda array: array.cast(kind)
    midnights = pt.is_date(source) and kind == pa.timestamp("us")
    if midnights or (
        pt.is_timestamp(source) and pt.is_timestamp(kind) and (source.tz is None) == (kind.tz is None)
    ):
        return lambda array: array.cast(kind)
    return None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def _is_octets(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind))


def _as_long(array: pa.Array) -> pa.Array:
    return array.cast(pa.int64())


def _as_float(longs: pa.Array, kind: pa.DataType) -> pa.Array:
    """Arrow's own cast takes numbers up to 2**53 alone; beyond, some are exact as well."""
    numbers = longs.cast(kind, safe=False)
    if not pc.all(pc.equal(_as_long(numbers), longs), min_count=0).as_py():
        raise pa.ArrowInvalid("a whole number that is not exact")
    return numbers


def _narrowed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    numbers = array.cast(kind, safe=False)
    same = pc.or_(pc.equal(numbers.cast(array.type), array), pc.is_nan(array))
    if not pc.all(same, min_count=0).as_py():
        raise pa.ArrowInvalid("a number with more digits")
    return numbers


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    values = array.dictionary
    if _is_view(values.type):
        # Arrow takes no rows of a view. All of its text may be more than a stored array has.
        values = values.cast(pa.large_string() if pt.is_string_view(values.type) else pa.large_binary())
    elif pt.is_dictionary(values.type):
        values = _decoded(values)
    return values.take(array.indices)


def _fitted_struct(array: pa.StructArray, kind: pa.DataType) -> pa.Array:
    fields = dict(zip((field.name for field in array.type.fields), array.flatten(), strict=True))
    parts = [
        _fitted(fields[field.name], field.type) if field.name in fields else pa.nulls(len(array), field.type)
        for field in kind.fields
    ]
    return pa.StructArray.from_arrays(parts, fields=kind.fields, mask=array.is_null())


def _fitted_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    ends = np.cumsum(
        pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False), dtype=np.int64
    )
    try:
        # A value below a null may be anything, and is left out.
        values = _fitted(array.flatten(), kind.value_type)
    except _MisfitError as error:
        raise _MisfitError(int(np.searchsorted(ends, error.row, "right")), error.value, error.kind) from error
    offsets = pa.array(np.append(0, ends)).cast(pa.int32())
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())


def _fitted_map(array: pa.MapArray, kind: pa.DataType) -> pa.Array:
    """By the list of its entries."""
    entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
    absent = array.is_null()
    lists = pa.ListArray.from_arrays(pa.array(array.offsets.to_numpy()), entries, mask=absent)
    entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
    held = _fitted_list(lists, pa.list_(entry))
    offsets = pa.array(held.offsets.to_numpy(), mask=np.append(absent.to_numpy(zero_copy_only=False), False))
    return pa.MapArray.from_arrays(offsets, *held.values.flatten(), type=kind)


def _first(flags: pa.BooleanArray) -> int:
    return int(np.argmax(flags.to_numpy(zero_copy_only=False)))


def _first_failing(array: pa.Array, cast: Callable[[pa.Array], pa.Array]) -> int:
    """By halves: `cast` has failed for all of them."""
    good, bad = 0, len(array)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            cast(array.slice(good, middle - good))
        except pa.ArrowInvalid:
            bad = middle
        else:
            good = middle
    return good


def _misfit(array: pa.Array, row: int) -> _MisfitError:
    return _MisfitError(row, array[row], array.type)


def _shown(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (ValueError, OverflowError):  # of years that Python does not have
        return str(getattr(value, "value", value.type))
