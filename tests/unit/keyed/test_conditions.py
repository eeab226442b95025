"""A condition as text: what passes is what passes in SQL, and what cannot be read is said."""

from __future__ import annotations

import math
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import Condition, replaced_scope
from dstl_dagster.keyed.read.conditions import parsed_filters
from dstl_dagster.state import StateSchema, key_group_of

COLUMNS = pa.schema(
    {
        "id": pa.int64(),
        "small": pa.int8(),
        "name": pa.string(),
        "day": pa.date32(),
        "seen": pa.timestamp("us", "UTC"),
        "price": pa.decimal128(10, 2),
        "share": pa.float64(),
        "gone": pa.bool_(),
        "odd `name`": pa.string(),
    }
)
SCHEMA = StateSchema(COLUMNS, ("id", "name"), 16)
ROWS = pa.Table.from_pylist(
    [
        {
            "id": number,
            "small": number % 3 or None,
            "name": [None, "a", "O'Hare", "b"][number % 4],
            "day": date(2026, 1, 1 + number),
            "seen": datetime(2026, 1, 1, number, tzinfo=UTC),
            "price": Decimal(number) / 2,
            "share": {16: math.nan, 17: -0.0}.get(number, number / 4 if number % 5 else None),
            "gone": [True, False, None][number % 3],
            "odd `name`": "x" if number % 2 else None,
        }
        for number in range(20)
    ],
    COLUMNS,
)


@pytest.mark.parametrize(
    "text",
    [
        "id = 5",
        "id == 5 OR id == 7",
        "name = 'O\\'Hare' AND id >= -3",
        "id < 3 OR name = 'a' AND id > 10 OR small IN (1)",
        "id NOT IN (1, 2, 3) and name <> 'a'",
        "small NOT IN (1)",
        "name != 'a'",
        "name IS NULL or small is not null and id > 12",
        "day BETWEEN '2026-01-03' AND DATE '2026-01-05' AND id != 3",
        "seen >= '2026-01-01 05:00:00Z'",
        "price = 2.5",
        "share > 1 AND share <= 2.25",
        *(f"share {sign} {value}" for sign in ("=", "!=", "<=", ">", ">=") for value in ("1", "'NaN'", "0")),
        "share < 'NaN'",
        "share > 'NaN' OR id = 3",
        "share IN (0, 1)",
        "share IN ('NaN', 1) AND share NOT IN (1, 2)",
        "share NOT IN ('NaN', 0)",
        "gone = TRUE",
        "gone = false",
        "`odd ``name``` = 'x'",
        "(id = 5 or name = 'a') and (share > 1 or id < 10)",
        'name = "a"',
    ],
)
def test_what_passes_passes_in_sql(text: str) -> None:
    """As DuckDB has it; a comparison with a null does not pass."""
    condition = pickle.loads(pickle.dumps(Condition.of(text, SCHEMA)))
    for_duckdb = text.replace("`odd ``name```", '"odd `name`"').replace("\\'", "''").replace('"a"', "'a'")
    # A table of its own: Arrow's is filtered by Arrow in DuckDB 1.4, and there NaN is no larger than 1.
    own = duckdb.connect().register("rows", ROWS).execute("CREATE TABLE own AS FROM rows")
    expected = own.execute(f"SELECT id FROM own WHERE {for_duckdb}").fetchall()
    assert expected or "> 'NaN'" in text
    assert ROWS.filter(condition.holds(ROWS)).column("id").to_pylist() == [row[0] for row in expected]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "condition '': expected a value at its end"),
        ("id", "a part of it is no comparison of a column with a literal"),
        ("id = ", "expected a value at its end"),
        ("id = 5 6", "not understood at '6'"),
        ("id = 5; DROP", "not understood at '; DROP'"),
        ("id IS 5", "expected NULL at '5'"),
        ("id IN ()", "no comparison"),
        ("5 = id", "no comparison"),
        ("id = small", "column 'id' is compared with what is no literal"),
        ("id = NULL", "column 'id' is compared with what is no literal, or with NULL"),
        ("NOT id = 5", "no comparison"),
        ("name = 'O''Hare'", r"two texts without a sign between them: escape a quote as \\'"),
        ("idd = 5", "names column 'idd', and there are id, small"),
        ("name = 5", "column 'name' is text: write '5', not 5"),
        ("id = 5.5", "'5.5' is no value of column 'id', which is int64"),
        ("small = 300", "'300' is no value of column 'small', which is int8"),
        ("seen = '2026-01-01 00:00:00'", "is no value of column 'seen'"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, says: str) -> None:
    """With the place, or with the literal that the column cannot have."""
    with pytest.raises(InvalidInputError, match=says):
        parsed_filters(text, COLUMNS)


def test_names_are_compared_without_case() -> None:
    """As Spark does, unless two columns differ in it alone."""
    assert parsed_filters("ID = 5", COLUMNS) == [[("id", "=", 5)]]
    both = pa.schema({"id": pa.int64(), "ID": pa.int64()})
    assert parsed_filters("ID = 5", both) == [[("ID", "=", 5)]]


def test_whole_keys_name_their_key_groups() -> None:
    """Each alternative with a value for each key column; any other condition may be met anywhere."""
    condition = Condition.of("id = 5 AND name = 'a' OR id IN (6) AND name = 'b'", SCHEMA)
    keys = pa.table({"id": pa.array([5, 6], pa.int64()), "name": ["a", "b"]})
    groups: list[Any] = sorted({int(group) for group in key_group_of(keys, SCHEMA)})
    assert condition.key_groups(SCHEMA) == tuple(KeyGroupRange.of(each, each) for each in groups)
    assert Condition.of("id = 5", SCHEMA).key_groups(SCHEMA) is None


def test_rows_are_replaced_by_their_keys() -> None:
    """All rows of a key are in a scope, or none."""
    assert replaced_scope(True, SCHEMA) is None
    assert str(replaced_scope("id = 5", SCHEMA)) == "the rows where id = 5"
    with pytest.raises(InvalidInputError, match="column 'price', and rows are replaced by their key columns"):
        replaced_scope("id = 5 AND price > 1", SCHEMA)
    with pytest.raises(InvalidInputError, match="name no deleted ones"):
        replaced_scope(True, SCHEMA, "gone")
