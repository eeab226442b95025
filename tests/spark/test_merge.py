"""Keyed updates by DataFrame operations, and micro-batches that become one checkpoint each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dstl_dagster.checkpoint import Batch
from dstl_dagster.errors import ConflictError, InvalidInputError
from dstl_dagster.spark import checkpointed_batches, merge_state
from dstl_dagster.spark.batch import CheckpointBatch
from dstl_dagster.spark.streaming.micro_batches import POSITION

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

SCHEMA = "tail STRING, flights BIGINT, delay DOUBLE, note STRING"
UPDATE = {
    "flights": "coalesce(old.flights, 0) + new.flights",
    "delay": "greatest(old.delay, new.delay)",
}


def merge(job: Job, rows: list[tuple[Any, ...]], **how: Any) -> tuple[int, int]:
    """One checkpoint; returns what was written: (upserts, deletes)."""
    df = job.spark.createDataFrame(rows, "tail STRING, flights INT, delay DOUBLE, gone BOOLEAN")
    update = UPDATE | {"delay": F.greatest(F.col("old.delay"), F.col("new.delay"))}
    given: dict[str, Any] = {"schema": SCHEMA, "update": update, "delete": "new.gone", "keys": ["tail"]} | how
    done = job.checkpoint(lambda attempt: ([merge_state(df, attempt, operator="op", **given)], []))
    report = done.manifest.operators["op"].report
    return report.upserts, report.deletes


def state(job: Job, **how: Any) -> dict[Any, tuple[Any, ...]]:
    return {row[0]: tuple(row[1:]) for row in job.read_state(**how).collect()}


def test_merges_against_a_dictionary(job: Job) -> None:
    """Inserts, updates and deletes with null keys; only rows whose value changes are written."""
    random.seed(11)
    model: dict[str | None, tuple[int, float]] = {}
    for size, partitions in ((40, 3), (12, 2), (50, 1)):
        rows, written, deleted = [], 0, 0
        for tail in random.sample([*(f"N{n}" for n in range(60)), None], size):
            flights, delay, gone = random.choice([0, 1, 2]), random.choice([1.0, 5.0]), random.random() < 0.2
            rows.append((tail, flights, delay, gone))
            old = model.get(tail)
            if gone:
                deleted += old is not None
                model.pop(tail, None)
                continue
            merged = (flights + (old[0] if old else 0), max(delay, old[1] if old else delay))
            written += merged != old
            model[tail] = merged
        assert merge(job, rows, partitions=partitions, max_parallelism=16) == (written, deleted)
        assert state(job) == {tail: (*values, None) for tail, values in model.items()}


def test_columns_that_no_expression_names_stay(job: Job) -> None:
    """Also one that a later schema does not list; a new one begins as null, a wider one is widened."""
    df = job.spark.sql("SELECT 'a' AS tail, 1L AS flights, 1.5D AS delay, 'keep' AS note")
    job.write_state(df, keys=["tail"])
    merge(job, [("a", 2, 0.5, False)], schema="tail STRING, flights BIGINT, delay DOUBLE, extra INT")
    assert job.read_state().collect()[0].asDict() == {
        "tail": "a", "flights": 3, "delay": 1.5, "extra": None, "note": "keep",
    }  # fmt: skip


@pytest.mark.parametrize("of_columns", [False, True])
def test_no_setting_of_the_session_changes_a_value(job: Job, of_columns: bool) -> None:
    """Without ANSI Spark casts a number that is too long to another one, and other text to null."""
    how: dict[str, Any] = {"schema": "tail STRING, n INT, a ARRAY<INT>", "delete": None}
    job.spark.sql("SET spark.sql.ansi.enabled=FALSE")
    try:
        for rule in ("3000000000L * new.flights", "concat('1', new.tail)"):
            update = {"n": F.expr(rule) if of_columns else f"{rule} -- of each"}
            with pytest.raises(PySparkException, match="update of column 'n': INT does not hold its value"):
                merge(job, [("x", 1, 1.0, False)], update=update, **how)
        with pytest.raises(InvalidInputError, match="update of column 'a': it is list<element: int64>"):
            merge(job, [("x", 1, 1.0, False)], update={"a": "array(3000000000L)"}, **how)
        update = {"n": "'7'", "a": "coalesce(old.a, array(CAST(new.flights AS SMALLINT)))"}
        assert merge(job, [("x", 1, 1.0, False)], update=update, **how) == (1, 0)
    finally:
        job.spark.conf.unset("spark.sql.ansi.enabled")
    assert state(job) == {"x": (7, [1])}


def test_a_key_twice_is_refused_even_if_it_changes_nothing(job: Job) -> None:
    """The error names it, whatever the expressions make of the two rows."""
    merge(job, [("a", 1, 1.0, False)])
    attempt = job.coordinator.trigger()
    df = job.spark.createDataFrame(
        [("a", 0, 1.0, False)] * 2, "tail STRING, flights INT, delay DOUBLE, g BOOLEAN"
    )
    with pytest.raises(InvalidInputError, match=r"key \(tail='a'\) occurs 2 times"):
        merge_state(df, attempt, operator="op", keys=["tail"], schema=SCHEMA, update=UPDATE)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"update": {"tail": "new.tail"}}, "update names 'tail'"),
        ({"update": {"nope": "1"}}, "update names 'nope'"),
        ({"keys": ["nope"]}, "nope"),
        ({"schema": ["tail"]}, "the schema is a builtins.list, not columns such as"),
        ({"schema": "tail STRING, flights STRING, delay DOUBLE"}, "column 'flights' is int64"),
        ({"schema": "tail STRING, flights BIGINT, delay INTERVAL YEAR"}, "column 'delay' has type interval"),
        ({"schema": "tail STRIN, flights BIGINT"}, "the schema 'tail STRIN, .* is not columns .*STRIN"),
    ],
)
def test_a_wrong_merge_is_refused_before_anything_runs(job: Job, how: dict[str, Any], reason: str) -> None:
    """By name, when the plan is made."""
    job.write_state(job.spark.sql("SELECT 'a' AS tail, 1L AS flights, 1D AS delay"), keys=["tail"])
    with pytest.raises(InvalidInputError, match=reason):
        merge(job, [("a", 1, 1.0, False)], **how)


@pytest.mark.parametrize("partitions", [None, 1])
@pytest.mark.parametrize(
    ("sql", "key", "reason"),
    [
        ("1.5D AS k, 1 AS v", "INT", "column 'k' of type double cannot be a key"),
        ("1.5BD AS k, 1 AS v", "INT", r"key column 'k' is int32 and cannot become decimal128\(2, 1\)"),
        ("'7' AS k, 1 AS v", "INT", "key column 'k' is int32 and cannot become string"),
        ("1L AS k, 1 AS v", "INT", "key column 'k' is int32 and cannot become int64"),
        ("TIMESTAMP'2020-01-01 23:00:00' AS k, 1 AS v", "DATE", "key column 'k' is date32"),
        ("1 AS k, 2 AS v, 3 AS v", "INT", "columns 'v' and 'v' have the same name"),
        ("1 AS k, 2 AS K, 3 AS v", "INT", "columns 'k' and 'K' have the same name"),
    ],
)
def test_changes_that_are_no_rows_of_the_state_are_refused(
    job: Job, sql: str, key: str, reason: str, partitions: int | None
) -> None:
    """A key that a cast would change is another key; on the driver and in tasks."""
    batch = Batch.open(job.coordinator)
    how: dict[str, Any] = {"operator": "op", "keys": ["k"], "schema": f"k {key}, v INT", "update": {"v": "1"}}
    with pytest.raises(InvalidInputError, match=reason):
        merge_state(job.spark.sql(f"SELECT {sql}"), batch, partitions=partitions, **how)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("sum(new.flights) OVER (PARTITION BY new.delay)", "it looks at other rows: compute it before"),
        ("rand() + sum(new.flights) OVER ()", "it looks at other rows: compute it before"),
        ("sum(new.flights)", "MISSING_GROUP_BY"),
        ("explode(array(new.flights))", "UNSUPPORTED_GENERATOR"),
    ],
)
def test_a_rule_is_of_one_row(job: Job, rule: Any, reason: str) -> None:
    """Another one is refused by name: rows with others leave their key groups, or change in number."""
    where = "state of operator 'op': update of column 'flights': "
    with pytest.raises(InvalidInputError, match=f"{where}.*{reason}"):
        merge(job, [("a", 1, 1.0, False)], partitions=2, update=UPDATE | {"flights": rule})
    with pytest.raises(InvalidInputError, match="'op': delete: it looks at other rows"):
        merge(job, [("a", 1, 1.0, False)], delete="count(*) OVER () > 1")


P = "struct<a: int, b: struct<c: int, d: int>>"
SWAPPED = "named_struct('b', named_struct('d', 4, 'c', 3), 'a', 1)"


@pytest.mark.parametrize("partitions", [None, 1])
@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (P, SWAPPED, (1, (3, 4))),
        (P, "named_struct('b', named_struct('c', 3S))", (None, (3, None))),
        (f"ARRAY<{P}>", f"array({SWAPPED}, NULL)", [(1, (3, 4)), None]),
        (f"MAP<STRING, {P}>", f"map('x', {SWAPPED})", {"x": (1, (3, 4))}),
        (P, "named_struct('A', 1L, 'b', NULL)", (1, None)),
        (P, "named_struct('a', 1, 'x', 5)", "it is .*x: int32.*, and the column is .*: name its fields as"),
        (P, "named_struct('b', named_struct('c', 3), 'a', 1.5BD)", "each of a type that the column's field"),
    ],
)
@pytest.mark.parametrize("as_it_is", [True, False])
def test_the_fields_of_a_struct_go_by_name(
    job: Job, kind: str, value: str, expected: Any, partitions: int | None, *, as_it_is: bool
) -> None:
    """As in `write_state`, and on the driver, where a column is taken as it is."""
    batch = Batch.open(job.coordinator)
    df = job.spark.sql(f"SELECT 1 AS k, {value} AS p")
    how: dict[str, Any] = {"operator": "op", "keys": ["k"], "schema": f"k INT, p {kind}"}
    how["partitions"] = partitions
    update: dict[str, Any] = {"p": "new.p" if as_it_is else F.coalesce("new.p", "new.p")}
    if isinstance(expected, str):
        with pytest.raises(InvalidInputError, match=expected):
            merge_state(df, batch, update=update, **how)
        return
    batch.add(merge_state(df, batch, update=update, **how))
    batch.complete()
    assert job.read_state().collect() == [(1, expected)]


@pytest.fixture
def query(job: Job) -> Iterator[None]:
    """What Spark passes to a function in `foreachBatch`."""
    context = job.spark.sparkContext
    context.setLocalProperty("sql.streaming.queryId", "query")
    yield
    context.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type] # removes it


def totals(batch: CheckpointBatch, rows: DataFrame) -> None:
    """State and two files of one micro-batch."""
    grouped = rows.groupBy("tail").agg(F.count("*").alias("flights"))
    update = {"flights": "coalesce(old.flights, 0) + new.flights"}
    schema = "tail STRING, flights BIGINT"
    batch.merge_state(grouped, operator="op", keys=["tail"], update=update, schema=schema)
    batch.write_files(rows, f"rows/{batch.attempt.checkpoint_id}.jsonl")
    batch.write_files(grouped, f"totals/{batch.attempt.checkpoint_id}", format="parquet")


@pytest.mark.usefixtures("query")
def test_a_micro_batch_is_one_checkpoint_with_state_and_files(job: Job) -> None:
    """A repeated micro-batch is not applied again; a failed one leaves nothing and can be repeated."""
    run = checkpointed_batches(totals, store=job.coordinator.store.uri, job="job")
    rows = job.spark.sql("SELECT explode(array('a', 'b', 'a')) AS tail")
    run(rows, 0)
    run(rows, 0)
    assert state(job) == {"a": (2,), "b": (1,)}
    assert (job.folder / "rows/1.jsonl").read_text().count("\n") == 3

    def failing(batch: CheckpointBatch, rows: DataFrame) -> None:
        totals(batch, rows)
        raise RuntimeError("after all was written")

    with pytest.raises(RuntimeError):
        checkpointed_batches(failing, store=job.coordinator.store.uri, job="job")(rows, 1)
    assert state(job) == {"a": (2,), "b": (1,)}
    run(rows.where("tail = 'a'"), 1)
    assert state(job) == {"a": (4,), "b": (1,)}
    assert sorted(path.name for path in (job.folder / "rows").iterdir()) == ["1.jsonl", "2.jsonl"]
    latest = job.coordinator.latest()
    assert latest is not None
    assert latest.positions == {POSITION: {"query_id": "query", "batch_id": 1}}
    with pytest.raises(ConflictError, match="expects batch 2"):
        run(rows, 7)


def test_foreach_batch_in_a_real_query(job: Job) -> None:
    """Spark passes the query to the function, and an aggregate in update mode goes into the state."""
    source = job.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
    rows = source.selectExpr("concat('N', value % 7) AS tail")
    run = checkpointed_batches(totals, store=job.coordinator.store.uri, job="job")
    started = rows.writeStream.foreachBatch(run).option("checkpointLocation", str(job.folder / "ck"))
    query = started.start()
    try:
        deadline = 60
        while not job.coordinator.list() and deadline and query.isActive:
            query.awaitTermination(1)
            deadline -= 1
    finally:
        query.stop()
    done = job.coordinator.list()
    assert done
    assert done[0].positions[POSITION] == {"query_id": query.id, "batch_id": 0}
    assert sum(values[0] for values in state(job, at=1).values()) == 50
