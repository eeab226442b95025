"""The rows of some keys in one large change, of which only the bytes that are needed are looked at.

Owns which bytes these are: the message's head, the key columns, and of the other columns the values of the
rows found. Does not own how the bytes come (`format.framed_changes`), nor a change's bytes (`changes`).

A change is one Arrow message, whose columns lie one after another, so where a value is follows from its head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.errors import FormatError
from dstl_dagster.format.framed_changes import FramedChange
from dstl_dagster.state.changes import decode_change
from dstl_dagster.state.keys import occurring
from dstl_dagster.state.schema import StateSchema

__all__ = ["sought_rows"]

_HEAD_BYTES: Final = 8
_CONTINUATION: Final = b"\xff\xff\xff\xff"
_MANY: Final = 16
"""Of so many rows one is wanted, or more: then hardly a frame is not needed."""

Int64s = npt.NDArray[np.int64]
_Parts = tuple[Int64s, Int64s]
_NOTHING: Final = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def sought_rows(schema: StateSchema, change: FramedChange, keys: pa.Table) -> pa.RecordBatch:
    """The rows of these keys, columns as in `schema.wire`; as `changes.decode_change` gives them.

    `keys`: the key columns by their names in `schema`.

    Raises: FormatError if what is looked at is not a change of this schema.
    """
    metadata_end = _metadata_end(change)
    if metadata_end is None:
        return _of_whole(schema, change, keys)
    change.need(*_part(0, metadata_end))
    try:
        return _found(schema, change, keys)
    except (pa.ArrowException, OSError, EOFError, ValueError, TypeError) as error:
        raise FormatError(f"{change.size} bytes are not a change of keyed state: {error}") from error


def _metadata_end(change: FramedChange) -> int | None:
    """Where the message's body begins; `None` if it does not begin as our messages do."""
    change.need(*_part(0, min(_HEAD_BYTES, change.size)))
    head = change.buffer.slice(0, min(_HEAD_BYTES, change.size)).to_pybytes()
    end = _HEAD_BYTES + int.from_bytes(head[4:], "little")
    return end if head[:4] == _CONTINUATION and _HEAD_BYTES < end <= change.size else None


def _of_whole(schema: StateSchema, change: FramedChange, keys: pa.Table) -> pa.RecordBatch:
    rows = decode_change(schema, change.whole())
    return rows.filter(_wanted(rows, keys))


def _found(schema: StateSchema, change: FramedChange, keys: pa.Table) -> pa.RecordBatch:
    source = pa.BufferReader(change.buffer)
    message = pa.ipc.read_message(source)
    # Text may hold any bytes, so what is validated is binary.
    octets = pa.ipc.read_record_batch(message, schema.wire_as_bytes)
    rows = pa.ipc.read_record_batch(message, schema.wire)
    octets.validate()
    if source.tell() != change.size or rows.column(rows.num_columns - 1).null_count:
        return _of_whole(schema, change, keys)  # which says what is wrong
    key = [octets.column(schema.wire.get_field_index(name)) for name in schema.key_columns]
    change.need(*_joined([part for column in key for part in _whole_column(change, column)]))
    for column in key:
        column.validate(full=True)
    found = np.flatnonzero(_wanted(rows, keys).to_numpy(zero_copy_only=False))
    if len(found) * _MANY > rows.num_rows:
        return _of_whole(schema, change, keys)
    others = [place for place, name in enumerate(schema.wire.names) if name not in schema.key_columns]
    _need_values(change, [octets.column(place) for place in others], found)
    places = pa.array(found)
    octets.take(places).validate(full=True)
    return rows.take(places)


def _wanted(rows: pa.RecordBatch, keys: pa.Table) -> pa.BooleanArray:
    names = keys.column_names
    return occurring(pa.table([rows.column(name) for name in names], names=names), keys, names)


def _need_values(change: FramedChange, columns: Sequence[pa.Array], rows: Int64s) -> None:
    """The values of these columns in these rows. Raises: FormatError for text outside of its column."""
    if not len(rows):
        return
    parts: list[_Parts] = []
    texts: list[tuple[pa.Buffer, pa.Buffer | None]] = []
    nested = [column for column in columns if pt.is_nested(column.type)]
    for column in columns:
        buffers = column.buffers()
        if pt.is_nested(column.type):
            parts += _whole_column(change, column)
            continue
        parts.append(_bits(change, buffers[0], rows, 1))
        if pt.is_binary(column.type):
            offsets, octets = buffers[1:]
            parts += [_bits(change, offsets, rows, 32), _bits(change, offsets, rows + 1, 32)]
            texts.append((offsets, octets))
        else:
            parts.append(_bits(change, buffers[1], rows, column.type.bit_width))
    change.need(*_joined(parts))
    for column in nested:
        column.validate(full=True)
    change.need(*_joined([_text(change, *each, rows) for each in texts]))


def _text(change: FramedChange, offsets: pa.Buffer, octets: pa.Buffer | None, rows: Int64s) -> _Parts:
    """Where the text of these rows is, whose offsets are there."""
    numbers = np.frombuffer(offsets, np.int32)
    starts, stops = numbers[rows].astype(np.int64), numbers[rows + 1].astype(np.int64)
    size = 0 if octets is None else octets.size
    if bool(((starts < 0) | (stops < starts) | (stops > size)).any()):
        raise FormatError("a change of keyed state has text that is outside of its column")
    if octets is None or not size:
        return _NOTHING
    at = octets.address - change.buffer.address
    some = stops > starts
    return starts[some] + at, stops[some] + at


def _bits(change: FramedChange, buffer: pa.Buffer | None, rows: Int64s, bit_width: int) -> _Parts:
    """Where the values of these rows are in a buffer of values of this width; nowhere if there is none."""
    if buffer is None or not buffer.size:
        return _NOTHING
    at = buffer.address - change.buffer.address
    return at + rows * bit_width // 8, at + ((rows + 1) * bit_width + 7) // 8


def _whole_column(change: FramedChange, column: pa.Array) -> Iterator[_Parts]:
    for buffer in column.buffers():
        if buffer is not None and buffer.size:
            at = buffer.address - change.buffer.address
            yield _part(at, at + buffer.size)


def _part(start: int, stop: int) -> _Parts:
    return np.array([start]), np.array([stop])


def _joined(parts: Iterable[_Parts]) -> _Parts:
    starts, stops = zip(_NOTHING, *parts, strict=True)
    return np.concatenate(starts), np.concatenate(stops)
