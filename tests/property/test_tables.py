"""Random tables through keyed state, compared bit for bit with the same history held as plain Arrow tables.

Random columns (every stored type, nested, of any name) and values (NaN, both zeros, nulls, text that is not
UTF-8, extremes, no rows), written in steps that add, leave out and widen columns, upsert and delete, with
bases in between, and read in any number of ranges. Dropped and renamed columns: `test_table_columns`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dstl_dagster.checkpoint import CheckpointCoordinator, materialize
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import ranges_of_tasks
from dstl_dagster.keyed import KeyedState, write_rows
from dstl_dagster.state import StateSchema, key_group_of, text_as_bytes
from dstl_dagster.storage import MemoryObjectStore
from tests.profiles import examples

Type = pa.DataType
Row = dict[str, Any]
MAX_PARALLELISM = 11

WHOLE = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
INSTANTS = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
DECIMALS = st.builds(lambda p, s: pa.decimal128(p, min(p, s)), st.integers(1, 38), st.integers(0, 38))
KEY_TYPES = st.one_of(
    st.sampled_from([pa.bool_(), *WHOLE, pa.string(), pa.binary(), pa.date32(), *INSTANTS]), DECIMALS
)
PLAIN_TYPES = st.one_of(
    KEY_TYPES, st.sampled_from([pa.float32(), pa.float64(), pa.time64("us"), pa.duration("us")])
)
NAMES = st.one_of(
    st.sampled_from(
        [
            "a",
            "b",
            "a.b",
            ".a",
            "[0]",
            "`",
            " ",
            "",
            "count_all",
            "before",
            "after",
            "key_group",
            "deleted",
            "\u00e9",
            "k0",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4),
)
distinct_names = st.lists(NAMES, min_size=2, max_size=6, unique_by=str.lower)


def nested(inner: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    fields = st.lists(st.tuples(NAMES, inner), max_size=3, unique_by=lambda field: field[0])
    return st.one_of(
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        st.tuples(KEY_TYPES, inner).map(lambda kinds: pa.map_(kinds[0], pa.field("value", kinds[1]))),
        fields.map(pa.struct),
    )


TYPES = st.recursive(PLAIN_TYPES, nested, max_leaves=4)


def raw_values(kind: Type) -> st.SearchStrategy[Any]:
    """Values of a type in its `layout`: numbers for time, bytes for text."""
    if pa.types.is_time64(kind):
        return st.one_of(st.sampled_from([0, 86_400_000_000 - 1]), st.integers(0, 3))
    if not pa.types.is_nested(kind):
        kind = layout(kind)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if kind in WHOLE:
        bits = WHOLE[kind]
        return st.one_of(st.sampled_from([0, -1, 2**bits - 1, -(2**bits)]), st.integers(-3, 3))
    if pa.types.is_floating(kind):
        width = 32 if kind == pa.float32() else 64
        return st.one_of(st.sampled_from([math.nan, -0.0, 0.0, math.inf, -math.inf]), st.floats(width=width))
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        whole = st.one_of(st.sampled_from([0, most, -most]), st.integers(-most, most))
        return whole.map(lambda digits: _decimal(digits, kind.scale))
    if pa.types.is_binary(kind):
        return st.one_of(
            st.sampled_from([b"", b"\xff", b"\xed\xa0\x80", b"\0", b"ok"]), st.binary(max_size=9)
        )
    if pa.types.is_list(kind):
        return st.lists(values(kind.value_type), max_size=3)
    if pa.types.is_map(kind):
        return st.lists(st.tuples(raw_values(kind.key_type), values(kind.item_type)), max_size=3)
    if pa.types.is_struct(kind):
        return st.tuples(*(values(field.type) for field in kind.fields)).map(
            lambda each: {field.name: value for field, value in zip(kind.fields, each, strict=True)}
        )
    raise AssertionError(kind)


def _decimal(digits: int, scale: int) -> Any:
    import decimal

    return decimal.Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -scale))


def values(kind: Type) -> st.SearchStrategy[Any]:
    return st.none() | raw_values(kind)


def layout(kind: Type) -> Type:
    """The type with the same bytes whose values Python can represent: binary for text, numbers for time."""
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(layout(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(layout(kind.key_type), kind.item_field.with_type(layout(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(layout(field.type)) for field in kind.fields])
    return text_as_bytes(kind)


def column(rows: list[Any], kind: Type) -> pa.Array:
    return pa.array(rows, layout(kind)).view(kind)


def plain(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Rows of values that are equal only if their bits are."""
    columns = [
        [_bits(value, field.type) for value in each.combine_chunks().view(layout(field.type)).to_pylist()]
        for field, each in zip(rows.schema, rows.columns, strict=True)
    ]
    return list(zip(*columns, strict=True))


def _bits(value: Any, kind: Type) -> Any:
    if value is None:
        return None
    if pa.types.is_floating(kind):
        return (np.float32 if kind == pa.float32() else np.float64)(value).tobytes()
    if pa.types.is_list(kind):
        return tuple(_bits(each, kind.value_type) for each in value)
    if pa.types.is_map(kind):
        return tuple((_bits(key, kind.key_type), _bits(item, kind.item_type)) for key, item in value)
    if pa.types.is_struct(kind):
        return tuple((field.name, _bits(value[field.name], field.type)) for field in kind.fields)
    return value


@dataclass(frozen=True)
class Step:
    """One checkpoint: its columns, its rows, which of them are deletes, and how they are written."""

    columns: pa.Schema
    rows: pa.Table
    deleted: list[bool]
    partitions: int
    fold: bool


