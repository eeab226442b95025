"""`df.write.format("dstl")`: a batch becomes one checkpoint, whatever happens to its tasks and its driver."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.spark import by_key_group, lines, register
from dstl_dagster.spark.data_source import DstlDataSource
from dstl_dagster.spark.sink.writers import SaveWriter

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
    """Two batches, one checkpoint each: reading returns what they inserted, replaced and did not delete."""
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
    """Each task sees only its own row; the commit sees both and refuses, and nothing of the batch is left."""
    df = job.spark.range(0, 20, 1, 2).selectExpr("id % 10 AS id", "id AS value")
    with pytest.raises(Exception, match=r"key \(id=\d\) occurs 2 times.*aggregate the rows by key"):
        sink(job, df, "monday", operator="op", keys="id").save()
    assert [record.kind for record in job.coordinator.timeline.records()] == ["opened", "aborted"]
    once = by_key_group(df.groupBy("id").agg(F.max("value")), ["id"], partitions=2)
    sink(job, once, "monday", operator="op", keys="id").save()
    assert job.read_state().count() == 10
    first, second = job.coordinator.get(1).manifest.operators["op"].report.handles
    assert first.key_group_range.end_key_group < second.key_group_range.start_key_group


def test_what_a_task_refuses_is_said_once(job: Job) -> None:
    """A key twice in one task: its own error is raised, without three tries of the task."""
    df = job.spark.sql("SELECT explode(array('a', 'b', 'a')) AS name")
    with pytest.raises(Exception, match=r"key \(name='a'\) occurs 2 times"):
        sink(job, df, "monday", operator="op", keys="name").save()


def test_a_type_that_cannot_be_kept_is_refused_by_name(job: Job) -> None:
    """Before an attempt opens."""
    df = job.spark.sql("SELECT 1L AS id, INTERVAL '1' YEAR AS span")
    with pytest.raises(Exception, match="column 'span' has type interval year"):
        sink(job, df, "monday", operator="op", keys="id").save()
    assert list(job.coordinator.timeline.records()) == []


class _FailsTwice(SaveWriter):
    """Does all of its work, then dies: by SIGKILL, then by an exception. The third try succeeds."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if context.attemptNumber() == 1:
            raise RuntimeError("the task dies after its work is done")
        return message


class _Unlucky(DstlDataSource):
    @classmethod
    def name(cls) -> str:
        return "unlucky"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        lucky = super().writer(schema, overwrite)
        assert isinstance(lucky, SaveWriter)
        return _FailsTwice(lucky._options, lucky._schema, lucky._plan)


def test_a_task_that_fails_twice_changes_nothing(job: Job) -> None:
    """Three tries of each task under one attempt, one of them reported; the others' files are garbage."""
    job.spark.dataSource.register(_Unlucky)
    df = job.spark.range(100).selectExpr("id", "id * 2 AS value").repartition(2)
    given = {"store": job.coordinator.store.uri, "job": "job", "operator": "op", "keys": "id"}
    df.write.format("unlucky").mode("append").options(**given, idempotency_key="x").save()
    assert rows(job.read_state()) == [(n, 2 * n) for n in range(100)]
    report = job.coordinator.get(1).manifest.operators["op"].report
    named = {stream.name for handle in report.handles for stream, _ in handle.handles_and_offsets}
    store = job.coordinator.store
    written = {stat.name for stat in store.list("dstl/job/attempts/") if "/changelog/" in stat.name}
    assert named < written
    assert len(written) == 3 * len(named)
    job.coordinator.clean_up()
    assert {stat.name for stat in store.list("dstl/job/attempts/")} == named
    assert rows(job.read_state()) == [(n, 2 * n) for n in range(100)]


def test_files_of_a_batch(job: Job) -> None:
    """Lines of all tasks in one file, in partition order; one Parquet file per task."""
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


def test_no_table_of_the_catalog_is_begun(job: Job) -> None:
    """It would get its rows, and stay in the catalog, where nothing can read it: refused at once."""
    df = job.spark.range(3)
    writer = sink(job, df, "monday", operator="op", keys="id")
    new = df.writeTo("dead_entry").using("dstl").options(store="s", job="job", operator="op", keys="id")
    stream = job.spark.readStream.format("rate").load().writeStream
    calls = [
        lambda: writer.saveAsTable("dead_entry"),
        lambda: df.write.saveAsTable("dead_entry", format="dstl", mode="append"),
        new.create,
        new.replace,
        new.createOrReplace,
        lambda: stream.format("dstl").toTable("dead_entry"),
        lambda: stream.toTable("dead_entry", format="DSTL"),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError, match="cannot be a table of the catalog"):
            call()
    assert not job.spark.catalog.tableExists("dead_entry")
    assert list(job.coordinator.timeline.records()) == []


