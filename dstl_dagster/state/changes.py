"""Rows of keyed state to changes of the log, and back.

Owns the bytes of a change: an Arrow IPC record batch message (without schema) of changed rows of *one* key
group, columns as in `StateSchema.wire`. A tombstone has its key and nulls. Of many rows, the bytes of values
are sorted before they are stored (`_split_bytes`). A large key group is written in slices by the hash of the
key, a change for each, so that a look-up decodes one of them. Does not own how changes reach the log, nor
what several changes of a key mean (`replay`).

Nothing here loops over rows in Python: the cost is Arrow's, plus a constant for each key group.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dstl_dagster.errors import ErrorKind, FormatError, InternalError, InvalidInputError
from dstl_dagster.format import META_KEY_GROUP
from dstl_dagster.format.changelog_file.change_set_parts import slices_of
from dstl_dagster.state.key_group_hash import key_hashes
from dstl_dagster.state.keys import refuse_repeated_keys
from dstl_dagster.state.pieces import cut
from dstl_dagster.state.schema import StateSchema
from dstl_dagster.state.text import text_as_bytes
from dstl_dagster.state.types import has_checked_values, has_fields_of

DEFAULT_CHUNK_BYTES = 32 * 1024 * 1024
_ALIGNMENT_BYTES = 8
_MAX_ENCODED_BYTES = 2**31 - 1  # a binary array has 32-bit offsets
_SLICE_BYTES = 512 * 1024
"""Smaller slices cost a full read more, and bytes: at 128 KiB a fifth, and an eighth."""

_MOST_SLICES = 4096
_SPLIT_ROWS = 1024
"""Of a change, from which on the bytes of its values are sorted. It is part of the format."""

_OFFSET_BYTES = 4
_WIDEST_FIXED_BYTES = 16
"""Of a null in a column that the rows leave out."""

Groups = npt.NDArray[np.uint16]
Hashes = npt.NDArray[np.int32]


@dataclass(frozen=True)
class EncodedChanges:
    """The input of a changelog writer's `append_batch`, ascending by key group.

    Attributes:
        key_groups: int32, one for each change.
        changes: binary, of the same length.
    """

    key_groups: pa.Array
    changes: pa.Array


def slice_count(size_bytes: int, group_count: int) -> int:
    """Of how many slices key groups are best that have so many bytes in all."""
    return min(_MOST_SLICES, max(1, size_bytes // (_SLICE_BYTES * max(1, group_count))))


def encoded_pieces(
    schema: StateSchema,
    rows: pa.Table,
    key_groups: pa.Array | npt.NDArray[np.integer],
    deleted: pa.Array | pa.ChunkedArray | None = None,
    hashes: Hashes | None = None,
    slices: int = 1,
) -> Iterator[EncodedChanges]:
    """Rows of any number of bytes, in pieces of about 1 GiB, by one `ChangeEncoder`: raises what it raises.

    Several of them may have changes of one key group.
    """
    encoder = ChangeEncoder(schema, chunk_bytes=1, slices=slices)
    for start, stop in cut(rows, (len(schema.columns) - rows.num_columns) * _WIDEST_FIXED_BYTES):
        changes = encoder.add(
            rows.slice(start, stop - start),
            key_groups[start:stop],
            None if deleted is None else deleted.slice(start, stop - start),
            hashes=None if hashes is None else hashes[start:stop],
        )
        if changes is not None:
            yield changes
    last = encoder.finish()
    if last is not None:
        yield last


def null_keys(keys: pa.Table, deleted: pa.Array | pa.ChunkedArray | None) -> int:
    """How many of these keys have a null in any column, without those of tombstones."""
    with_nulls = [pc.is_null(column) for column in keys.columns if column.null_count]
    if not with_nulls:
        return 0
    found = functools.reduce(pc.or_, with_nulls)
    if deleted is not None:
        found = pc.and_not(found, pc.fill_null(deleted, False))
    return pc.sum(found).as_py() or 0


def decode_change(schema: StateSchema, change: pa.Buffer | bytes) -> pa.RecordBatch:
    """The rows of one change, columns as in `schema.wire`; no copy of few rows where `change` is a buffer at
    a multiple of 8 bytes, as Arrow wants its arrays. In a changelog file a change begins anywhere.

    Text is not required to be UTF-8 (see `text`).

    Raises: FormatError if the bytes are not one whole change of this schema.
    """
    stored = change if isinstance(change, pa.Buffer) else pa.py_buffer(change)
    buffer = _copied(stored) if stored.address % _ALIGNMENT_BYTES else stored
    try:
        source = pa.BufferReader(buffer)
        message = pa.ipc.read_message(source)
        trailing_bytes = buffer.size - source.tell()
        rows = pa.ipc.read_record_batch(message, schema.wire_as_bytes)
        if rows.num_rows >= _SPLIT_ROWS:
            buffer = _copied(stored) if buffer is stored else buffer
            message = pa.ipc.read_message(pa.BufferReader(buffer))
            rows = pa.ipc.read_record_batch(message, schema.wire_as_bytes)
            _join_bytes(rows, stored, buffer)
        # Lengths and offsets inside the message are not trusted: a wrong one would read out of bounds. Text
        # may hold any bytes, so it is validated as binary.
        rows.validate(full=True)
        rows = pa.ipc.read_record_batch(message, schema.wire)
    except (pa.ArrowException, OSError, EOFError, ValueError, TypeError) as error:
        raise FormatError(f"{buffer.size} bytes are not a change of keyed state: {error}") from error
    if trailing_bytes:
        raise FormatError(f"a change of keyed state is followed by {trailing_bytes} unknown bytes")
    if rows.column(rows.num_columns - 1).null_count:
        raise FormatError("a change of keyed state has a row whose delete flag is null")
    return rows


def _split_bytes(rows: pa.RecordBatch, message: pa.Buffer) -> None:
    """Sort the bytes of values, in the message that these rows are in: first the lowest byte of each, then
    the next. Most then compress by a quarter better, and more than twice as fast in both directions.
    """
    octets = np.frombuffer(message, np.uint8)
    for place, size, width in _wide_values(rows, message):
        values = octets[place : place + size]
        values[:] = values.reshape(-1, width).T.ravel()


def _join_bytes(rows: pa.RecordBatch, stored: pa.Buffer, copy: pa.Buffer) -> None:
    """Undo `_split_bytes` in a copy of what is stored, which these rows are in."""
    split, octets = np.frombuffer(stored, np.uint8), np.frombuffer(copy, np.uint8)
    for place, size, width in _wide_values(rows, copy):
        values = octets[place : place + size].reshape(-1, width)
        for number, each in enumerate(split[place : place + size].reshape(width, -1)):
            values[:, number] = each  # all at once take twice as long


def _wide_values(rows: pa.RecordBatch, message: pa.Buffer) -> Iterator[tuple[int, int, int]]:
    """Where a message has values of several bytes: the place of the first, the size of all and of one."""
    for column in rows.columns:
        for buffer, width in zip(column.buffers(), _widths(column.type), strict=True):
            if buffer is not None and width > 1:
                yield buffer.address - message.address, buffer.size // width * width, width


@functools.lru_cache(maxsize=256)
def _widths(kind: pa.DataType) -> tuple[int, ...]:
    """Bytes of a value in each buffer of such an array, as of `Array.buffers`; 1 of bits and of text."""
    if pt.is_string(kind) or pt.is_binary(kind):
        return 1, _OFFSET_BYTES, 1
    if not kind.num_fields:
        return 1, max(1, kind.bit_width // 8)
    own = (1,) if pt.is_struct(kind) else (1, _OFFSET_BYTES)
    return sum((_widths(kind.field(index).type) for index in range(kind.num_fields)), own)


def _copied(buffer: pa.Buffer) -> pa.Buffer:
    """In memory of Arrow's, which is aligned, and faster to get than Python's."""
    copy = pa.allocate_buffer(buffer.size)
    pa.FixedSizeBufferWriter(copy).write(buffer)
    return copy


def decode_changes(
    schema: StateSchema, changes: Sequence[pa.Buffer]
) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The rows of several changes end to end, as of `decode_change`, and how many each has.

    `changes`: at least one. Raises: as `decode_change`.
    """
    decoded = [decode_change(schema, change) for change in changes]
    counts = np.array([rows.num_rows for rows in decoded], np.int64)
    return pa.Table.from_batches(decoded), counts


