"""Keyed state through real Spark: what is written is read back, whatever happens to the tasks."""

from __future__ import annotations

import datetime
import os
import random
import signal
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError, NotFoundError
from dstl_dagster.keyed.read import keyed_state
from dstl_dagster.keyed.write import shared_files
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.spark import read_state, write_state
from dstl_dagster.spark.dataframes import run_merges
from dstl_dagster.spark.dataframes import state as state_module
from dstl_dagster.spark.dataframes.run_merges import MergeRunsTask
from dstl_dagster.spark.dataframes.state_tasks import WriteStateTask

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

SCHEMA = "name STRING, number INT, total BIGINT, note STRING"


def rows_of(df: DataFrame) -> set[tuple[Any, ...]]:
    found = [tuple(row) for row in df.collect()]
    assert len(found) == len(set(found)), "a row came back twice"
    return set(found)


def test_three_checkpoints_against_a_dictionary(job: Job) -> None:
    """Upserts, deletes and null key parts equal a dictionary, at the latest and every earlier checkpoint.

    However many tasks wrote, and however many read.
    """
    random.seed(7)
    model: dict[tuple[Any, Any], tuple[Any, Any]] = {}
    at_checkpoint = {}
    for writers in (1, 5, 3):
        keys = {(random.choice(["a", "b", "", None]), random.choice([*range(60), None])) for _ in range(150)}
        changes = []
        for name, number in sorted(keys, key=repr):
            gone = random.random() < 0.25
            total, note = random.getrandbits(40), random.choice(["x", None])
            changes.append((name, number, total, note, gone))
            if gone:
                model.pop((name, number), None)
            else:
                model[name, number] = (total, note)
        df = job.spark.createDataFrame(changes, f"{SCHEMA}, gone BOOLEAN").repartition(4)
        done = job.write_state(
            df, keys=["name", "number"], deleted="gone", partitions=writers, max_parallelism=16
        )
        report = done.manifest.operators["op"].report
        assert (report.upserts, report.deletes, report.null_keys) == (
            sum(not change[-1] for change in changes),
            sum(change[-1] for change in changes),
            sum(None in change[:2] and not change[-1] for change in changes),
        )
        assert len(report.handles) == writers
        at_checkpoint[done.checkpoint_id] = {(*key, *value) for key, value in model.items()}
    for readers in (1, 2, 7, 16):
        assert rows_of(job.read_state(partitions=readers)) == {(*k, *v) for k, v in model.items()}
    for checkpoint_id, expected in at_checkpoint.items():
        assert rows_of(job.read_state(at=checkpoint_id)) == expected


EVERY_TYPE = """
    SELECT
    id AS l, CAST(id AS TINYINT) AS i8, CAST(id AS SMALLINT) AS i16, CAST(id AS INT) AS i32,
    id % 2 = 0 AS flag,
    CAST(id AS FLOAT) / 3 AS f32, CAST(id AS DOUBLE) / 3 AS f64, CAST(id AS DECIMAL(38, 10)) / 7 AS dec,
    concat('snow \u2603 ', id) AS text, CAST(concat('b', id) AS BINARY) AS bin,
    date_add(DATE'1900-01-01', CAST(id * 1000 AS INT)) AS day,
    TIMESTAMP'1969-12-31 23:59:59.999999' + make_dt_interval(CAST(id AS INT)) AS at,
    TIMESTAMP_NTZ'2013-01-01 05:15:00.000001' + make_dt_interval(CAST(id AS INT)) AS wall,
    INTERVAL '1 02:03:04.000005' DAY TO SECOND * id AS took,
    array(id, NULL) AS list, named_struct('a', id, 'b', array(named_struct('c', id))) AS nested
    FROM range(20)
"""


def test_every_type_and_null_comes_back(job: Job) -> None:
    """Values of every type that Arrow has, and nulls of each, survive a round trip."""
    df = job.spark.sql(EVERY_TYPE)
    nulls = [F.when(F.col("l") % 3 > 0, F.col(name)).alias(name) for name in df.columns if name != "l"]
    df = df.select("l", *nulls)
    job.write_state(df, keys=["l"])
    again = job.read_state()
    assert again.schema.simpleString() == df.schema.simpleString()
    assert again.exceptAll(df).count() == 0
    assert df.exceptAll(again).count() == 0


