"""The hash in numpy is Spark's own."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dstl_dagster.spark.dataframes.partitioning import key_group_of_columns
from dstl_dagster.state import StateSchema, key_group_of
from dstl_dagster.state.key_group_hash import hash_columns

pytestmark = pytest.mark.spark

ROWS = 1500
BYTE_EDGES = (0, -1, 127, 128, -128, -129, 255, 256, 32767, 32768, -32768, -32769)
"""The numbers where the shortest two's complement form grows by a byte."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _wholes(random_: random.Random, bits: int) -> int:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return random_.choice([low, high, 0, -1, 1, random_.randint(low, high), random_.randint(-9, 9)])


def _decimal(random_: random.Random, digits: int, scale: int) -> Decimal:
    size = 10 ** random_.randint(0, digits) - 1
    unscaled = random_.choice([size, -size, random_.randint(-size, size), *BYTE_EDGES])
    return Decimal((int(unscaled < 0), tuple(int(digit) for digit in str(abs(unscaled))), -scale))


def _text(random_: random.Random) -> str:
    alphabet = random_.choice(["ab", "aé", "日本語é", "😀\x00z"])
    return "".join(random_.choices(alphabet, k=random_.choice([0, 1, 2, 3, 4, 5, 7, 11, 300])))


def _columns(random_: random.Random) -> dict[str, pa.Array]:
    """Every key type, with nulls, empty and long texts, and the smallest and largest numbers."""
    instant = lambda: EPOCH + timedelta(microseconds=random_.randint(-(10**15), 10**15))  # noqa: E731 - a row of the table below
    makers: dict[str, tuple[pa.DataType, Any]] = {
        "flag": (pa.bool_(), lambda: random_.random() < 0.5),
        "byte": (pa.int8(), lambda: _wholes(random_, 8)),
        "short": (pa.int16(), lambda: _wholes(random_, 16)),
        "int": (pa.int32(), lambda: _wholes(random_, 32)),
        "long": (pa.int64(), lambda: _wholes(random_, 64)),
        "small": (pa.decimal128(9, 2), lambda: _decimal(random_, 9, 2)),
        "longest": (pa.decimal128(18, 0), lambda: _decimal(random_, 18, 0)),
        "wide": (pa.decimal128(19, 3), lambda: _decimal(random_, 19, 3)),
        "widest": (pa.decimal128(38, 10), lambda: _decimal(random_, 38, 10)),
        "text": (pa.string(), lambda: _text(random_)),
        "raw": (pa.binary(), lambda: random_.randbytes(random_.choice([0, 1, 2, 3, 4, 9, 70]))),
        "day": (pa.date32(), lambda: date(1970, 1, 1) + timedelta(days=random_.randint(-200_000, 200_000))),
        "instant": (pa.timestamp("us", "UTC"), instant),
        "wall": (pa.timestamp("us"), lambda: instant().replace(tzinfo=None)),
    }
    return {
        name: pa.array([None if random_.random() < 0.1 else make() for _ in range(ROWS)], kind)
        for name, (kind, make) in makers.items()
    }


def test_the_hash_is_sparks(spark: SparkSession) -> None:
    """For each key type, and for all of them in one key, on random rows; and so are key groups."""
    columns = _columns(random.Random(5))
    rows = spark.createDataFrame(pa.table(columns)).cache()
    each = [F.hash(name).alias(name) for name in columns]
    found = rows.select(*each, F.hash(*columns).alias("all")).toArrow()
    for name, column in columns.items():
        assert np.array_equal(hash_columns([column]), found.column(name).to_numpy()), name
    assert np.array_equal(hash_columns(list(columns.values())), found.column("all").to_numpy())
    table = pa.table(columns)
    schemas = [
        StateSchema.of(table.schema, [*columns], count, within)
        for count in (1, 7, 128)
        for within in ([], ["day"], ["text", "wide"])
    ]
    expressions = {name: f"`{name}`" for name in columns}
    groups = [
        F.expr(key_group_of_columns(expressions, schema)).alias(f"g{i}") for i, schema in enumerate(schemas)
    ]
    found = rows.select(*(group.alias(str(place)) for place, group in enumerate(groups))).toArrow()
    for column, schema in zip(found.columns, schemas, strict=True):
        assert np.array_equal(key_group_of(table, schema), column.to_numpy()), schema