class ChangeEncoder:
    """Encodes a stream of record batches in chunks, for one writer. One thread.

    Buffers about `chunk_bytes` of rows, and the *keys* of all rows until the end: a key may occur only once
    per checkpoint, and may be repeated in a later chunk, so `finish` refuses repeated keys.

    Attributes:
        slices: of each key group, once the first chunk is full.
        null_keys: upserts taken so far whose key has a null.
    """

    def __init__(
        self, schema: StateSchema, *, chunk_bytes: int = DEFAULT_CHUNK_BYTES, slices: int | None = None
    ) -> None:
        """`slices`: of each key group; `None`: by the first chunk."""
        self.slices = slices
        self.null_keys = 0
        self._schema = schema
        self._chunk_bytes = chunk_bytes
        self._waiting: list[_Chunk] = []
        self._waiting_bytes = 0
        self._keys: list[_Chunk] = []
        self._hashes: list[Hashes] = []
        self._deletes = 0
        self._rows = 0

    @property
    def upserts(self) -> int:
        """Rows taken so far that insert or replace."""
        return self._rows - self._deletes

    @property
    def deletes(self) -> int:
        """Tombstones taken so far."""
        return self._deletes

    def add(
        self,
        rows: pa.Table | pa.RecordBatch,
        key_groups: pa.Array | npt.NDArray[np.integer],
        deleted: pa.Array | None = None,
        *,
        hashes: Hashes | None = None,
    ) -> EncodedChanges | None:
        """Add rows; returns a chunk of changes once it is full: one for every key group that occurs, or for
        each slice of it, its rows in the order in which they came.

        Args:
            rows: columns by name, cast to the schema's types; a column that is missing becomes null.
            key_groups: of each row, 0 to `max_parallelism` - 1.
            deleted: the rows that are tombstones (null: no). Only their key is stored.
            hashes: of the rows' keys (`key_group_hash.key_hashes`), if the caller already has them.

        Raises: InvalidInputError: a key group out of range, a column that is not in the schema, a value that
        does not fit its type, more than 2 GiB at once.
        """
        chunk = _Chunk.of(self._schema, rows, key_groups, deleted)
        keys = _Chunk(chunk.wire.select(list(self._schema.key_columns)), chunk.groups)
        self._keys.append(keys)
        self._hashes.append(key_hashes(keys.wire, self._schema) if hashes is None else hashes)
        self.null_keys += null_keys(keys.wire, deleted)
        self._rows += rows.num_rows
        if deleted is not None:
            self._deletes += int(pc.sum(chunk.wire.column(-1)).as_py() or 0)
        self._waiting.append(chunk)
        self._waiting_bytes += chunk.wire.nbytes
        return self._take_waiting() if self._waiting_bytes >= self._chunk_bytes else None

    def finish(self) -> EncodedChanges | None:
        """The last chunk; `None` if no rows are left.

        Raises: InvalidInputError (kind `duplicate_key`); what `add` returned must then not be used.
        """
        last = self._take_waiting() if self._waiting else None
        _refuse_repeated(self._schema, self._keys, self._hashes)
        self._keys, self._hashes = [], []
        return last

    def _take_waiting(self) -> EncodedChanges:
        if self.slices is None:
            groups = np.concatenate([chunk.groups for chunk in self._waiting])
            self.slices = slice_count(self._waiting_bytes, len(np.unique(groups)))
        chunk = _Chunk.joined(self._waiting, self._hashes[-len(self._waiting) :], self.slices)
        self._waiting, self._waiting_bytes = [], 0
        return chunk.encoded(self.slices)