KEYS_OF_EACH_TYPE = ["flag", "i8", "i16", "i32", "l", "dec", "text", "bin", "day", "at", "wall"]


def test_every_key_type_finds_its_key_again(job: Job) -> None:
    """A key of all key types at once, with nulls, is replaced by its next change and not duplicated."""
    df = job.spark.sql(EVERY_TYPE)
    some_nulls = [
        F.when(F.col("l") % 4 > 0, F.col(name)).alias(name) for name in KEYS_OF_EACH_TYPE if name != "l"
    ]
    keyed = df.select("l", *some_nulls)
    for value in (1, 2):
        job.write_state(keyed.withColumn("value", F.lit(value)), keys=KEYS_OF_EACH_TYPE)
    assert [row.value for row in job.read_state().collect()] == [2] * 20


def test_the_session_does_not_decide_what_is_stored(job: Job, spark: SparkSession) -> None:
    """Another time zone and large Arrow types give the same bytes, and read the same instants."""
    df = spark.range(5).selectExpr("id", "timestamp_micros(id) AS at", "string(id) AS text")
    job.write_state(df, keys=["id", "text"])
    before = rows_of(job.read_state().selectExpr("id", "unix_micros(at)", "text"))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        job.write_state(df, keys=["id", "text"])
        assert rows_of(job.read_state().selectExpr("id", "unix_micros(at)", "text")) == before
        sizes = [done.manifest.operators["op"].report.payload_bytes for done in job.coordinator.list()]
        assert sizes[0] == sizes[1]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


