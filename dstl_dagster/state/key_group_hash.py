"""The key group of a key: Spark's Murmur3 in numpy, so that state can be looked up without Spark.

Owns the hash of every type that can be a key, and the key group from it. Does not own which types those are
(`types.can_be_key`) nor which task has which key group (`partitioning`).

Source: Spark's `Murmur3Hash` expression (`F.hash`, seed 42). It is Austin Appleby's MurmurHash3_x86_32 with
one deviation, copied here: the bytes after the last whole word are mixed in one by one, each sign-extended to
a word. Columns are hashed in order, each hash the seed of the next; a null leaves the hash unchanged. The
hash depends on the type: int 5 and bigint 5 differ.

The key group of a key is its hash, modulo their number. In a state with partition columns it is that of the
hash of these, or by the key's own hash one of the `SPREAD` - 1 that follow, around the end: so a partition is
in few key groups, and a large one is merged in several pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.state import pieces
from dstl_dagster.state.pieces import cut
from dstl_dagster.state.schema import StateSchema

_SEED = 42
_LONG_DECIMAL_DIGITS = 18
"""Up to this precision, Spark hashes a decimal as its unscaled long."""

_HASHED_ROWS = 64 * 1024
"""At a time, at most: they stay in the CPU's cache, which halves the time."""

SPREAD = 4
"""Key groups of a partition."""

Hashes = npt.NDArray[np.uint32]
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


def key_group_of(rows: pa.Table | pa.RecordBatch, schema: StateSchema) -> Int32s:
    """The key group of each row, 0 to `max_parallelism` - 1.

    Args:
        rows: with the key columns by name; other columns are ignored. Keys are cast to the schema's
            types first, because the hash depends on the type.

    Raises: InvalidInputError if a key column is missing or does not fit its type.
    """
    return group_of_hashes(key_hashes(rows, schema), rows, schema)


def key_hashes(rows: pa.Table | pa.RecordBatch, schema: StateSchema) -> Int32s:
    """Spark's `hash` of each row's key; equal keys have equal hashes. Raises as `key_group_of`."""
    return _hashes(rows, schema, schema.key_columns)


def group_of_hashes(hashes: Int32s, rows: pa.Table | pa.RecordBatch, schema: StateSchema) -> Int32s:
    """The key groups of rows whose keys have these hashes."""
    # numpy's remainder has the sign of the divisor, like pmod's.
    if not schema.partition_columns:
        return np.mod(hashes, np.int32(schema.max_parallelism)).astype(np.int32)
    steps = np.mod(hashes, np.int32(SPREAD))
    return np.mod(steps + _partition_groups(rows, schema), np.int32(schema.max_parallelism)).astype(np.int32)


def key_groups_of_partitions(partitions: pa.Table, schema: StateSchema) -> set[int]:
    """All that can have rows with one of these values in the partition columns."""
    steps = np.arange(SPREAD, dtype=np.int32)
    groups = _partition_groups(partitions, schema)[:, None] + steps
    return set(np.unique(np.mod(groups, schema.max_parallelism)).tolist())


def _partition_groups(rows: pa.Table | pa.RecordBatch, schema: StateSchema) -> Int32s:
    return np.mod(_hashes(rows, schema, schema.partition_columns), np.int32(schema.max_parallelism))


def _hashes(rows: pa.Table | pa.RecordBatch, schema: StateSchema, names: Sequence[str]) -> Int32s:
    fields = [schema.columns.field(name) for name in names]
    bounds = cut(
        rows.select([name for name in names if name in rows.schema.names]),
        pieces.PIECE_BYTES // _HASHED_ROWS,
    )
    parts = [rows.slice(start, stop - start) for start, stop in bounds]
    return np.concatenate([hash_columns([_key_column(part, field) for field in fields]) for part in parts])


def hash_columns(columns: list[pa.Array]) -> Int32s:
    """Spark's `hash` of each row of columns of one length, each of a stored type that can be a key."""
    hashes = np.full(len(columns[0]), _SEED, np.uint32)
    for column in columns:
        valid = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        whole = len(valid) == len(column)
        present = column if whole else column.take(pa.array(valid))
        seeds = hashes if whole else hashes[valid]
        hashes[valid] = _hash_present(present, seeds)
    return hashes.view(np.int32)