@dataclass(frozen=True)
class _Chunk:
    """Rows in wire form, and their key groups; by slices of key groups, ascending, once they are `joined`.

    Attributes:
        slices: of each row, in its key group.
    """

    wire: pa.Table
    groups: Groups
    slices: Groups | None = None

    @classmethod
    def of(
        cls,
        schema: StateSchema,
        rows: pa.Table | pa.RecordBatch,
        key_groups: pa.Array | pa.ChunkedArray | npt.NDArray[np.integer],
        deleted: pa.Array | pa.ChunkedArray | None,
    ) -> _Chunk:
        groups = _checked_groups(key_groups, rows.num_rows, schema.max_parallelism)
        return cls(_in_wire_form(schema, rows, deleted), groups)

    @classmethod
    def joined(cls, chunks: list[_Chunk], hashes: list[Hashes] | None = None, slices: int = 1) -> _Chunk:
        """All rows, by key group and slice; those of one keep their order. `hashes`: for several slices."""
        # Concatenated first: taking rows from many pieces is slower than the copy.
        wire = pa.concat_tables([chunk.wire for chunk in chunks]).combine_chunks()
        groups = np.concatenate([chunk.groups for chunk in chunks])
        if slices > 1 and hashes is not None:
            own = slices_of(np.concatenate(hashes), slices).astype(np.uint16)
            order = np.argsort(own, kind="stable")
            order = order[np.argsort(groups[order], kind="stable")]
            return cls(wire.take(pa.array(order)), groups[order], own[order])
        if bool((groups[1:] >= groups[:-1]).all()):
            return cls(wire, groups)
        # On 16-bit numbers a stable sort is a radix sort, and costs less than taking the rows.
        order = np.argsort(groups, kind="stable")
        return cls(wire.take(pa.array(order)), groups[order])

    def encoded(self, slices: int = 1) -> EncodedChanges:
        """The changes of rows that are `joined`; of a key group that occurs, one for each of its slices."""
        if not len(self.groups):
            return EncodedChanges(pa.array([], pa.int32()), pa.array([], pa.binary()))
        (batch,) = self.wire.combine_chunks().to_batches()
        starts = np.flatnonzero(np.append(True, self.groups[1:] != self.groups[:-1]))
        present, ends = self.groups[starts], np.append(starts[1:], len(self.groups))
        if self.slices is not None:
            places = self.groups.astype(np.int64) * slices + self.slices
            wanted = (present.astype(np.int64)[:, None] * slices + np.arange(slices)).ravel()
            starts, ends = np.searchsorted(places, wanted), np.searchsorted(places, wanted, side="right")
            present = np.repeat(present, slices)
        parts = [
            batch.slice(start, end - start) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        offsets = np.zeros(len(present) + 1, np.int64)
        np.cumsum([pa.ipc.get_record_batch_size(part) for part in parts], out=offsets[1:])
        if offsets[-1] > _MAX_ENCODED_BYTES:
            raise InvalidInputError(f"{offsets[-1]} bytes of changes at once: encode at most 2 GiB at a time")
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), _messages(parts, int(offsets[-1]))]
        changes = pa.Array.from_buffers(pa.binary(), len(present), buffers)
        return EncodedChanges(pa.array(present.astype(np.int32)), changes)


