"""Rows to changes and back, schema evolution, and the bytes that are refused."""

from __future__ import annotations

import contextlib
import datetime
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.errors import FormatError, InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.state import ChangeEncoder, StateReplay, StateSchema, python_rows
from dstl_dagster.state.changes import decode_change, decode_changes
from tests.doubles.encoded import encode_changes
from tests.profiles import examples

SPLIT_ROWS = 1024
SCHEMA = StateSchema.of(pa.schema({"id": pa.int64(), "name": pa.string(), "total": pa.float64()}), ["id"], 8)


def rows(*items: tuple[Any, ...], schema: pa.Schema = SCHEMA.columns) -> pa.RecordBatch:
    columns = zip(*items, strict=True) if items else [[] for _ in schema]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def many_rows(count: int) -> pa.Table:
    """Of every type that a state can have, with nulls; not from the first value of their arrays on."""
    numbers = list(range(-3, count))
    nested = pa.struct([("texts", pa.list_(pa.string())), ("n", pa.int16())])
    columns = {
        "id": pa.array(numbers, pa.int64()),
        "name": pa.array([None if n % 7 == 0 else "é" * (n % 5) for n in numbers]),
        "raw": pa.array([bytes([n % 256]) * (n % 3) for n in numbers]),
        "flag": pa.array([n % 3 == 0 for n in numbers]),
        "tiny": pa.array([n % 100 for n in numbers], pa.int8()),
        "short": pa.array([n % 999 for n in numbers], pa.int16()),
        "day": pa.array(numbers, pa.int32()).cast(pa.date32()),
        "price": pa.array(
            [None if n % 5 == 0 else decimal.Decimal(n) for n in numbers], pa.decimal128(12, 2)
        ),
        "real": pa.array([n / 3 for n in numbers], pa.float32()),
        "at": pa.array(numbers, pa.timestamp("us", "UTC")),
        "nested": pa.array(
            [None if n % 4 == 0 else {"texts": [str(n)] * (n % 3), "n": n % 30} for n in numbers], nested
        ),
        "counts": pa.array([[(str(n), n)] * (n % 2) for n in numbers], pa.map_(pa.string(), pa.int64())),
    }
    return pa.table(columns).slice(3)


def log_of(*parts: tuple[StateSchema, Any]) -> list[list[pa.RecordBatch]]:
    """What a reader yields for handles that hold a schema and its encoded changes."""
    logs = []
    for schema, encoded in parts:
        groups = pa.array([-1, *encoded.key_groups.to_pylist()], pa.int32())
        changes = pa.array([schema.to_bytes(), *encoded.changes.to_pylist()], pa.binary())
        logs.append([pa.record_batch([groups, changes], ["key_group", "change"])])
    return logs


def replayed(
    schema: StateSchema, logs: list[list[pa.RecordBatch]], start: int = 0, end: int = 7
) -> list[dict[str, Any]]:
    replay = StateReplay(schema, [KeyGroupRange.of(start, end)])
    for log in logs:
        replay.add(log)
    return [row for table in replay.tables() for row in table.to_pylist()]


def test_one_change_for_each_key_group_in_ascending_order() -> None:
    """Rows are grouped; inside a group they keep their order."""
    batch = rows((1, "a", 1.0), (2, "b", 2.0), (3, "c", 3.0), (4, "d", 4.0))
    encoded = encode_changes(SCHEMA, batch, np.array([5, 0, 5, 7]))
    assert encoded.key_groups.to_pylist() == [0, 5, 7]
    decoded = [decode_change(SCHEMA, change.as_py()).column("id").to_pylist() for change in encoded.changes]
    assert decoded == [[2], [1, 3], [4]]


def test_no_rows_make_no_changes() -> None:
    """An empty input is not an error and writes nothing."""
    encoded = encode_changes(SCHEMA, rows(), np.array([], np.int32))
    assert (len(encoded.key_groups), len(encoded.changes)) == (0, 0)
    assert ChangeEncoder(SCHEMA).finish() is None


def test_a_tombstone_keeps_its_key_and_nothing_else() -> None:
    """What a user deletes does not stay readable in the change that deletes it."""
    flags = pa.array([True, None, False])
    batch = rows((1, "secret", 1.0), (2, "b", 2.0), (3, "c", 3.0))
    encoded = encode_changes(SCHEMA, batch, np.zeros(3, np.int32), flags)
    assert b"secret" not in encoded.changes[0].as_py()
    decoded = decode_change(SCHEMA, encoded.changes[0].as_py()).to_pylist()
    assert [tuple(row.values()) for row in decoded] == [
        (1, None, None, True),
        (2, "b", 2.0, False),
        (3, "c", 3.0, False),
    ]