def wider(kind: Type) -> st.SearchStrategy[Type]:
    """The type itself, or one that it may be widened to."""
    if kind in WHOLE:
        return st.sampled_from([each for each in WHOLE if WHOLE[each] >= WHOLE[kind]])
    if kind == pa.float32():
        return st.sampled_from([pa.float32(), pa.float64()])
    if pa.types.is_decimal(kind):
        return st.integers(kind.precision, 38).map(lambda precision: pa.decimal128(precision, kind.scale))
    return st.just(kind)


@st.composite
def histories(draw: st.DrawFn) -> tuple[tuple[str, ...], list[Step]]:
    names = draw(distinct_names)
    keys = tuple(names[: draw(st.integers(1, min(2, len(names))))])
    kinds: dict[str, Type] = {name: draw(KEY_TYPES if name in keys else TYPES) for name in names}
    known_keys = draw(st.lists(st.tuples(*(values(kinds[name]) for name in keys)), min_size=1, max_size=6))
    steps = []
    for _ in range(draw(st.integers(1, 4))):
        brought = [*keys, *(name for name in names if name not in keys and draw(st.booleans()))]
        for name in brought[len(keys) :]:
            kinds[name] = draw(wider(kinds[name]))
        order = draw(st.permutations(brought))
        columns = pa.schema([pa.field(name, kinds[name]) for name in order])
        chosen = draw(st.lists(st.sampled_from(known_keys), max_size=6, unique_by=repr))
        rows: dict[str, list[Any]] = {
            name: [key[keys.index(name)] for key in chosen]
            if name in keys
            else [draw(values(kinds[name])) for _ in chosen]
            for name in order
        }
        table = pa.table([column(rows[name], kinds[name]) for name in order], schema=columns)
        deleted = [draw(st.booleans()) for _ in chosen]
        steps.append(
            Step(columns, table, deleted, draw(st.integers(1, MAX_PARALLELISM)), draw(st.booleans()))
        )
    return keys, steps


class Oracle:
    """The history as plain Arrow, without the engine's code: a table of one row per key."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.keys = keys
        self.rows: dict[tuple[Any, ...], pa.Table] = {}

    def apply(self, step: Step) -> None:
        found = plain(step.rows.select(list(self.keys)))
        for place, (key, deleted) in enumerate(zip(found, step.deleted, strict=True)):
            self.rows.pop(key, None)
            if not deleted:
                self.rows[key] = step.rows.slice(place, 1)

    def as_table(self, schema: pa.Schema) -> pa.Table:
        made = [
            pa.table(
                [
                    row.column(f.name).cast(f.type) if f.name in row.column_names else pa.nulls(1, f.type)
                    for f in schema
                ],
                schema=schema,
            )
            for row in self.rows.values()
        ]
        return pa.concat_tables([schema.empty_table(), *made])


@examples(30, suppress_health_check=list(HealthCheck))
@given(history=histories(), readers=st.integers(1, MAX_PARALLELISM))
def test_tables_are_read_back_bit_for_bit(history: tuple[tuple[str, ...], list[Step]], readers: int) -> None:
    """At every checkpoint, over logs and bases, with all columns of the history."""
    keys, steps = history
    coordinator = CheckpointCoordinator("job", MemoryObjectStore(), owner="test")
    oracle = Oracle(keys)
    schema: StateSchema | None = None
    for step in steps:
        own = StateSchema.of(step.columns, keys, MAX_PARALLELISM)
        schema = own if schema is None else schema.evolved_to(own)
        attempt = coordinator.trigger()
        flags = pa.array(step.deleted, pa.bool_())
        report = write_rows(
            step.rows,
            attempt,
            coordinator.store,
            operator="op",
            schema=schema,
            deleted=flags,
            partitions=step.partitions,
        )
        coordinator.record(attempt, [report])
        coordinator.confirm(attempt)
        oracle.apply(step)
        shown = schema
        if step.fold:
            materialize(coordinator, force=True)
        latest = coordinator.latest()
        assert latest is not None
        state = KeyedState.of(coordinator.store, latest.manifest, "op")
        assert state is not None
        assert state.schema.columns == shown.columns
        found = [shown.columns.empty_table()]
        for each in ranges_of_tasks(readers, MAX_PARALLELISM):
            for table in state.tables([each]):
                groups = key_group_of(table, shown)
                assert ((groups >= each.start_key_group) & (groups <= each.end_key_group)).all()
                found.append(table)
        wanted = oracle.as_table(shown.columns)
        assert sorted(plain(pa.concat_tables(found)), key=repr) == sorted(plain(wanted), key=repr)


@examples(20, suppress_health_check=list(HealthCheck))
@given(history=histories())
def test_a_repeated_key_of_any_table_is_refused(history: tuple[tuple[str, ...], list[Step]]) -> None:
    """Whatever its name and value are."""
    keys, steps = history
    rows = steps[0].rows.slice(0, 1)
    if not rows.num_rows:
        return
    coordinator = CheckpointCoordinator("job", MemoryObjectStore(), owner="test")
    schema = StateSchema.of(steps[0].columns, keys, MAX_PARALLELISM)
    with pytest.raises(InvalidInputError) as caught:
        write_rows(
            pa.concat_tables([rows, rows]),
            coordinator.trigger(),
            coordinator.store,
            operator="op",
            schema=schema,
        )
    assert caught.value.kind == "duplicate_key"
