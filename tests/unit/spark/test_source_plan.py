"""The plan of a read, from its options and filters, without Spark."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.spark.source.key_filters import key_groups_of_filters
from dstl_dagster.spark.source.options import SourceOptions
from dstl_dagster.state import StateSchema, key_group_of

SCHEMA = StateSchema.of(pa.schema({"a": pa.int64(), "b": pa.string(), "value": pa.int64()}), ["a", "b"], 128)
GIVEN = {"store": "file:///x", "job": "job", "operator": "op"}


def test_values_for_every_key_column_leave_their_key_groups() -> None:
    """The key group of each combination, by the state's own hash."""
    filters: list[Filter] = [In(("a",), (1, 2)), EqualTo(("b",), "x"), GreaterThan(("value",), 5)]
    keys = pa.table({"a": pa.array([1, 2]), "b": pa.array(["x", "x"])})
    expected = sorted(set(key_group_of(keys, SCHEMA).tolist()))
    assert key_groups_of_filters(SCHEMA, filters) == tuple(KeyGroupRange.of(g, g) for g in expected)


@pytest.mark.parametrize(
    "filters",
    [
        [EqualTo(("a",), 1)],
        [EqualTo(("a",), 1), GreaterThan(("b",), "x")],
        [EqualTo(("a",), 1), EqualTo(("b", "c"), "x")],
        [EqualTo(("a",), "no number"), EqualTo(("b",), "x")],
        [In(("a",), tuple(range(2000))), EqualTo(("b",), "x")],
        [EqualTo(("a",), 1), EqualTo(("b",), "K\ufffdln")],
    ],
)
def test_what_does_not_name_the_key_leaves_every_group(filters: list[Filter]) -> None:
    """A part of the key, another comparison, a nested column, another type, many keys, lost bytes."""
    assert key_groups_of_filters(SCHEMA, filters) is None


def test_an_instant_leaves_every_group() -> None:
    """Its Python value is in the time zone of the process that created it."""
    schema = StateSchema.of(pa.schema({"at": pa.timestamp("us", "UTC")}), ["at"], 128)
    assert key_groups_of_filters(schema, [EqualTo(("at",), datetime.datetime(2013, 1, 1))]) is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"table": "rows"}, "one of state, changes, checkpoints"),
        ({"operater": "x"}, "does not know option 'operater' for reading state"),
        ({"table": "changes", "checkpoint": "1"}, "for reading changes"),
        ({"operator": ""}, "needs option operator"),
        ({"checkpoint": "0"}, "checkpoint"),
        ({"key_groups": "0-x"}, "not '0-x'"),
        ({"key_groups": "5-1"}, "not '5-1'"),
        ({"key_groups": "0-5,3-8"}, "names key group 3 twice"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], reason: str) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidInputError, match=reason):
        SourceOptions.of({**GIVEN, **options})


def test_options_of_a_read() -> None:
    """Ranges in any order, one number among them; the table of checkpoints has no operator."""
    found = SourceOptions.of({**GIVEN, "key_groups": "20,0-15", "columns": "a, b"})
    assert found.key_groups == (KeyGroupRange.of(0, 15), KeyGroupRange.of(20, 20))
    assert found.columns == ("a", "b")
    assert SourceOptions.of({"store": "x", "job": "y", "table": "checkpoints"}).operator == ""