@pytest.mark.parametrize("second", [(1, "b", 2.0), (1, "a", 1.0)])
def test_a_key_twice_is_refused_by_name(second: tuple[Any, ...]) -> None:
    """Two rows of a key in one checkpoint have no order, so neither can win."""
    with pytest.raises(InvalidInputError, match=r"key \(id=1\) occurs 2 times") as caught:
        encode_changes(SCHEMA, rows((1, "a", 1.0), second, (2, "c", 3.0)), np.array([3, 3, 4]))
    assert caught.value.kind == "duplicate_key"


def test_a_key_twice_is_found_across_chunks() -> None:
    """The encoder remembers the keys of the chunks that it already returned."""
    encoder = ChangeEncoder(SCHEMA, chunk_bytes=1)
    assert encoder.add(rows((1, "a", 1.0)), pa.array([3])) is not None
    assert encoder.add(rows((2, "a", 1.0)), pa.array([3])) is not None
    assert encoder.add(rows((1, "a", 1.0)), pa.array([3])) is not None
    with pytest.raises(InvalidInputError, match="id=1"):
        encoder.finish()


def test_chunks_hold_what_was_added_in_order() -> None:
    """Record batches are joined until the chunk is full; the counts cover all rows added."""
    encoder = ChangeEncoder(SCHEMA, chunk_bytes=2**20)
    assert encoder.add(rows((1, "a", 1.0), (2, "b", 2.0)), pa.array([3, 1])) is None
    assert encoder.add(rows((3, None, None)), pa.array([3]), pa.array([True])) is None
    assert (encoder.upserts, encoder.deletes) == (2, 1)
    encoded = encoder.finish()
    assert encoded is not None
    assert encoded.key_groups.to_pylist() == [1, 3]
    assert decode_change(SCHEMA, encoded.changes[1].as_py()).column("id").to_pylist() == [1, 3]


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        (np.array([8]), r"outside 0\.\.7"),
        (np.array([-1]), r"outside 0\.\.7"),
        (np.array([0, 0]), "1 rows have 2 key groups"),
        (pa.array([None], pa.int32()), "no key group"),
    ],
)
def test_wrong_key_groups_are_refused(groups: Any, reason: str) -> None:
    """A row with an invalid key group would be lost on the next restore, so it is refused."""
    with pytest.raises(InvalidInputError, match=reason):
        encode_changes(SCHEMA, rows((1, "a", 1.0)), groups)


def test_input_is_brought_into_the_stored_types() -> None:
    """Large and dictionary text, narrower numbers and absent columns are brought into the schema's types."""
    table = pa.table(
        {
            "total": pa.array([1, 2], pa.int32()),
            "id": pa.array([1, 2], pa.int16()),
        }
    )
    encoded = encode_changes(SCHEMA, table, np.array([0, 0]))
    decoded = decode_change(SCHEMA, encoded.changes[0].as_py())
    assert decoded.schema == SCHEMA.wire
    assert decoded.column("name").to_pylist() == [None, None]
    text = pa.table({"id": [1], "name": pa.array(["x"]).dictionary_encode()})
    assert (
        decode_change(SCHEMA, encode_changes(SCHEMA, text, np.array([0])).changes[0].as_py())["name"][
            0
        ].as_py()
        == "x"
    )


def test_a_value_that_does_not_fit_is_refused() -> None:
    """Nothing is truncated or wrapped around to make it fit."""
    small = StateSchema.of(pa.schema({"id": pa.int8()}), ["id"], 8)
    with pytest.raises(InvalidInputError, match="column 'id' does not fit its type int8"):
        encode_changes(small, pa.table({"id": [300]}), np.array([0]))
    with pytest.raises(InvalidInputError, match="column 'extra' is not in the state's schema"):
        encode_changes(small, pa.table({"id": [1], "extra": [1]}), np.array([0]))