def _refuse_repeated(schema: StateSchema, chunks: list[_Chunk], hashes: list[Hashes]) -> None:
    """Compare only the keys of rows whose hashes are equal; they are few."""
    if not hashes:
        return
    in_order = np.sort(np.concatenate(hashes))
    twice = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    if not len(twice):
        return
    suspects = []
    for chunk, own in zip(chunks, hashes, strict=True):
        found = np.flatnonzero(np.isin(own, twice))
        suspects.append(_Chunk(chunk.wire.take(pa.array(found)), chunk.groups[found]))
    everything = _Chunk.joined(suspects)
    refuse_repeated_keys(everything.wire, schema.key_columns, everything.groups)


def _messages(parts: list[pa.RecordBatch], size: int) -> pa.Buffer:
    """The messages of all parts end to end, `size` bytes: an IPC stream without its leading schema."""
    schema = parts[0].schema
    schema_bytes = schema.serialize().size
    # Allocated at its final size: a growing buffer is copied again and again.
    stream = pa.allocate_buffer(schema_bytes + size)
    sink = pa.FixedSizeBufferWriter(stream)
    writer = pa.ipc.RecordBatchStreamWriter(sink, schema)
    for part in parts:
        at = max(schema_bytes, sink.tell())
        writer.write_batch(part)
        if part.num_rows >= _SPLIT_ROWS:
            message = pa.ipc.read_message(pa.BufferReader(stream.slice(at)))
            _split_bytes(pa.ipc.read_record_batch(message, schema), stream)
    if sink.tell() != stream.size:
        raise InternalError(f"Arrow wrote {sink.tell()} bytes of messages, but had announced {stream.size}")
    return stream.slice(schema_bytes)


