"""Keyed updates by DataFrame operations, and micro-batches that become one checkpoint each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

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
    ],
)
def test_a_wrong_merge_is_refused_before_anything_runs(job: Job, how: dict[str, Any], reason: str) -> None:
    """By name, when the plan is made."""
    job.write_state(job.spark.sql("SELECT 'a' AS tail, 1L AS flights, 1D AS delay"), keys=["tail"])
    with pytest.raises(InvalidInputError, match=reason):
        merge(job, [("a", 1, 1.0, False)], **how)


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