EVERY_TYPE: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False, None]),
    "int8": (pa.int8(), [-128, 127, None]),
    "int16": (pa.int16(), [1, None, 3]),
    "int32": (pa.int32(), [1, None, 3]),
    "int64": (pa.int64(), [2**62, None, -3]),
    "float32": (pa.float32(), [1.5, None, float("inf")]),
    "float64": (pa.float64(), [1e300, None, -0.0]),
    "decimal": (pa.decimal128(38, 10), [decimal.Decimal("1.5"), None, decimal.Decimal("-99999999.1")]),
    "string": (pa.string(), ["", None, "\N{SNOWMAN}\x00"]),
    "binary": (pa.binary(), [b"", None, b"\x00\xff"]),
    "date": (pa.date32(), [datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)]),
    "instant": (pa.timestamp("us", "UTC"), [datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC), None, None]),
    "local_time": (pa.timestamp("us"), [datetime.datetime(2013, 1, 1, 5, 15), None, None]),
    "time": (pa.time64("ns"), [datetime.time(23, 59, 59), None, None]),
    "duration": (pa.duration("us"), [datetime.timedelta(days=-1), None, None]),
    "list": (pa.list_(pa.int32()), [[1, None], [], None]),
    "struct": (
        pa.struct({"a": pa.int8(), "b": pa.list_(pa.string())}),
        [{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}],
    ),
    "map": (pa.map_(pa.string(), pa.struct({"c": pa.int64()})), [[("k", {"c": 1})], [], None]),
}


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_every_type_comes_back(name: str) -> None:
    """Values and nulls of each type that state keeps are the same after a round trip, also as slices."""
    kind, values = EVERY_TYPE[name]
    schema = StateSchema.of(pa.schema({"id": pa.int64(), "value": kind}), ["id"], 8)
    table = pa.table({"id": [9, 0, 1, 2], "value": pa.array([None, *values], kind)}).slice(1)
    encoded = encode_changes(schema, table, np.array([1, 0, 1]))
    again = replayed(StateSchema.from_bytes(schema.to_bytes()), log_of((schema, encoded)))
    assert sorted(again, key=lambda row: row["id"]) == table.to_pylist()
    removed = encode_changes(schema, table, np.array([1, 0, 1]), pa.array([True, True, False]))
    assert [row["id"] for row in replayed(schema, log_of((schema, encoded), (schema, removed)))] == [2]


@pytest.mark.parametrize(
    "kind", [pa.null(), pa.uint8(), pa.date64(), pa.month_day_nano_interval(), pa.time32("s")]
)
def test_a_type_that_cannot_be_kept_is_named(kind: pa.DataType) -> None:
    """The error names the column and the type, also inside a nested type."""
    with pytest.raises(InvalidInputError, match=r"column 'v\.element\.x' has type") as caught:
        StateSchema.of(pa.schema({"id": pa.int64(), "v": pa.list_(pa.struct({"x": kind}))}), ["id"])
    assert caught.value.kind == "unsupported_type"


@pytest.mark.parametrize(
    "kind", [pa.float32(), pa.float64(), pa.list_(pa.int32()), pa.struct({"a": pa.int8()})]
)
def test_a_type_without_one_equality_is_no_key(kind: pa.DataType) -> None:
    """NaN and signed zero make floating point unfit as a key; nested types are not hashed alike."""
    with pytest.raises(InvalidInputError, match="cannot be a key"):
        StateSchema.of(pa.schema({"id": kind}), ["id"])


