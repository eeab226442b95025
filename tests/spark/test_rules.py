"""Merge rules for rows in memory give what Spark gives: values, nulls and errors, of drawn expressions."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dstl_dagster.checkpoint import Batch
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.jobs import FrameMerge, merge_frame, write_frame
from dstl_dagster.spark import merge_state
from dstl_dagster.spark.dataframes import small_merge
from dstl_dagster.state.rules import Rule, declared_columns, evaluated_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

UTC = dt.UTC
SCHEMA = (
    "h SMALLINT, i INT, l BIGINT, d DOUBLE, m DECIMAL(10,2), w DECIMAL(20,4), s STRING, b BOOLEAN, y DATE, "
    "t TIMESTAMP, z TIMESTAMP_NTZ, a ARRAY<BIGINT>, r ARRAY<STRUCT<k: INT, v: STRING, t: TIMESTAMP>>, "
    "q STRUCT<k: INT, v: STRING, t: TIMESTAMP>"
)
COLUMNS = declared_columns(SCHEMA, "test")
NUMBERS = "hildmw"
BEGIN = dt.datetime(1970, 1, 1, tzinfo=UTC)
ROWS = 60
EDGES: dict[str, list[Any]] = {
    "h": [0, 1, -1, 7, 2**15 - 1, -(2**15)],
    "i": [0, 1, -1, 3, 2**31 - 1, -(2**31)],
    "l": [0, 1, -1, 5, 2**53 + 1, 2**63 - 1, -(2**63)],
    "d": [0.0, -0.0, 1.5, -2.5, 0.1, 1e300, math.nan, math.inf, -math.inf, 2.0**63, 2147483647.5, 5e-324],
    "m": [Decimal(each) for each in ("0.00", "0.01", "-1.50", "2.50", "99999999.99")],
    "w": [Decimal(each) for each in ("0.0000", "0.0050", "-0.1250", "1.0001", "9999999999999999.9999")],
    "s": ["", "a", "b", "ab", "é", "\U0001f600", "z\n"],
    "b": [True, False],
    "y": [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)],
    "t": [dt.datetime(1970, 1, 1, tzinfo=UTC), dt.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC)],
    "z": [dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 12, 0, 0, 1)],
    "a": [[], [1], [None], [1, None, -1], [7, 2**63 - 1, 7, 0, 1]],
    "r": [
        [],
        [None],
        [{"k": 1, "v": "a", "t": None}],
        [{"k": None, "v": None, "t": BEGIN}, {"k": 2, "v": "", "t": BEGIN}],
    ],
    "q": [{"k": 1, "v": "a", "t": BEGIN}, {"k": None, "v": "é", "t": None}],
}
CALM: dict[str, list[Any]] = {
    **EDGES,
    **{name: [0, 1, -1, 2, 7] for name in "hil"},
    "d": [0.0, -0.0, 1.5, -2.5, 0.1, math.nan, math.inf],
}
"""Numbers that hardly overflow, so that most rules have values."""

LITERALS = {
    "number": ["0", "1", "-1", "2", "3000000000", "1.5", "0.05", "-2.500", "1e1", "2.5D", "7L", "1S"],
    "s": ["''", "'a'", "\"b\"", "'é\\n'", "'it\\'s'"],
    "b": ["true", "false"],
    "y": ["DATE '2024-02-29'", "DATE '1969-12-31'"],
    "z": ["TIMESTAMP_NTZ '2024-02-29 12:00:00.000001'"],
    "t": [],
    "a": ["array()", "array(1L)", "array(NULL, 2L)"],
    "r": ["array()", "array(named_struct('k', 1, 'v', 'x', 't', NULL))"],
    "q": ["named_struct('k', NULL, 'v', 'x', 't', NULL)"],
}  # fmt: skip
NAMES = {
    "h": "SMALLINT", "i": "INT", "l": "BIGINT", "d": "DOUBLE", "m": "DECIMAL(10,2)", "w": "DECIMAL(20,4)",
    "s": "STRING", "b": "BOOLEAN", "y": "DATE", "t": "TIMESTAMP", "z": "TIMESTAMP_NTZ", "a": "ARRAY<BIGINT>",
    "r": "ARRAY<STRUCT<k: INT, v: STRING, t: TIMESTAMP>>", "q": "STRUCT<k: INT, v: STRING, t: TIMESTAMP>",
}  # fmt: skip

COLUMNS_OF = {f"{NAMES[name]})": COLUMNS.field(name).type for name in NAMES}


class Rules:
    """Draws expressions."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def draw(self, kind: str, depth: int = 3) -> str:
        """`kind`: a column's name, or `number`."""
        pick = self._random.choice
        column = pick(NUMBERS) if kind == "number" else kind
        if depth == 0 or self._random.random() < 0.15:
            literals = (
                LITERALS["number" if column in NUMBERS and kind == "number" else column]
                if (column not in NUMBERS or kind == "number")
                else []
            )
            if literals and self._random.random() < 0.4:
                return pick(literals)
            if self._random.random() < 0.05:
                return "NULL"
            return f"{pick(['old', 'new'])}.{column}"
        again = partial(self.draw, kind, depth - 1)
        condition = partial(self.draw, "b", depth - 1)
        common: list[Callable[[], str]] = [
            lambda: f"coalesce({again()}, {again()})",
            lambda: f"{pick(['greatest', 'least'])}({again()}, {again()}, {again()})",
            lambda: f"case when {condition()} then {again()} when {condition()} then {again()} end",
            lambda: f"CASE WHEN {condition()} THEN {again()} ELSE {again()} END",
            lambda: f"if({condition()}, {again()}, {again()})",
            lambda: f"nullif({again()}, {again()})",
            lambda: f"nvl2({again()}, {again()}, {again()})",
        ]
        own: list[Callable[[], str]] = []
        index = partial(pick, ["0", "1", "-1", "2", "-3", "new.i", "NULL"])
        if kind in "arq":
            common = [each for each in common if not any(word in (each()) for word in ("greatest", "nullif"))]
        if kind in ("a", "r"):
            one = partial(self.draw, "l" if kind == "a" else "q", depth - 1)
            own = [
                lambda: f"concat({again()}, {again()})",
                lambda: f"slice({again()}, {index()}, {index()})",
                lambda: f"array({one()}, {one()})",
                lambda: f"concat(coalesce({again()}, array()), array({one()}))",
            ]
        elif kind == "q":
            whole = partial(self.draw, "r", depth - 1)
            own = [
                lambda: f"element_at({whole()}, {index()})",
                lambda: f"({whole()})[{index()}]",
                lambda: (
                    f"named_struct('k', {pick(['old', 'new'])}.i, 'v', {self.draw('s', 0)}, 't', {again()}.T)"
                ),
            ]
        elif kind == "l":
            whole = partial(self.draw, "a", depth - 1)
            own = [lambda: f"element_at({whole()}, {index()})", lambda: f"({whole()})[{index()}]"]
        elif kind == "number":
            own = [
                lambda: f"({again()} {pick('+-*')} {again()})",
                lambda: f"{again()} {pick('+-*')} {again()}",
                lambda: f"(CAST({again()} AS DOUBLE) / CAST({again()} AS DOUBLE))",
                lambda: f"({again()} / {again()})",
                lambda: f"-({again()})",
                lambda: f"abs({again()})",
                lambda: f"cast({again()} as {NAMES[pick(NUMBERS)]})",
                lambda: f"length({self.draw('s', depth - 1)})",
                lambda: f"size({self.draw(pick('ar'), depth - 1)})",
                lambda: f"({self.draw('q', depth - 1)}).k",
            ]
        elif kind == "s":
            own = [
                lambda: f"concat({again()}, {again()})",
                lambda: f"({again()} || '-' || {again()})",
                lambda: f"concat({self.draw(pick('hilby'), 0)}, {again()})",
                lambda: f"CAST({self.draw(pick('hilby'), 0)} AS STRING)",
            ]
        elif kind == "b":
            other = pick(["number", "number", "s", "y", "t", "z", "b"])
            value = partial(self.draw, other, depth - 1)
            sign = pick(["=", "<>", "<", "<=", ">", ">=", "<=>", "!=", "=="])
            own = [
                lambda: f"({value()} {sign} {value()})",
                lambda: f"({value()} {pick(['', 'not '])}in ({value()}, {value()}))",
                lambda: f"({value()} {pick(['', 'NOT '])}BETWEEN {value()} AND {value()})",
                lambda: f"({value()} is {pick(['', 'not '])}null)",
                lambda: f"({again()} {pick(['and', 'or', 'AND', 'OR'])} {again()})",
                lambda: f"({again()} and {again()} or not {again()})",
                lambda: f"(not {again()})",
                lambda: f"({again()} is {pick(['', 'not '])}{pick(['true', 'false'])})",
                lambda: f"(old is {pick(['', 'not '])}null)",
                lambda: f"({value()} is distinct from {value()})",
                lambda: f"array_contains({self.draw('a', depth - 1)}, {self.draw('l', depth - 1)})",
            ]
        return pick(common + own * 2)()