class FailsTwice:
    """Does all of its work, then dies: by SIGKILL, then by an exception. The third try succeeds."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = list(super().__call__(batches))  # type: ignore[misc] # a task's
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if context.attemptNumber() == 1:
            raise RuntimeError("the task dies after its work is done")
        yield from outcome


class WriteFailsTwice(FailsTwice, WriteStateTask):
    pass


class MergeFailsTwice(FailsTwice, MergeRunsTask):
    pass


def changelog_files(job: Job) -> set[str]:
    return {
        stat.name for stat in job.coordinator.store.list("dstl/job/attempts/") if "/dstl/" in stat.name[9:]
    }


@pytest.mark.parametrize(("rows", "files", "tries"), [(100, 1, 1), (20_000, 2, 3)])
def test_a_task_that_fails_twice_changes_nothing(
    job: Job, monkeypatch: pytest.MonkeyPatch, rows: int, files: int, tries: int
) -> None:
    """What failed tries wrote is under the attempt and in no report; the state is as if they never ran. Few
    changes are not in a file of the task's: tries leave nothing, and both ranges share one file.
    """
    monkeypatch.setattr(state_module, "WriteStateTask", WriteFailsTwice)
    df = job.spark.range(rows).selectExpr("id", "id * 2 AS value")
    done = job.write_state(df, keys=["id"], partitions=2)
    report = done.manifest.operators["op"].report
    assert report.upserts == rows
    assert len(report.handles) == 2
    assert rows_of(job.read_state()) == {(n, 2 * n) for n in range(rows)}
    named = {stream.name for handle in report.handles for stream, _ in handle.handles_and_offsets}
    written = changelog_files(job)
    assert len(named) == files
    assert named <= written
    assert len(written) == tries * files
    assert all(str(done.attempt) in name for name in written)


class MergeFails(MergeRunsTask):
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(super().__call__(batches))
        raise RuntimeError("the task dies after its work is done")


@pytest.mark.parametrize(("task", "least", "most"), [(MergeFailsTwice, 3, 3), (MergeFails, 2, 4)])
def test_older_runs_are_merged_by_tasks_that_fail(
    job: Job, monkeypatch: pytest.MonkeyPatch, task: type[MergeRunsTask], least: int, most: int
) -> None:
    """What is large to merge is merged by tasks of the batch's session, or after three tries by this process.
    What failed tries wrote is in no report, and the state is what was written. Once a task has failed for
    good, Spark kills the others wherever they are.
    """
    monkeypatch.setattr(keyed_state, "_SPLIT_BYTES", 64 << 10)  # on the driver alone, which plans
    monkeypatch.setattr(shared_files, "SMALL_BYTES", 0)
    monkeypatch.setattr(run_merges, "MergeRunsTask", task)
    options = CheckpointOptions(materialize_max_runs=2)
    coordinator = CheckpointCoordinator("job", job.coordinator.store, options)
    for step in (1, 2, 3):
        changed = job.spark.range(0, 20_000, step).selectExpr("id", f"id * {step} AS value")
        batch = Batch.open(coordinator)
        batch.add(write_state(changed, batch, operator="op", keys=["id"], partitions=2))
        before = changelog_files(job)
        batch.merge_due_runs()
        written = changelog_files(job) - before
        done = batch.complete()
    assert rows_of(job.read_state()) == {
        (n, n * (3 if n % 3 == 0 else 2 if n % 2 == 0 else 1)) for n in range(20_000)
    }
    (merged,) = (run for run in done.manifest.operators["op"].runs if run.merged)
    named = {stream.name for handle in merged.handles for stream, _ in handle.handles_and_offsets}
    assert len(merged.handles) == len(named) > 2
    assert named < written
    assert least * len(named) <= len(written) <= most * len(named)
    assert all(str(done.attempt) in name for name in written)


def test_the_rows_are_computed_once(job: Job, tmp_path: Path) -> None:
    """Writing is one action on the DataFrame: its tasks run once each."""
    traces = tmp_path / "traces"
    traces.mkdir()
    folder = str(traces)

    def leave_a_trace(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import tempfile

        with tempfile.NamedTemporaryFile(dir=folder, delete=False):
            yield from batches

    df = job.spark.range(0, 10, 1, 3).mapInArrow(leave_a_trace, "id BIGINT")
    job.write_state(df, keys=["id"])
    assert len(list(traces.iterdir())) == 3


def test_a_key_twice_is_refused_by_name(job: Job) -> None:
    """The error names the key, comes from the driver at once, and the attempt can be aborted."""
    df = job.spark.createDataFrame([("a", 1), ("b", 2), ("a", 3)], "name STRING, value INT").repartition(3)
    attempt = job.coordinator.trigger()
    with pytest.raises(InvalidInputError, match=r"key \(name='a'\) occurs 2 times") as caught:
        write_state(df, attempt, operator="op", keys=["name"])
    assert caught.value.kind == "duplicate_key"
    job.coordinator.abort(attempt)
    job.write_state(df.where("value < 3"), keys=["name"])
    assert rows_of(job.read_state()) == {("a", 1), ("b", 2)}


def test_null_keys_are_one_key(job: Job) -> None:
    """Null in a key column is a value like any other: replaced, deleted, and refused twice, like one."""
    spark = job.spark
    job.write_state(spark.createDataFrame([(None, 1), ("a", 2)], "name STRING, value INT"), keys=["name"])
    job.write_state(spark.createDataFrame([(None, 3)], "name STRING, value INT"), keys=["name"])
    assert rows_of(job.read_state()) == {(None, 3), ("a", 2)}
    job.write_state(
        spark.createDataFrame([(None, None)], "name STRING, value INT"), keys=["name"], deleted=F.lit(True)
    )
    assert rows_of(job.read_state()) == {("a", 2)}
    twice = spark.createDataFrame([(None, 1), (None, 2)], "name STRING, value INT")
    with pytest.raises(InvalidInputError, match=r"name=None"):
        write_state(twice, job.coordinator.trigger(), operator="op", keys=["name"])


def test_columns_are_added_left_out_and_widened(job: Job) -> None:
    """Each checkpoint may have other value columns; older rows have nulls, and nothing is narrowed."""
    spark = job.spark
    job.write_state(spark.sql("SELECT 1L AS id, 10 AS value"), keys=["id"], max_parallelism=8)
    job.write_state(spark.sql("SELECT 2L AS id, 20L AS value, 'new' AS note"), keys=["id"])
    job.write_state(spark.sql("SELECT 3 AS id, 'last' AS note"), keys=["id"])
    state = job.read_state()
    assert state.schema.simpleString() == "struct<id:bigint,value:bigint,note:string>"
    assert rows_of(state) == {(1, 10, None), (2, 20, "new"), (3, None, "last")}
    assert job.read_state(at=1).schema.simpleString() == "struct<id:bigint,value:int>"
    report = job.coordinator.get(3).manifest.operators["op"].report
    assert report.max_parallelism == 8


def test_columns_widen_to_other_kinds_and_get_nested_fields(job: Job) -> None:
    """INT to DOUBLE, DATE to TIMESTAMP_NTZ, fields of structs in arrays: older rows are cast, or null."""
    spark = job.spark
    made = "SELECT 1L AS id, 2 AS n, DATE'2001-01-05' AS at, array(named_struct('a', 1)) AS s"
    job.write_state(spark.sql(made), keys=["id"])
    newer = "SELECT 2L AS id, 0.5D AS n, TIMESTAMP_NTZ'2001-01-05 06:00:00' AS at, "
    job.write_state(spark.sql(newer + "array(named_struct('a', 2L, 'b', 'x')) AS s"), keys=["id"])
    job.write_state(spark.sql(made.replace("1L AS id", "3L AS id")), keys=["id"])
    state = job.read_state()
    assert state.schema.simpleString() == (
        "struct<id:bigint,n:double,at:timestamp_ntz,s:array<struct<a:bigint,b:string>>>"
    )
    shown = state.selectExpr("id", "n", "CAST(at AS STRING)", "to_json(s)")
    old = (2.0, "2001-01-05 00:00:00", '[{"a":1}]')
    assert rows_of(shown) == {
        (1, *old),
        (2, 0.5, "2001-01-05 06:00:00", '[{"a":2,"b":"x"}]'),
        (3, *old),
    }
    assert job.read_state(at=1).dtypes[1:3] == [("n", "int"), ("at", "date")]


def test_an_expected_schema_adds_and_widens_what_is_read(job: Job) -> None:
    """An expected column that the state lacks is null; no column of the state is left out."""
    job.write_state(job.spark.sql("SELECT 1 AS id, 10 AS value, 'x' AS note"), keys=["id"])
    state = job.read_state(schema="extra BOOLEAN, value BIGINT, id INT")
    assert state.schema.simpleString() == "struct<extra:boolean,value:bigint,id:int,note:string>"
    assert rows_of(state) == {(None, 10, 1, "x")}
    with pytest.raises(InvalidInputError, match="key column 'id'"):
        job.read_state(schema="id BIGINT, value BIGINT")


@pytest.mark.parametrize(
    ("query", "how", "reason"),
    [
        ("SELECT 'x' AS id, 1 AS value", {}, "key column 'id' is int64 and cannot become string"),
        ("SELECT 1L AS id, 'x' AS value", {}, "column 'value' is int32 and cannot become string"),
        ("SELECT 1L AS id, 1L AS other", {"keys": ["id", "other"]}, "key columns are"),
        ("SELECT 1L AS id", {"max_parallelism": 64}, "max_parallelism is 128 and cannot become 64"),
        ("SELECT 1L AS id, INTERVAL '1' YEAR AS value", {}, "column 'value' has type interval year"),
        ("SELECT 1L AS id, NULL AS value", {}, "column 'value' has type void"),
        ("SELECT 1L AS id, parse_json('1') AS value", {}, "column 'value' has type variant"),
        ("SELECT 1L AS id, 'x' COLLATE UNICODE_CI AS value", {}, "column 'value' has type string collate"),
        ("SELECT 1L AS id, 2 AS a, 3 AS A", {}, "columns 'a' and 'A' have the same name"),
        ("SELECT 1L AS id, 2 AS __dstl_x", {}, "reserved"),
        ("SELECT 1L AS id", {"keys": []}, "at least one key column"),
        ("SELECT 1L AS id", {"keys": ["no"]}, "key column 'no' is not among the columns: id"),
        (
            "SELECT 1L AS id",
            {"deleted": "gone"},
            "`deleted` names column 'gone', which is not a boolean column of id",
        ),
        ("SELECT 1L AS id, 1 AS gone", {"deleted": "gone"}, "which is not a boolean column"),
        ("SELECT 1L AS id", {"partitions": 129}, "129 tasks cannot share 128 key groups"),
        ("SELECT 1L AS id", {"partitions": 0}, "0 tasks cannot share 128 key groups: take 1 to 128"),
        ("SELECT 1L AS id", {"operator": ""}, "needs an operator's name"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_runs(
    job_with_state: Job, query: str, how: Any, reason: str
) -> None:
    """Each mistake is named when the plan is made."""
    attempt = job_with_state.coordinator.trigger()
    df = job_with_state.spark.sql(query)
    with pytest.raises(InvalidInputError, match=reason):
        write_state(df, attempt, **({"operator": "op", "keys": ["id"]} | how))
    job_with_state.coordinator.abort(attempt)


@pytest.fixture(scope="module")
def job_with_state(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job whose operator `op` has one row, shared by the tests that change nothing."""
    from dstl_dagster.checkpoint import CheckpointCoordinator
    from dstl_dagster.storage import open_store
    from tests.spark.conftest import Job

    folder = tmp_path_factory.mktemp("store")
    job = Job(spark, folder, CheckpointCoordinator("job", open_store(folder.as_uri())))
    job.write_state(spark.sql("SELECT 1L AS id, 1 AS value"), keys=["id"])
    return job