@pytest.mark.parametrize(
    ("names", "keys", "parallelism", "reason"),
    [
        (["a"], [], 128, "at least one key column"),
        (["a"], ["b"], 128, "'b' is not among the columns: a"),
        (["a"], ["a", "a"], 128, "named twice"),
        (["a", "a"], ["a"], 128, "repeated: a"),
        (["a", "__dstl_x"], ["a"], 128, "reserved"),
        (["a"], ["a"], 0, "max_parallelism is 0, not a whole number from 1 to 32768"),
        (["a"], ["a"], 32769, "is 32769, not a whole number"),
        (["a"], ["a"], "4", "is '4', not a whole number"),
        (["a"], ["a"], 4.0, "is 4.0, not a whole number"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(
    names: list[str], keys: list[str], parallelism: Any, reason: str
) -> None:
    """The error of each invalid schema says what is wrong with it."""
    with pytest.raises(InvalidInputError, match=reason):
        StateSchema.of(pa.schema([(name, pa.int64()) for name in names]), keys, parallelism)


def evolved(one: dict[str, pa.DataType], other: dict[str, pa.DataType]) -> StateSchema:
    return StateSchema.of(pa.schema(one), ["id"]).evolved_to(StateSchema.of(pa.schema(other), ["id"]))


def test_added_and_missing_columns_are_null() -> None:
    """A column that one of two checkpoints lacks is null in its rows; none is lost."""
    older = StateSchema.of(pa.schema({"id": pa.int64(), "gone": pa.string()}), ["id"], 8)
    newer = StateSchema.of(pa.schema({"added": pa.bool_(), "id": pa.int64()}), ["id"], 8)
    both = older.evolved_to(newer)
    logs = log_of(
        (older, encode_changes(older, pa.table({"id": [1, 2], "gone": ["x", "y"]}), np.array([0, 1]))),
        (newer, encode_changes(newer, pa.table({"id": [2, 3], "added": [True, False]}), np.array([1, 1]))),
    )
    assert replayed(both, logs) == [
        {"id": 1, "gone": "x", "added": None},
        {"id": 2, "gone": None, "added": True},
        {"id": 3, "gone": None, "added": False},
    ]


@pytest.mark.parametrize(
    ("one", "other", "wider"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.int32(), pa.int16(), pa.int32()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal128(8, 4), pa.decimal128(12, 4)),
        (pa.large_string(), pa.string(), pa.string()),
        (pa.timestamp("ns", "America/New_York"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.date32(), pa.timestamp("us"), pa.timestamp("us")),
        *[
            (nested(one), nested(other), nested(wider))
            for nested in (
                lambda kind: pa.struct({"a": kind}),
                lambda kind: pa.list_(pa.field("element", kind)),
                lambda kind: pa.map_(pa.string(), kind),
            )
            for one, other, wider in (
                (pa.int32(), pa.int64(), pa.int64()),
                (
                    pa.struct({"x": pa.int32()}),
                    pa.struct({"x": pa.float64(), "y": pa.string()}),
                    pa.struct({"x": pa.float64(), "y": pa.string()}),
                ),
            )
        ],
    ],
)
def test_values_widen_and_never_narrow(one: pa.DataType, other: pa.DataType, wider: pa.DataType) -> None:
    """The column takes the type that holds both, whichever came first."""
    for first, second in ((one, other), (other, one)):
        assert (
            evolved({"id": pa.int64(), "v": first}, {"id": pa.int64(), "v": second}).columns.field("v").type
            == wider
        )


@pytest.mark.parametrize(
    ("one", "other", "values"),
    [
        (pa.int32(), pa.int64(), (1, 2**40, 1)),
        (pa.int32(), pa.float64(), (2**31 - 1, 0.5, 2.0**31 - 1)),
        (
            pa.date32(),
            pa.timestamp("us"),
            (
                datetime.date(9999, 12, 31),
                datetime.datetime(1, 1, 1, 2),
                datetime.datetime(9999, 12, 31),
            ),
        ),
        (
            pa.list_(pa.struct({"x": pa.int32()})),
            pa.list_(pa.struct({"y": pa.string(), "x": pa.int64()})),
            ([{"x": 1}, None], [{"x": 2, "y": "z"}], [{"x": 1, "y": None}, None]),
        ),
        (
            pa.map_(pa.string(), pa.struct({"x": pa.int32()})),
            pa.map_(pa.string(), pa.struct({"x": pa.int32(), "y": pa.string()})),
            ([("k", {"x": 1})], [("k", {"x": 2, "y": "z"})], [("k", {"x": 1, "y": None})]),
        ),
    ],
)
def test_widened_rows_are_read_in_the_wider_type(
    one: pa.DataType, other: pa.DataType, values: tuple[Any, Any, Any]
) -> None:
    """Rows from before the widening come back as the new type, between rows from after it."""
    before, after, before_wider = values
    older = StateSchema.of(pa.schema({"id": pa.int64(), "v": one}), ["id"], 8)
    newer = StateSchema.of(pa.schema({"id": pa.int64(), "v": other}), ["id"], 8)

    def rows(ids: list[int], value: Any, kind: pa.DataType) -> pa.Table:
        return pa.table({"id": ids, "v": pa.array([value] * len(ids), kind)})

    logs = log_of(
        (older, encode_changes(older, rows([1, 2], before, one), np.array([0, 0]))),
        (newer, encode_changes(newer, rows([2], after, other), np.array([0]))),
        (older, encode_changes(older, rows([3], before, one), np.array([0]))),
    )
    found = {row["id"]: row["v"] for row in replayed(older.evolved_to(newer), logs)}
    assert (found[1], found[2], found[3]) == (before_wider, after, before_wider)
    widened = older.evolved_to(newer)
    logs = log_of((widened, encode_changes(widened, rows([1], before, one), np.array([0]))))
    assert replayed(widened, logs) == [{"id": 1, "v": before_wider}]


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ({"id": pa.int32()}, {"id": pa.int64()}, "key column 'id' is int32 and cannot become int64"),
        ({"id": pa.int32(), "v": pa.int64()}, {"id": pa.int32(), "v": pa.string()}, "column 'v' is int64"),
        ({"id": pa.int32(), "v": pa.int64()}, {"id": pa.int32(), "v": pa.float64()}, "column 'v' is int64"),
        *[
            ({"id": pa.int32(), "v": one}, {"id": pa.int32(), "v": other}, "column 'v' is .* cannot become")
            for one, other in (
                (pa.int32(), pa.decimal128(20, 2)),
                (pa.date32(), pa.timestamp("us", "UTC")),
                (pa.struct({"a": pa.int32()}), pa.struct({"A": pa.int32(), "b": pa.int32()})),
                (pa.map_(pa.int32(), pa.int32()), pa.map_(pa.int64(), pa.int32())),
            )
        ],
        *[
            (
                {"id": pa.int32(), "v": nested(pa.int32())},
                {"id": pa.int32(), "v": other},
                "cannot become .*: cast",
            )
            for nested in (
                lambda kind: pa.struct({"a": kind}),
                pa.list_,
                lambda kind: pa.map_(pa.string(), kind),
            )
            for other in (nested(pa.string()), pa.string(), nested(pa.struct({"a": pa.int32()})))
        ],
        (
            {"id": pa.int32(), "v": pa.decimal128(38, 0)},
            {"id": pa.int32(), "v": pa.decimal128(38, 1)},
            "column 'v'",
        ),
    ],
)
def test_other_changes_of_type_are_refused(
    one: dict[str, pa.DataType], other: dict[str, pa.DataType], reason: str
) -> None:
    """Key types are frozen, and a value is never rounded to fit."""
    with pytest.raises(InvalidInputError, match=reason) as caught:
        evolved(one, other)
    assert caught.value.kind == "schema_change"


def test_keys_and_key_groups_are_frozen() -> None:
    """Different key columns, or a different number of key groups, would be another state: refused."""
    columns = pa.schema({"a": pa.int32(), "b": pa.int32()})
    state = StateSchema.of(columns, ["a", "b"], 16)
    with pytest.raises(InvalidInputError, match="key columns"):
        state.evolved_to(StateSchema.of(columns, ["b", "a"], 16))
    with pytest.raises(InvalidInputError, match="max_parallelism is 16 and cannot become 32"):
        state.evolved_to(StateSchema.of(columns, ["a", "b"], 32))


def test_a_replay_takes_only_its_key_groups() -> None:
    """The same log gives each range its own rows, and all ranges together give all, once."""
    table = pa.table({"id": list(range(16)), "name": ["x"] * 16, "total": [0.0] * 16})
    logs = log_of((SCHEMA, encode_changes(SCHEMA, table, np.arange(16) % 8)))
    parts = [replayed(SCHEMA, logs, start, end) for start, end in ((0, 0), (1, 6), (7, 7))]
    assert [len(part) for part in parts] == [2, 12, 2]
    assert sorted(row["id"] for part in parts for row in part) == list(range(16))


def test_a_log_without_its_schema_is_refused() -> None:
    """Changes that no schema precedes are not keyed state."""
    replay = StateReplay(SCHEMA, [KeyGroupRange.of(0, 7)])
    batch = pa.record_batch([pa.array([0], pa.int32()), pa.array([b"x"])], ["key_group", "change"])
    with pytest.raises(FormatError, match="without their schema"):
        replay.add([batch])


@pytest.mark.parametrize(
    "damage",
    [
        lambda change: change[:-8],
        lambda change: change + bytes(8),
        lambda change: change + change,
        lambda change: b"",
    ],
)
def test_one_damaged_change_among_many_is_found(damage: Callable[[bytes], bytes]) -> None:
    """As when it is decoded alone."""
    table = pa.table({"id": list(range(8)), "name": ["x"] * 8, "total": [0.5] * 8})
    sound = encode_changes(SCHEMA, table, np.arange(8)).changes.to_pylist()
    damaged = [pa.py_buffer(each) for each in [*sound[:3], damage(sound[3]), *sound[4:]]]
    with pytest.raises(FormatError):
        decode_changes(SCHEMA, damaged)


def test_binary_views_are_read_as_well() -> None:
    """A reader may yield views instead of copies."""
    ((batch,),) = log_of((SCHEMA, encode_changes(SCHEMA, rows((1, "a", 1.0)), np.array([2]))))
    viewed = pa.record_batch(
        [batch.column(0), batch.column(1).cast(pa.binary_view())], ["key_group", "change"]
    )
    assert replayed(SCHEMA, [[viewed]]) == [{"id": 1, "name": "a", "total": 1.0}]


def test_a_newer_schema_version_is_refused() -> None:
    """The bytes of a later release are reported as such."""
    payload = SCHEMA.to_bytes().replace(b"dstl/state-schema 1 ", b"dstl/state-schema 3 ")
    with pytest.raises(FormatError) as caught:
        StateSchema.from_bytes(payload)
    assert caught.value.kind == "newer_version"


@pytest.mark.parametrize("count", [20, SPLIT_ROWS])
@examples(100)
@given(cut=st.integers(0, 10**6), flip=st.integers(0, 10**6), value=st.integers(0, 255))
def test_damaged_changes_never_do_worse_than_format_error(
    count: int, cut: int, flip: int, value: int
) -> None:
    """Truncated or altered bytes give rows or a FormatError: no other error, and no read out of bounds."""
    batch = rows(*[(n, f"name {n}", float(n)) for n in range(count)])
    whole = bytearray(encode_changes(SCHEMA, batch, np.zeros(count, np.int32)).changes[0].as_py())
    whole[flip % len(whole)] = value
    for damaged in (bytes(whole), bytes(whole[: cut % len(whole)]), bytes(whole) + b"more"):
        try:
            python_rows(decode_change(SCHEMA, damaged))
        except FormatError:
            continue


@pytest.mark.parametrize("shift", [0, 1])
def test_the_bytes_of_many_values_are_sorted_and_joined_again(shift: int) -> None:
    """In every type, at any place in a file, and in the change after one of few rows and before another."""
    table = many_rows(4 * SPLIT_ROWS)
    schema = StateSchema.of(table.schema, ["id"], 8)
    groups = np.repeat(np.arange(4), [5, SPLIT_ROWS, 3 * SPLIT_ROWS - 6, 1])
    encoded = encode_changes(schema, table, groups)
    moved = [pa.py_buffer(bytes(shift) + each).slice(shift) for each in encoded.changes.to_pylist()]
    found, counts = decode_changes(schema, moved)
    assert counts.tolist() == [5, SPLIT_ROWS, 3 * SPLIT_ROWS - 6, 1]
    assert found.drop_columns(found.column_names[-1:]).equals(table.cast(schema.columns))


def test_where_the_bytes_of_values_are() -> None:
    """From 1,024 rows on, the lowest byte of each value comes first, then the next of each."""
    schema = StateSchema.of(pa.schema({"id": pa.int32()}), ["id"], 8)
    ids = np.arange(SPLIT_ROWS, dtype="<i4") + 70_000
    for count, expected in (
        (SPLIT_ROWS - 1, ids[:-1].tobytes()),
        (SPLIT_ROWS, ids.view(np.uint8).reshape(-1, 4).T.tobytes()),
    ):
        batch = pa.table({"id": ids[:count]})
        change = encode_changes(schema, batch, np.zeros(count, np.int32)).changes[0].as_py()
        assert expected in change


@examples(100)
@given(payload=st.binary(max_size=300))
def test_foreign_bytes_are_format_errors(payload: bytes) -> None:
    """Anything other than a change is refused."""
    with pytest.raises(FormatError):
        decode_change(SCHEMA, payload)
    with pytest.raises(FormatError):
        StateSchema.from_bytes(payload)


@examples(100)
@given(position=st.integers(0, 10**6), value=st.integers(0, 255))
def test_damaged_schemas_are_format_errors(position: int, value: int) -> None:
    """A schema with one altered byte is refused, or is the same."""
    payload = bytearray(SCHEMA.to_bytes())
    payload[position % len(payload)] = value
    with contextlib.suppress(FormatError):
        assert StateSchema.from_bytes(bytes(payload)) == SCHEMA