def _checked_groups(
    key_groups: pa.Array | pa.ChunkedArray | npt.NDArray[np.integer], row_count: int, max_parallelism: int
) -> Groups:
    if len(key_groups) != row_count:
        raise InvalidInputError(f"{row_count} rows have {len(key_groups)} key groups: each row has one")
    if isinstance(key_groups, (pa.Array, pa.ChunkedArray)):
        if key_groups.null_count:
            raise InvalidInputError("a row has no key group (null): each row has one")
        key_groups = key_groups.to_numpy()
    if row_count and not 0 <= int(key_groups.min()) <= int(key_groups.max()) < max_parallelism:
        raise InvalidInputError(
            f"key groups {key_groups.min()} to {key_groups.max()} are outside 0..{max_parallelism - 1}"
        )
    return key_groups.astype(np.uint16)


def _in_wire_form(
    schema: StateSchema, rows: pa.Table | pa.RecordBatch, deleted: pa.Array | pa.ChunkedArray | None
) -> pa.Table:
    unknown = [name for name in rows.schema.names if name not in schema.columns.names]
    if unknown:
        raise InvalidInputError(f"column {unknown[0]!r} is not in the state's schema: {schema.columns.names}")
    flags = delete_flags(deleted, rows.num_rows)
    if deleted is None:
        return pa.table(
            [*(_stored_column(rows, field) for field in schema.columns), flags], schema=schema.wire
        )
    # A null index takes a null of any type: the values of a deleted row must not stay readable in the log.
    kept = pa.array(np.arange(rows.num_rows), mask=flags.to_numpy(zero_copy_only=False))
    columns = []
    for field in schema.columns:
        column = _stored_column(rows, field)
        blank = kept.null_count and field.name not in schema.key_columns
        columns.append(column.take(kept) if blank else column)
    return pa.table([*columns, flags], schema=schema.wire)


def delete_flags(deleted: pa.Array | pa.ChunkedArray | None, row_count: int) -> pa.Array:
    """For each row, whether it is a tombstone; nulls, or no flags, mean no. Raises: InvalidInputError."""
    if deleted is None:
        return pa.array(np.zeros(row_count, np.bool_))
    if len(deleted) != row_count:
        raise InvalidInputError(f"{row_count} rows have {len(deleted)} delete flags: each row has one")
    flags = deleted.combine_chunks() if isinstance(deleted, pa.ChunkedArray) else deleted
    return pc.fill_null(flags, False)


def _stored_column(rows: pa.Table | pa.RecordBatch, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    if field.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    column = rows.column(field.name)
    if not has_fields_of(field.type, column.type):
        raise InvalidInputError(
            f"column {field.name!r} is {column.type}, and the state's is {field.type}: the names of a "
            "struct's fields are part of its type. Rename them, or use the state's type",
            kind=ErrorKind.SCHEMA_CHANGE,
        )
    try:
        stored = column if column.type == field.type else column.cast(field.type)
        if has_checked_values(field.type):
            # Readers do not trust the bytes, and would refuse them for ever. Text may hold any bytes.
            stored.cast(text_as_bytes(field.type)).validate(full=True)
        return stored
    except pa.ArrowException as error:
        raise InvalidInputError(
            f"column {field.name!r} does not fit its type {field.type}: {error}"
        ) from error


def check_changes(log: Iterable[pa.RecordBatch], schema: StateSchema) -> int:
    """Decode every change of one handle, as `StateReplay` would, and discard the rows.

    Args:
        log: record batches of (key_group: int32, change: binary or binary_view).
        schema: of the state; it must hold the rows of every schema in the log.

    Returns: the number of rows. Raises: FormatError.
    """
    described: StateSchema | None = None
    rows = 0
    for batch in log:
        changes = batch.column(1)
        for index, key_group in enumerate(batch.column(0).to_pylist()):
            change = changes[index].as_buffer()
            if key_group == META_KEY_GROUP:
                described = StateSchema.from_bytes(change.to_pybytes())
                if schema.covering(described) != schema:
                    raise FormatError(
                        f"the log holds columns {described.columns.names} that its checkpoint does not list"
                    )
            elif described is None:
                raise FormatError("the changes of keyed state begin without their schema")
            else:
                rows += decode_change(described, change).num_rows
    return rows