def test_a_store_that_tasks_cannot_see_is_refused(spark: SparkSession) -> None:
    """Objects in this process's memory are invisible to Python workers."""
    from dstl_dagster.checkpoint import CheckpointCoordinator
    from dstl_dagster.storage import open_store

    attempt = CheckpointCoordinator("job", open_store("memory://here")).trigger()
    with pytest.raises(InvalidInputError, match="cannot see memory://"):
        write_state(spark.range(1), attempt, operator="op", keys=["id"])


def test_no_state_yet(job: Job) -> None:
    """Before the first checkpoint, and for an unknown operator, a schema is required and gives no rows."""
    with pytest.raises(InvalidInputError, match="there is no checkpoint") as caught:
        read_state(job.spark, None, "op", store=job.coordinator.store)
    assert caught.value.kind == "no_state"
    job.write_state(job.spark.range(1), keys=["id"])
    with pytest.raises(InvalidInputError, match="'other' yet"):
        job.read_state("other")
    empty = job.read_state("other", schema="id BIGINT, list ARRAY<STRUCT<a: INT>>")
    assert empty.schema.simpleString() == "struct<id:bigint,list:array<struct<a:int>>>"
    assert empty.collect() == []


def test_a_checkpoint_without_changes_keeps_the_state(job: Job) -> None:
    """An operator may have nothing to write; its state is the one before."""
    df = job.spark.range(3)
    job.write_state(df, keys=["id"])
    done = job.write_state(df.where("id > 5"), keys=["id"])
    assert done.manifest.operators["op"].report.handles == ()
    assert rows_of(job.read_state()) == {(0,), (1,), (2,)}


