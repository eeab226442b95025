"""Which rows partitions have: exact values and times, in every type that a key column can have."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.state import ExactValues, PartitionRows, StateSchema, TimeSpans, key_group_of


def instant(*parts: int, zone: str = "UTC") -> int:
    return int(datetime(*parts, tzinfo=ZoneInfo(zone)).timestamp()) * 1_000_000


def held(axis: Any, values: list[Any], kind: pa.DataType) -> list[bool]:
    boxes = frozenset((index,) for index in range(len(axis)))
    found = PartitionRows({"p": axis}, boxes, "the partitions").holds(pa.table({"p": pa.array(values, kind)}))
    return list(found.to_pylist())


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["7", "8", None, "07", ""]),
        (pa.int64(), [7, 8, None, 70, -7]),
        (pa.int16(), [7, 8, None, 70, -7]),
        (pa.binary(), [b"7", b"8", None, b"", b"77"]),
    ],
)
def test_a_value_is_compared_in_the_type_of_its_column(kind: pa.DataType, values: list[Any]) -> None:
    """Null is no partition's; a partition whose name is no such value has no rows."""
    assert held(ExactValues(("7", "red")), values, kind) == [True, False, False, False, False]


DAYS = TimeSpans(
    (instant(2024, 1, 1), instant(2024, 1, 3)), (instant(2024, 1, 2), instant(2024, 1, 4)), "UTC", "%Y-%m-%d"
)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            pa.date32(),
            [date(2024, 1, 1), date(2024, 1, 2), date(2024, 1, 3), date(2024, 1, 4), date(2023, 12, 31)],
        ),
        (pa.string(), ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04", "2024-01-01 00:00"]),
        (
            pa.timestamp("us"),
            [
                datetime(2024, 1, 1),
                datetime(2024, 1, 2),
                datetime(2024, 1, 3, 23, 59, 59, 999999),
                datetime(2024, 1, 4),
                None,
            ],
        ),
        (
            pa.timestamp("us", "UTC"),
            [
                datetime(2024, 1, 1, tzinfo=UTC),
                datetime(2024, 1, 2, tzinfo=UTC),
                datetime(2024, 1, 3, 5, tzinfo=UTC),
                None,
                None,
            ],
        ),
    ],
)
def test_a_time_is_from_the_start_of_a_span_to_before_its_end(kind: pa.DataType, values: list[Any]) -> None:
    """Dates, times with a zone and without, and text in the format; what does not spell a time is in none."""
    assert held(DAYS, values, kind) == [True, False, True, False, False]


def test_a_number_spells_a_time_too() -> None:
    """As in a column of months."""
    march = TimeSpans((instant(2024, 3, 1),), (instant(2024, 4, 1),), "UTC", "%Y%m")
    assert held(march, [202403, 202404, 7], pa.int32()) == [True, False, False]


def test_what_has_no_zone_is_of_the_partitions() -> None:
    """In New York the day begins at five; of the hour that occurs twice, a clock's time is the first one."""
    zone = "America/New_York"
    hour = 3_600_000_000
    first = instant(2024, 11, 3, 1, zone=zone)
    twice = TimeSpans((first, first + hour), (first + hour, first + 2 * hour), zone, "%Y-%m-%d-%H:%M")
    only_second = TimeSpans((first + hour,), (first + 2 * hour,), zone, "%Y-%m-%d-%H:%M")
    clock = datetime(2024, 11, 3, 1, 30)
    assert held(twice, [clock], pa.timestamp("us")) == [True]
    assert held(only_second, [clock], pa.timestamp("us")) == [False]
    assert held(only_second, ["2024-11-03-01:00"], pa.string()) == [False]
    assert held(only_second, [datetime(2024, 11, 3, 6, 30, tzinfo=UTC)], pa.timestamp("us", "UTC")) == [True]


def test_several_axes_hold_the_pairs_that_are_wanted() -> None:
    """And not every combination; it travels to tasks."""
    colours = ExactValues(("red", "blue"))
    wanted = PartitionRows({"day": DAYS, "colour": colours}, frozenset({(0, 0), (1, 1)}), "two of them")
    rows = pa.table(
        {
            "colour": ["red", "blue", "red", "blue", "green"],
            "day": ["2024-01-01", "2024-01-01", "2024-01-03", "2024-01-03", "2024-01-03"],
        }
    )
    assert pickle.loads(pickle.dumps(wanted)).holds(rows).to_pylist() == [True, False, False, True, False]
    assert PartitionRows({"day": DAYS, "colour": colours}, frozenset(), "none").holds(rows).true_count == 0


def test_partitions_are_in_few_key_groups() -> None:
    """Those of each pair that is wanted; of the times of a day there may be any number."""
    columns = pa.schema({"day": pa.date32(), "colour": pa.string(), "n": pa.int64()})
    both = StateSchema.of(columns, columns.names, 1024, ["colour", "day"])
    wanted = PartitionRows(
        {"day": DAYS, "colour": ExactValues(("red", "blue"))}, frozenset({(0, 0), (1, 1)}), "two of them"
    )
    listed = [
        {"day": date(2024, 1, 1 + n % 5), "colour": ("red", "blue", "green")[n % 3], "n": n}
        for n in range(900)
    ]
    rows = pa.Table.from_pylist(listed, columns)
    for schema, is_exact in ((both, True), (replace(both, partition_columns=("day",)), False)):
        groups = {group for each in wanted.key_groups(schema) or () for group in each}
        needed = {*key_group_of(rows.filter(wanted.holds(rows)), schema).tolist()}
        assert groups == needed if is_exact else groups >= needed
    assert wanted.key_groups(replace(both, partition_columns=())) is None
    assert wanted.key_groups(replace(both, partition_columns=("n",))) is None
    times = StateSchema.of(pa.schema({"day": pa.timestamp("us")}), ["day"], 8, ["day"])
    assert PartitionRows({"day": DAYS}, frozenset({(0,)}), "a day").key_groups(times) is None


def test_a_column_that_has_no_times_is_named() -> None:
    with pytest.raises(
        InvalidInputError, match="column 'p': a partition of time cannot be read from a column of type bool"
    ):
        held(DAYS, [True], pa.bool_())
