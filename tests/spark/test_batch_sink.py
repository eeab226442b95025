"""`df.write.format("dstl")`: a batch becomes one checkpoint, once, whatever its tasks and its driver do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F

from dstl_dagster.spark import register

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


def sink(job: Job, df: DataFrame, key: str, **options: str) -> DataFrameWriter:
    register(job.spark)
    given = {"store": job.coordinator.store.uri, "job": "job", "idempotency_key": key, **options}
    return df.write.format("dstl").mode("append").options(**given)


def rows(df: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in df.collect())


def test_upserts_and_deletes_of_batches_are_the_state(job: Job) -> None:
    """Two batches, each one checkpoint: what they insert, replace and delete is what reading gives."""
    first = job.spark.range(100).selectExpr("id", "id * 2 AS value", "false AS gone")
    sink(job, first, "monday", operator="op", keys="id", deleted="gone").save()
    second = job.spark.range(50, 120).selectExpr("id", "-id AS value", "id % 2 = 0 AS gone")
    sink(job, second, "tuesday", operator="op", keys="id", deleted="gone").save()
    assert [done.idempotency_key for done in job.coordinator.list()] == ["monday", "tuesday"]
    report = job.coordinator.get(2).manifest.operators["op"].report
    assert (report.upserts, report.deletes) == (35, 35)
    expected = {n: 2 * n for n in range(50)} | {n: -n for n in range(50, 120) if n % 2}
    assert rows(job.read_state()) == sorted(expected.items())
    assert rows(job.read_state(at=1)) == [(n, 2 * n) for n in range(100)]


def test_a_batch_that_is_written_again_changes_nothing(job: Job) -> None:
    """The same idempotency key, even with other rows: no checkpoint, no attempt."""
    sink(job, job.spark.range(3), "monday", operator="op", keys="id").save()
    before = list(job.coordinator.timeline.records())
    sink(job, job.spark.range(10), "monday", operator="op", keys="id").save()
    assert list(job.coordinator.timeline.records()) == before
    assert rows(job.read_state()) == [(0,), (1,), (2,)]


def test_a_key_in_two_tasks_is_refused(job: Job) -> None:
    """Each task sees its row alone; the commit sees both, and nothing of the batch is left."""
    df = job.spark.range(0, 20, 1, 2).selectExpr("id % 10 AS id", "id AS value")
    with pytest.raises(Exception, match=r"20 rows have 10 keys.*aggregate the rows by key"):
        sink(job, df, "monday", operator="op", keys="id").save()
    assert [record.kind for record in job.coordinator.timeline.records()] == ["opened", "aborted"]
    sink(job, df.groupBy("id").agg(F.max("value")), "monday", operator="op", keys="id").save()
    assert job.read_state().count() == 10


def test_what_a_task_refuses_is_said_once(job: Job) -> None:
    """A key twice in one task: its own words come out, without three tries of the task."""
    df = job.spark.sql("SELECT explode(array('a', 'b', 'a')) AS name")
    with pytest.raises(Exception, match=r"key \(name='a'\) occurs 2 times"):
        sink(job, df, "monday", operator="op", keys="name").save()


def test_a_type_that_cannot_be_kept_is_refused_by_name(job: Job) -> None:
    """Before an attempt opens."""
    df = job.spark.sql("SELECT 1L AS id, INTERVAL '1' YEAR AS span")
    with pytest.raises(Exception, match="column 'span' has type interval year"):
        sink(job, df, "monday", operator="op", keys="id").save()
    with pytest.raises(Exception, match=r"nothing is overwritten: use mode\(\"append\"\)"):
        sink(job, df, "monday", operator="op", keys="id").mode("overwrite").save()
    assert list(job.coordinator.timeline.records()) == []


def test_files_of_a_batch(job: Job) -> None:
    """Lines of all tasks in one file in the order of the partitions; one Parquet file a task."""
    df = job.spark.range(0, 100, 1, 4)
    lines = df.selectExpr("concat('line ', id) AS value")
    options = {"path": "out/x.txt", "file_format": "text", "header_line": "the lines"}
    sink(job, lines, "a", **options).save()
    assert (job.folder / "out/x.txt").read_text().splitlines() == ["the lines"] + [
        f"line {n}" for n in range(100)
    ]
    sink(job, df.where("id < 50 OR id > 80"), "b", path="out/parts").save()
    names = sorted(path.name for path in (job.folder / "out/parts").iterdir())
    assert names == [f"part-0000{n}.parquet" for n in (0, 1, 3)]
    again = job.spark.read.parquet(str(job.folder / "out/parts"))
    assert sorted(row.id for row in again.collect()) == [n for n in range(100) if n < 50 or n > 80]
    sink(job, df.where("id < 0"), "c", path="out/none").save()
    assert [path.name for path in (job.folder / "out/none").iterdir()] == ["part-00000.parquet"]