def rows_of(source: random.Random, values: dict[str, list[Any]], count: int) -> pa.Table:
    columns = {
        name: [None if source.random() < 0.15 else source.choice(each) for _ in range(count)]
        for name, each in values.items()
    }
    return pa.table({name: pa.array(columns[name], COLUMNS.field(name).type) for name in COLUMNS.names})


def beside(spark: SparkSession, new: pa.Table, old: pa.Table, in_state: list[bool]) -> DataFrame:
    """As a merge has them; one partition, in order."""
    names = COLUMNS.names
    flat = pa.table(
        [*new.columns, *old.columns, pa.array(in_state)],
        [*(f"n_{name}" for name in names), *(f"o_{name}" for name in names), "in_state"],
    )
    sides = [f"struct({', '.join(f'{side}_{name} AS {name}' for name in names)})" for side in "no"]
    rows = spark.createDataFrame(flat).coalesce(1)
    return rows.selectExpr(f"{sides[0]} AS new", f"if(in_state, {sides[1]}, NULL) AS old").cache()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    return bool(one == other) and type(one) is type(other)


@pytest.mark.parametrize(
    "count", [40, pytest.param(1_000, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
@pytest.mark.parametrize("values", [CALM, EDGES], ids=["calm", "edges"])
def test_a_rule_means_the_same_as_in_spark(
    spark: SparkSession, count: int, values: dict[str, list[Any]]
) -> None:
    """Each is evaluated for many rows; where Spark refuses a value, so do we."""
    source, rules = random.Random(0), Rules(0)
    new, old = rows_of(source, values, ROWS), rows_of(source, values, ROWS)
    in_state = np.array([source.random() < 0.75 for _ in range(ROWS)])
    old = old.take(pa.array(np.arange(ROWS), mask=~in_state))
    frame = beside(spark, new, old, in_state.tolist())
    found: dict[str, pa.ChunkedArray] = {}
    failed, refused = [], 0
    for _ in range(count):
        kind = source.choice(["number", "number", "s", "b", "y", "t", "z", "a", "r", "q", "l"])
        column = source.choice(NUMBERS) if kind == "number" else kind
        text = rules.draw(kind)
        cast = f"CAST(({text}) AS {NAMES[column]})"
        try:
            (found[cast],) = evaluated_rules(
                [Rule(text, COLUMNS.field(column).type, "test")], old, new, in_state, 0
            )
        except InvalidInputError as error:
            if "Error: " in str(error):
                failed.append(cast)
            else:
                refused += 1
    assert len(found) > (0.35 if values is CALM else 0.18) * count, (len(found), len(failed), refused)
    different = [
        f"row {row} of {text}: {ours!r} is {theirs!r} in Spark; {new.slice(row, 1).to_pylist()}, "
        f"{old.slice(row, 1).to_pylist()}"
        for text, column in _by_spark(frame, [*found]).items()
        for row, (ours, theirs) in enumerate(zip(found[text].to_pylist(), column, strict=True))
        if not same(ours, theirs)
    ]
    different += [
        f"{text} fails, and does not in Spark"
        for text in failed[:8]
        if not any(isinstance(value, Exception) for value in _by_spark(frame, [text])[text])
    ]
    frame.unpersist()
    assert not different, "\n".join(different[:5])


def _by_spark(frame: DataFrame, texts: list[str]) -> dict[str, list[Any]]:
    """The values of each, or the error in the first row."""
    try:
        rows = frame.selectExpr(*[f"{text} AS c{place}" for place, text in enumerate(texts)]).toArrow()
    except PySparkException as error:
        if len(texts) == 1:
            said = RuntimeError(str(error).splitlines()[0])
            return {texts[0]: [said] * frame.count()}
        half = len(texts) // 2
        return _by_spark(frame, texts[:half]) | _by_spark(frame, texts[half:])
    return {
        text: column.cast(COLUMNS_OF[text.rpartition(" AS ")[2]]).to_pylist()
        for text, column in zip(texts, rows.columns, strict=True)
    }


UPDATE = {
    "i": "coalesce(old.i, 0) + 1",
    "l": "coalesce(old.l, 0) + new.i",
    "d": "greatest(old.d, new.d)",
    "m": "least(coalesce(old.m, 0) + new.m * 2, 50)",
    "s": "case when old is null then concat('new ', new.s) when new.b then old.s else new.s || '!' end",
    "b": "old.y < new.y or (new.b and old.b is not null)",
    "y": "least(old.y, new.y)",
    "t": "coalesce(new.t, old.t)",
    "a": "concat(coalesce(old.a, array()), array(new.l))",
    "r": (
        "CASE WHEN size(old.r) > 0 AND old.r[0].k = 1 THEN slice(concat(new.r, old.r), -3, 3) "
        "ELSE array(named_struct('k', new.q.k, 'v', new.s, 't', element_at(array(new.t, old.t), -1))) END"
    ),
}


NESTED = "ARRAY<STRUCT<x: DOUBLE, t: TIMESTAMP>>"


def nested_value(source: random.Random) -> list[dict[str, Any]] | None:
    one = {"x": source.choice([0.0, -0.0, math.nan, None]), "t": source.choice(EDGES["t"])}
    return source.choice([None, [], [one]])


@pytest.fixture
def merges_on_driver(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gets the operator of each merge that is done on the driver."""
    found: list[str] = []

    class Noted(FrameMerge):
        def written(self, rows: Any) -> Any:
            found.append(self.state.operator)
            return super().written(rows)

    monkeypatch.setattr(small_merge, "FrameMerge", Noted)
    return found


def test_each_plan_of_a_merge_writes_the_same(
    job: Job, monkeypatch: pytest.MonkeyPatch, merges_on_driver: list[str]
) -> None:
    """The same upserts, deletes and rows of dirty data, over several batches: in tasks, of Spark's rows on
    the driver, of more rows than the driver takes, and of rows in memory. Without ANSI only tasks merge.
    """
    source = random.Random(5)
    schema = f"k STRING, {SCHEMA}, n {NESTED}"
    rules = {**UPDATE, "n": "new.n"}
    for ansi, adaptive, most in ((True, True, 9), (True, False, 9), (False, True, 9), (True, True, 8)):
        keys = source.sample([*(f"k{n}" for n in range(12)), None], 9)
        nested = pa.array(
            [nested_value(source) for _ in keys], declared_columns(f"n {NESTED}", "test").field(0).type
        )
        rows = rows_of(source, CALM, 9).append_column("k", pa.array(keys, pa.string()))
        rows = rows.append_column("n", nested)
        batch = Batch.open(job.coordinator)
        job.spark.conf.set("spark.sql.ansi.enabled", ansi)
        job.spark.conf.set("spark.sql.adaptive.enabled", adaptive)
        monkeypatch.setattr(small_merge, "_MOST_ROWS", most)
        merges_on_driver.clear()
        how: dict[str, Any] = {
            "keys": ["k"],
            "update": rules,
            "schema": schema,
            "delete": "new.h = 7 or new.s = ''",
        }
        changes = job.spark.createDataFrame(rows).repartition(3)
        try:
            reports = [
                merge_state(changes, batch, operator="tasks", partitions=2, **how),
                merge_state(changes, batch, operator="driver", **how),
                merge_frame(rows, batch, operator="rows", **how),
            ]
        finally:
            job.spark.conf.unset("spark.sql.ansi.enabled")
            job.spark.conf.unset("spark.sql.adaptive.enabled")
        assert merges_on_driver == (["driver"] if ansi and most == 9 else [])
        assert len({(each.upserts, each.deletes, each.schema) for each in reports}) == 1
        for each in reports:
            batch.add(each)
        batch.complete()
        one, *others = (
            str(
                sorted(
                    job.coordinator.read_state(each.operator).to_arrow().to_pylist(),
                    key=lambda row: str(row["k"]),
                )
            )
            for each in reports
        )
        assert others == [one, one]
    assert one.count("'k'") > 5


def test_more_rows_than_expected_are_merged_in_tasks_from_then_on(
    job: Job, monkeypatch: pytest.MonkeyPatch, merges_on_driver: list[str]
) -> None:
    """A wrong guess costs one job, and a rule that fails is named by Spark."""
    how: dict[str, Any] = {"keys": ["k"], "schema": "k BIGINT, v BIGINT", "update": {"v": "new.v"}}
    rows = job.spark.range(4).selectExpr("id AS k", "id AS v")
    batch = Batch.open(job.coordinator)
    with monkeypatch.context() as fewer:
        fewer.setattr(small_merge, "_MOST_ROWS", 3)
        assert merge_state(rows, batch, operator="many", **how).upserts == 4
    assert merge_state(rows, batch, operator="many", **how).upserts == 4
    assert not merges_on_driver
    assert merge_state(rows, batch, operator="few", **how).upserts == 4
    assert merges_on_driver == ["few"]
    with pytest.raises(PySparkException, match="OVERFLOW"):
        merge_state(rows, batch, operator="few", **{**how, "update": {"v": "new.v + 9223372036854775807L"}})


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"update": {"l": "old.nope"}}, "there is no column old.nope"),
        ({"update": {"l": "rand()"}}, "repeated batch"),
        ({"update": {"l": "new.l +"}}, "update of column 'l'"),
        ({"update": {}}, "update is empty"),
        ({"update": {"k": "new.k"}}, "update names 'k'"),
        ({"update": {"l": "key_group"}}, "key_group"),
        ({"update": {"l": "length(c0)"}}, "c0"),
        ({"delete": "c1 = 1"}, "c1"),
        ({"delete": "refused IS NULL"}, "refused"),
        ({"delete": "uuid() = 'a'"}, "delete"),
        ({"delete": "new.nope"}, "delete"),
    ],
)
def test_a_wrong_rule_is_one_sentence(job: Job, how: dict[str, Any], reason: str) -> None:
    """By the operator, the column and the rule, of Spark's rows and of others alike."""
    rows = pa.table({"k": ["a"], "l": [1]})
    given = {"keys": ["k"], "schema": "k STRING, l BIGINT", "update": {"l": "new.l"}} | how
    batch = Batch.open(job.coordinator)
    for merge in (partial(merge_frame, rows), partial(merge_state, job.spark.createDataFrame(rows))):
        with pytest.raises(InvalidInputError) as caught:
            merge(batch, operator="op", **given)
        said = str(caught.value)
        assert said.startswith("state of operator 'op': ")
        assert said.isprintable()
        assert reason in said or "nope" in said


def test_only_a_rule_must_be_deterministic(job: Job) -> None:
    """Spark says which is, also of a column; the rows that came are what they are."""
    rows = job.spark.sql("SELECT uuid() AS k, rand() AS d")
    how: dict[str, Any] = {"operator": "op", "keys": ["k"], "schema": "k STRING, d DOUBLE"}
    batch = Batch.open(job.coordinator)
    with pytest.raises(InvalidInputError, match="update of column 'd': it gives another value each time"):
        merge_state(rows, batch, update={"d": F.col("new.d") + F.rand()}, **how)
    assert merge_state(rows, batch, update={"d": "new.d"}, **how).upserts == 1


def test_the_time_of_a_batch_may_be_used(job: Job) -> None:
    """One value in all rows."""
    batch = Batch.open(job.coordinator)
    rows = pa.table({"k": ["a", "b"]})
    how: dict[str, Any] = {
        "keys": ["k"],
        "schema": "k STRING, t TIMESTAMP",
        "update": {"t": "current_timestamp()"},
    }
    batch.add(merge_state(job.spark.createDataFrame(rows), batch, operator="spark", partitions=2, **how))
    batch.add(merge_frame(rows, batch, operator="rows", **how))
    batch.complete()
    for operator in ("spark", "rows"):
        times = job.coordinator.read_state(operator).to_arrow().column("t").to_pylist()
        assert times[0] is not None
        assert times[0] == times[1]


def test_ttl_of_rows_in_memory_is_as_of_sparks(job: Job) -> None:
    """What has expired is no old row, and a batch's time is written into each row."""
    from dstl_dagster.settings import StateTtlConfig

    ttl = StateTtlConfig.processing_time("seen", "1 hour")
    how: dict[str, Any] = {
        "keys": ["k"], "schema": "k STRING, n BIGINT", "update": {"n": "coalesce(old.n, 0) + 1"}, "ttl": ttl,
    }  # fmt: skip
    rows = pa.table({"k": ["a"]})
    for _ in range(2):
        batch = Batch.open(job.coordinator)
        reports = [
            merge_state(job.spark.createDataFrame(rows), batch, operator="spark", partitions=2, **how),
            merge_frame(rows, batch, operator="rows", **how),
        ]
        assert reports[0].ttl == reports[1].ttl
        for each in reports:
            batch.add(each)
        batch.complete()
    one, other = (job.coordinator.read_state(each).to_arrow().to_pylist() for each in ("spark", "rows"))
    assert one == other
    assert one[0]["n"] == 2


def test_rows_that_replace_others_are_written_by_their_values(job: Job) -> None:
    """After Spark has made the state: shorter keys, and whole numbers that came as fractions."""
    job.write_state(job.spark.sql("SELECT 1 AS k, 5L AS n, CAST(1 AS DECIMAL(10,2)) AS m"), keys=["k"])
    batch = Batch.open(job.coordinator)
    batch.add(write_frame(pa.table({"k": [2], "n": [7.0], "m": [3]}), batch, operator="op", keys=["k"]))
    batch.complete()
    assert sorted(map(tuple, job.read_state().collect())) == [
        (1, 5, Decimal("1.00")),
        (2, 7, Decimal("3.00")),
    ]