def _key_column(rows: pa.Table | pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in rows.schema.names:
        raise InvalidInputError(f"key column {field.name!r} is missing: pass null for a key without a value")
    column = rows.column(field.name)
    try:
        typed = column if column.type == field.type else column.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidInputError(f"key {field.name!r} does not fit its type {field.type}: {error}") from error
    return typed.combine_chunks() if isinstance(typed, pa.ChunkedArray) else typed


def _hash_present(column: pa.Array, seeds: Hashes) -> Hashes:
    kind = column.type
    if pt.is_boolean(kind):
        return _hash_ints(column.to_numpy(zero_copy_only=False).astype(np.int32), seeds)
    if pt.is_int64(kind):
        return _hash_longs(column.to_numpy(), seeds)
    if pt.is_integer(kind):
        return _hash_ints(column.to_numpy().astype(np.int32), seeds)
    if pt.is_date32(kind):
        return _hash_ints(column.view(pa.int32()).to_numpy(), seeds)
    if pt.is_timestamp(kind):
        return _hash_longs(column.view(pa.int64()).to_numpy(), seeds)
    if pt.is_decimal128(kind):
        return _hash_decimals(column, seeds)
    if pt.is_string(kind) or pt.is_binary(kind):
        offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
        starts = offsets[:-1].astype(np.int64)
        stored = column.buffers()[2]
        payload = np.zeros(0, np.uint8) if stored is None else np.frombuffer(stored, np.uint8)
        return _hash_texts(payload, starts, np.diff(offsets).astype(np.int64), seeds)
    raise InvalidInputError(f"a key of type {kind} has no hash: cast it to the state's type")


def _hash_ints(values: Int32s, seeds: Hashes) -> Hashes:
    return _finished(_mixed(seeds, values.view(np.uint32)), np.uint32(4))


def _hash_longs(values: Int64s, seeds: Hashes) -> Hashes:
    low = (values & 0xFFFFFFFF).astype(np.uint32)
    high = ((values >> 32) & 0xFFFFFFFF).astype(np.uint32)
    return _finished(_mixed(_mixed(seeds, low), high), np.uint32(8))


def _hash_decimals(column: pa.Array, seeds: Hashes) -> Hashes:
    halves = np.frombuffer(column.buffers()[1], np.dtype("<i8")).reshape(-1, 2)
    halves = halves[column.offset : column.offset + len(column)]
    if column.type.precision <= _LONG_DECIMAL_DIGITS:
        return _hash_longs(np.ascontiguousarray(halves[:, 0]), seeds)
    big_endian = np.ascontiguousarray(np.ascontiguousarray(halves).view(np.uint8)[:, ::-1])
    # The shortest two's complement form, as Java's BigInteger.toByteArray: at least one byte, and a sign
    # bit in the first.
    negative = big_endian[:, 0] >= 0x80
    fill = np.where(negative, 0xFF, 0).astype(np.uint8)
    filling = big_endian == fill[:, None]
    leading = np.where(filling.all(axis=1), 16, np.argmin(filling, axis=1))
    first = np.take_along_axis(big_endian, np.minimum(leading, 15)[:, None], axis=1)[:, 0]
    sign_is_lost = (leading == 16) | ((first >= 0x80) != negative)
    skipped = leading - sign_is_lost
    starts = np.arange(len(column), dtype=np.int64) * 16 + skipped
    return _hash_texts(big_endian.reshape(-1), starts, (16 - skipped).astype(np.int64), seeds)


def _hash_texts(payload: npt.NDArray[np.uint8], starts: Int64s, lengths: Int64s, seeds: Hashes) -> Hashes:
    """All texts in parallel, word by word; sorted by length, so that the unfinished ones are a prefix."""
    order = np.argsort(-lengths, kind="stable")
    starts, lengths, hashes = starts[order], lengths[order], seeds[order]
    word_counts, ascending = lengths >> 2, -lengths
    words = _unaligned_words(payload)
    for word in range(int(word_counts[0]) if len(lengths) else 0):
        running = int(np.searchsorted(ascending, -4 * (word + 1), side="right"))
        hashes[:running] = _mixed(hashes[:running], words[starts[:running] + 4 * word])
    tail_starts = starts + 4 * word_counts
    for place in range(3):
        with_tail = np.flatnonzero((lengths & 3) > place)
        tails = payload[tail_starts[with_tail] + place].view(np.int8).astype(np.int32).view(np.uint32)
        hashes[with_tail] = _mixed(hashes[with_tail], tails)
    hashed = np.empty_like(hashes)
    hashed[order] = _finished(hashes, lengths.astype(np.uint32))
    return hashed


def _unaligned_words(payload: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """The little-endian word at each byte offset; a view."""
    count = max(0, len(payload) - 3)
    return np.ndarray((count,), np.dtype("<u4"), payload.data if count else b"", 0, (1,))


def _mixed(hashes: Hashes, words: npt.NDArray[np.uint32]) -> Hashes:
    scrambled = words * np.uint32(0xCC9E2D51)
    scrambled = (scrambled << np.uint32(15)) | (scrambled >> np.uint32(17))
    mixed = hashes ^ (scrambled * np.uint32(0x1B873593))
    mixed = (mixed << np.uint32(13)) | (mixed >> np.uint32(19))
    return mixed * np.uint32(5) + np.uint32(0xE6546B64)


def _finished(hashes: Hashes, lengths: Hashes | np.uint32) -> Hashes:
    final = hashes ^ lengths
    final ^= final >> np.uint32(16)
    final *= np.uint32(0x85EBCA6B)
    final ^= final >> np.uint32(13)
    final *= np.uint32(0xC2B2AE35)
    return final ^ (final >> np.uint32(16))