def test_the_columns_of_partition_by_name_folders(job: Job) -> None:
    """As of Spark's own files, by any form of the call; rows of one value come from both tasks."""
    df = job.spark.range(0, 8, 1, 2).selectExpr(
        "DATE'2001-01-01' + int(id % 2) AS day", "id", "int(id > 3) AS late"
    )
    into = {"path": "a", "maxRecordsPerFile": "1"}
    sink(job, df, "a", **into).partitionBy("Day", "late").save()
    written = sink(job, df, "b", path="b")
    written.save(None, "dstl", "append", ["day"])
    text = lines(df, "csv", partition_by=["day"])
    sink(job, text, "c", path="c", file_format="csv", header_line="id,late").partitionBy(["day"]).save()
    for place, columns in (("a", ["id", "day", "late"]), ("b", ["id", "late", "day"])):
        found = job.spark.read.parquet(str(job.folder / place))
        assert found.columns == columns
        assert rows(found.select(df.columns)) == rows(df)
    assert len(list((job.folder / "a/day=2001-01-02/late=1").iterdir())) == 2
    only = (job.folder / "c/day=2001-01-01/part-00000.csv").read_text()
    assert only == "id,late\n0,0\n2,0\n4,1\n6,1\n"
    for how, says in (
        ({"operator": "op", "keys": "id"}, "option partition_by goes with path"),
        ({"path": "d"}, r"whose text depends on the session: .* df\['at'\].cast"),
    ):
        refused = sink(job, df.selectExpr("id", "timestamp_seconds(id) AS at"), "d", **how)
        with pytest.raises(InvalidInputError, match=says):
            refused.partitionBy("at").save()
    plain = df.write.format("noop").mode("append").partitionBy("id")
    with pytest.raises(Exception, match=r"noop|partition") as unknown:
        plain.save()
    assert not isinstance(unknown.value, InvalidInputError)


def test_overwriting_replaces_the_state(job: Job) -> None:
    """Rows take the place of all, as in other formats: a key without a row is deleted, also all of them."""
    first = job.spark.range(100).selectExpr("id", "id * 2 AS value")
    sink(job, first, "monday", operator="op", keys="id").mode("overwrite").save()
    second = job.spark.range(90, 110, 1, 3).selectExpr("id", "IF(id < 95, id * 2, -id) AS value")
    sink(job, second, "tuesday", operator="op", keys="id").mode("overwrite").save()
    assert rows(job.read_state()) == sorted((n, 2 * n if n < 95 else -n) for n in range(90, 110))
    assert job.coordinator.get(2).manifest.operators["op"].report.deletes == 90
    read = job.spark.read.format("dstl").options(store=job.coordinator.store.uri, job="job", operator="op")
    changes = read.options(table="changes", from_checkpoint=1).load()
    kinds = {row[0]: row[1] for row in changes.groupBy("_change_type").count().collect()}
    assert kinds == {"insert": 10, "delete": 90, "update_before": 5, "update_after": 5}
    sink(job, second.where("id < 0"), "wednesday", operator="op", keys="id").mode("overwrite").save()
    assert rows(job.read_state()) == []


def test_overwriting_replaces_the_rows_of_a_condition(job: Job) -> None:
    """`replaceWhere`: the others stay, and a row that does not pass is refused with its key."""
    first = job.spark.sql("SELECT explode(array('a', 'b')) AS part, id, 0 AS value FROM range(10)")
    sink(job, first, "monday", operator="op", keys="part,id").save()
    second = job.spark.sql("SELECT 'b' AS part, 7L AS id, 1 AS value")
    overwrite = sink(job, second, "tuesday", operator="op", keys="part,id").mode("overwrite")
    overwrite.option("replaceWhere", "part = 'b'").save()
    assert rows(job.read_state()) == [*(("a", n, 0) for n in range(10)), ("b", 7, 1)]
    again = sink(job, second, "wednesday", operator="op", keys="part,id").mode("overwrite")
    with pytest.raises(Exception, match=r"part='b', id=7\) is not in the rows where part = 'a'"):
        again.option("replaceWhere", "part = 'a'").save()
    assert job.coordinator.latest().checkpoint_id == 2


def test_what_cannot_be_replaced_is_refused(job: Job) -> None:
    """Before an attempt opens."""
    writer = sink(job, job.spark.range(3), "monday", operator="op", keys="id")
    with pytest.raises(InvalidInputError, match="option replaceWhere goes with mode"):
        writer.mode("append").option("replaceWhere", "id > 1").save()
    with pytest.raises(InvalidInputError, match="column 'value', and there are id"):
        writer.mode("overwrite").option("replaceWhere", "value > 1").save()
    files = sink(job, job.spark.range(3), "tuesday", path="rows")
    with pytest.raises(InvalidInputError, match="a published file is never overwritten"):
        files.mode("overwrite").save()
    with pytest.raises(InvalidInputError, match="option replacewhere goes with operator"):
        files.mode("overwrite").option("replaceWhere", "id > 1").save()
    assert list(job.coordinator.timeline.records()) == []