def test_reading_a_deleted_checkpoint_says_so(job: Job) -> None:
    """Files that went between the call and the action are damage: no record permitted that."""
    job.write_state(job.spark.range(3), keys=["id"])
    state = job.read_state()
    for stat in list(job.coordinator.store.list("dstl/job/attempts/")):
        from dstl_dagster.storage.base import Generation

        job.coordinator.store.delete(stat.name, precondition=Generation(stat.generation))
    with pytest.raises(NotFoundError, match="'op' at checkpoint 1 of job 'job' is damaged"):
        state.collect()


def test_odd_column_names_are_kept(job: Job) -> None:
    """Dots, backticks, spaces and capitals in names mean nothing special."""
    df = job.spark.range(4).selectExpr("id AS `a.b`", "id AS `c``d`", "id AS `E f`")
    job.write_state(df, keys=["a.b", "c`d"])
    again = job.read_state()
    assert again.columns == ["a.b", "c`d", "E f"]
    assert rows_of(again) == {(n, n, n) for n in range(4)}


def test_a_decimal_and_a_date_key_do_not_lose_digits(job: Job) -> None:
    """Keys are kept exactly, to the last digit and day."""
    rows = [(Decimal("12345678901234567890.123456789"), datetime.date(1582, 10, 15), 1)]
    df = job.spark.createDataFrame(rows, "amount DECIMAL(38, 9), day DATE, value INT")
    job.write_state(df, keys=["amount", "day"])
    assert rows_of(job.read_state()) == set(rows)
