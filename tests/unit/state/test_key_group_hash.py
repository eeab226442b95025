"""Keys to key groups, compared with recorded answers of Spark 4."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.state import StateSchema, key_group_of
from dstl_dagster.state import key_group_hash as key_group_hash_module
from dstl_dagster.state.key_group_hash import hash_columns

WIDE = pa.decimal128(38, 0)
SPARKS: list[tuple[pa.DataType, Any, int]] = [
    (pa.bool_(), True, -559580957),
    (pa.bool_(), False, 933211791),
    (pa.int8(), -128, 1110053733),
    (pa.int16(), -5, 1369497261),
    (pa.int32(), 5, 1023896466),
    (pa.int32(), -(2**31), 723455942),
    (pa.int32(), None, 42),
    (pa.int64(), 5, 1607884268),
    (pa.int64(), -(2**63), -853646085),
    (pa.decimal128(9, 2), Decimal("1.25"), 1910520950),
    (pa.decimal128(18, 0), Decimal(-123456789012345678), 1466772144),
    (WIDE, Decimal(0), -783713497),
    (WIDE, Decimal(-1), 1398487324),
    (WIDE, Decimal(128), -544401882),
    (WIDE, Decimal(-129), -771458971),
    (WIDE, Decimal("-" + "9" * 38), 1400911110),
    (pa.string(), "", 142593372),
    (pa.string(), "a", 1485273170),
    (pa.string(), "ab", -97053317),
    (pa.string(), "abc", 1322437556),
    (pa.string(), "abcd", -396302900),
    (pa.string(), "abcde", 814637928),
    (pa.string(), "é", 2119106806),
    (pa.string(), "日本語", -1143049834),
    (pa.string(), "N102-" * 41, -1580058100),
    (pa.binary(), b"\x80\xff\x00", -1502622096),
    (pa.date32(), date(1969, 12, 31), -1604776387),
    (pa.date32(), date(2024, 2, 29), 653915859),
    (pa.timestamp("us", "UTC"), datetime(2024, 2, 29, 12, 34, 56, 789012, UTC), -1367554535),
    (pa.timestamp("us"), datetime(1969, 12, 31, 23, 59, 59, 999999), -939490007),
]


def _wrong() -> list[str]:
    return [
        f"{kind} {value}"
        for kind, value, spark in SPARKS
        if hash_columns([pa.array([value], kind)])[0] != spark
    ]


def test_each_type_has_sparks_hash() -> None:
    """A value of each type and each tail length, and the smallest and largest numbers."""
    assert _wrong() == []


def test_unsigned_tails_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: unsigned tail bytes show in non-ASCII text."""
    unsigned = lambda self, kind: np.ndarray.view(self, np.uint8 if kind is np.int8 else kind)  # noqa: E731

    class Unsigned(np.ndarray):  # type: ignore[type-arg] # a stand-in of the test
        view = unsigned

    right = key_group_hash_module._hash_texts
    monkeypatch.setattr(
        key_group_hash_module,
        "_hash_texts",
        lambda payload, *rest: right(np.asarray(payload).view(Unsigned), *rest),
    )
    assert {"string é", "binary b'\\x80\\xff\\x00'"} <= set(_wrong())
    assert "string abc" not in _wrong()


def test_columns_are_folded_in_order_and_null_changes_nothing() -> None:
    """Each hash is the seed of the next; adjacent rows do not influence each other."""
    texts = pa.array(["N102", None, "N102"])
    numbers = pa.array([7, 7, None], pa.int64())
    assert hash_columns([texts, numbers]).tolist() == [169248569, 1293116811, 2072620565]


def test_rows_of_any_slice_have_their_own_hash() -> None:
    """An array that starts in the middle of its buffers is read from there."""
    for kind, value, spark in SPARKS:
        padded = pa.array([value, None, value, value, None], kind)
        assert hash_columns([padded.slice(1, 3)]).tolist() == [42, spark, spark], kind


def test_key_groups_are_the_remainder_of_the_floor() -> None:
    """A negative hash gives a group of 0 or more, and keys are cast to their frozen type first."""
    schema = StateSchema.of(pa.schema({"value": pa.int64(), "tail": pa.string()}), ["tail"], 128)
    rows = pa.table({"tail": pa.array(["ab", None], pa.large_string()).dictionary_encode()})
    assert key_group_of(rows, schema).tolist() == [-97053317 % 128, 42]
    assert key_group_of(rows.slice(0, 0), schema).tolist() == []


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (pa.table({"other": [1]}), "key column 'id' is missing"),
        (pa.table({"id": ["x"]}), "key 'id' does not fit its type int64"),
    ],
)
def test_a_wrong_key_is_refused(rows: pa.Table, match: str) -> None:
    """A key column that is missing, or does not fit, is named."""
    with pytest.raises(InvalidInputError, match=match):
        key_group_of(rows, StateSchema.of(pa.schema({"id": pa.int64()}), ["id"]))
