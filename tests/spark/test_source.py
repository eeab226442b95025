"""`spark.read.format("dstl")`: state at a checkpoint, changes between two, the table of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from shutil import copytree
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import NotFoundError
from dstl_dagster.jobs import drop_job
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.spark import register
from dstl_dagster.testing.virtual_clock import VirtualClock
from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


def read(job: Job, **options: object) -> DataFrame:
    register(job.spark)
    given = {"store": job.coordinator.store.uri, "job": "job", "operator": "op"} | options
    return (
        job.spark.read.format("dstl").options(**{k: str(v) for k, v in given.items() if v is not None}).load()
    )


def rows(df: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in df.collect()), key=repr)


EVERY_TYPE = """
    SELECT
    id AS l, CAST(id AS TINYINT) AS i8, CAST(id AS SMALLINT) AS i16, CAST(id AS INT) AS i32,
    id % 2 = 0 AS flag, CAST(id AS FLOAT) / 3 AS f32, CAST(id AS DOUBLE) / 3 AS f64,
    CAST(id AS DECIMAL(38, 10)) / 7 AS dec, concat('snow \u2603 ', id) AS text,
    CAST(concat('b', id) AS BINARY) AS bin, date_add(DATE'1900-01-01', CAST(id * 1000 AS INT)) AS day,
    TIMESTAMP'1969-12-31 23:59:59.999999' + make_dt_interval(CAST(id AS INT)) AS at,
    TIMESTAMP_NTZ'2013-01-01 05:15:00.000001' + make_dt_interval(CAST(id AS INT)) AS wall,
    INTERVAL '1 02:03:04.000005' DAY TO SECOND * id AS took, map(concat('k', id), id, 'n', NULL) AS pairs,
    array(id, NULL) AS list, named_struct('a', id, 'b', array(named_struct('c', id))) AS nested
    FROM range(20)
"""


def test_every_type_goes_in_and_comes_out(job: Job, spark: SparkSession) -> None:
    """Through the sink and the source, in a session of another time zone and other Arrow types."""
    names = [name for name in spark.sql(EVERY_TYPE).columns if name != "l"]
    nulls = [f"IF(l % 3 > 0, {name}, NULL) AS {name}" for name in names]
    df = spark.sql(EVERY_TYPE).selectExpr("l", *nulls)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        register(spark)
        given = {"store": job.coordinator.store.uri, "job": "job", "operator": "op", "keys": "l"}
        sink = df.write.format("dstl").mode("append").options(**given)
        sink.option("idempotency_key", "x").save()
        again = read(job)
        assert again.schema.simpleString() == df.schema.simpleString()
        assert rows(again) == rows(df)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


@pytest.fixture(scope="module")
def three_checkpoints(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three of them: 0 to 9, then 5 to 14 with other values and without 7, then a wider row."""
    job = Job.in_folder(spark, tmp_path_factory.mktemp("three") / "store")
    df = job.spark.range(10).selectExpr("id", "CAST(id AS INT) AS value")
    job.write_state(df, keys=["id"], max_parallelism=16)
    df = job.spark.range(5, 15).selectExpr("id", "CAST(IF(id = 6, 6, -id) AS INT) AS value", "id = 7 AS gone")
    job.write_state(df, keys=["id"], deleted="gone")
    job.write_state(job.spark.sql("SELECT 3L AS id, 30L AS value, 'new' AS note"), keys=["id"])
    return job.folder


@pytest.fixture
def three(spark: SparkSession, three_checkpoints: Path, tmp_path: Path) -> Job:
    """A copy of that store."""
    return Job.in_folder(spark, Path(copytree(three_checkpoints, tmp_path / "store with spaces")))


def test_any_kept_checkpoint_key_groups_and_columns(three: Job) -> None:
    """Ranges of key groups together are the state, each once; columns come in the order asked for."""
    second = sorted([(n, n) for n in (0, 1, 2, 3, 4, 6)] + [(n, -n) for n in (5, *range(8, 15))], key=repr)
    assert rows(read(three, at=2)) == second
    latest = read(three)
    assert latest.schema.simpleString() == "struct<id:bigint,value:bigint,note:string>"
    assert (3, 30, "new") in rows(latest)
    parts = [read(three, key_groups=groups, columns="value,id") for groups in ("0-4,9", "5-8,10-15")]
    found = [tuple(row) for part in parts for row in part.collect()]
    assert sorted(found, key=repr) == rows(latest.select("value", "id"))
    assert len(found) == 14
    assert rows(read(three, partitions=5)) == rows(latest)
    assert [row.value for row in read(three, columns="value", at=1, partitions=1).collect()]


def test_what_changed_between_two_checkpoints(three: Job) -> None:
    """Row, type and checkpoint, from the oldest state on; a row that was rewritten unchanged is no change."""
    changes = rows(read(three, table="changes").selectExpr("_checkpoint_id", "_change_type", "id", "value"))
    expected: list[tuple[object, ...]] = [(1, "insert", n, n) for n in range(10)]
    expected += [(2, "delete", 7, 7), (3, "update_before", 3, 3), (3, "update_after", 3, 30)]
    expected += [(2, "insert", n, -n) for n in range(10, 15)]
    for n in (5, 8, 9):
        expected += [(2, "update_before", n, n), (2, "update_after", n, -n)]
    assert changes == sorted(expected, key=repr)
    only = read(three, table="changes", from_checkpoint=2, to_checkpoint=3)
    times = {each.checkpoint_id: each.entry.completed.recorded_at for each in three.coordinator.list()}
    said = only.select("_checkpoint_id", F.unix_micros("_commit_timestamp")).distinct()
    assert rows(said) == [(3, round(times[3].timestamp() * 1_000_000))]
    assert rows(read(three, table="changes", from_checkpoint=3)) == []
    with pytest.raises(Exception, match="has no checkpoint '9'"):
        read(three, table="changes", from_checkpoint=9)


def test_a_read_with_a_schema_of_its_own_is_planned_once(three: Job) -> None:
    """At the first action: before it, Spark asks a Python data source nothing."""
    given = {"store": three.coordinator.store.uri, "job": "job", "operator": "op"}
    register(three.spark)
    planned_when_made = read(three)
    asked = three.spark.read.format("dstl").options(**given).schema("value BIGINT, id BIGINT").load()
    three.write_state(three.spark.sql("SELECT 100L AS id, 1L AS value, '' AS note"), keys=["id"])
    assert asked.count() == planned_when_made.count() + 1
    three.write_state(three.spark.sql("SELECT 101L AS id, 1L AS value, '' AS note"), keys=["id"])
    assert (101, 1) not in rows(asked.select("id", "value"))
    narrow = three.spark.read.format("dstl").options(**given).schema("id INT").load()
    with pytest.raises(Exception, match="is BIGINT, and the schema asks for INT"):
        narrow.collect()


def test_the_time_of_a_checkpoint_is_in_the_session_zone_if_that_is_passed_on(three: Job) -> None:
    """Spark keeps its session's zone from a Python data source; without one a time is refused."""
    after = three.coordinator.get(1).entry.completed.recorded_at + timedelta(microseconds=1)
    local = after.astimezone(ZoneInfo("Asia/Tokyo")).replace(tzinfo=None).isoformat(" ")
    found = read(three, timestampAsOf=local, timeZone="Asia/Tokyo")
    assert rows(found) == [(n, n) for n in range(10)]
    with pytest.raises(Exception, match=r"has no time zone.* add option timeZone"):
        read(three, timestampAsOf=local)


def test_a_state_without_rows_has_its_columns(job: Job) -> None:
    """A first write of nothing, in each table that is read."""
    nothing = job.spark.sql("SELECT 1L AS id, 2 AS value").where("id > 1")
    job.write_state(nothing, keys=["id"])
    assert (read(job).columns, rows(read(job))) == (["id", "value"], [])
    assert job.read_state().columns == ["id", "value"]
    assert rows(job.read_state()) == []
    job.write_state(job.spark.sql("SELECT 5L AS id, 6 AS value"), keys=["id"])
    assert rows(read(job, table="changes").drop("_commit_timestamp")) == [(5, 6, "insert", 2)]
    assert rows(read(job, at=1)) == []


def test_the_checkpoints_as_a_table(three: Job) -> None:
    """What the coordinator lists, as rows for SQL."""
    three.coordinator.savepoint(2, "kept")
    table = read(three, table="checkpoints", operator=None)
    found = [(row.checkpoint_id, row.parent, row.savepoints, row.changed_rows) for row in table.collect()]
    assert found == [(1, None, [], 10), (2, 1, ["kept"], 10), (3, 2, [], 1)]
    first = table.first()
    assert first is not None
    assert first.completed_at is not None
    assert first.operators == ["op"]
    assert first.user_metadata is None


def test_a_read_keeps_its_checkpoint_while_the_next_one_is_written(three: Job) -> None:
    """Made on checkpoint 3; an open attempt's changes, and then checkpoint 4, do not show in it."""
    before = read(three)
    expected = rows(before)
    seen: list[object] = []

    def while_open(attempt: object) -> object:
        from dstl_dagster.spark import write_state

        report = write_state(
            three.spark.range(50).selectExpr("id", "0L AS value"), attempt, operator="op", keys=["id"]
        )  # type: ignore[arg-type]
        seen.extend([rows(read(three)), rows(before)])
        return [report], []

    three.checkpoint(while_open)  # type: ignore[arg-type]
    assert seen == [expected, expected]
    assert rows(before) == expected
    assert read(three).count() == 50


def test_a_checkpoint_that_is_gone_is_named(three: Job) -> None:
    """Requested after clean-up, and deleted between creating the DataFrame and its action."""
    made = read(three, at=1)
    store = three.coordinator.store
    eager = CheckpointOptions(num_retained=1, reader_grace=timedelta(0))
    coordinator = CheckpointCoordinator("job", store, eager)
    from dstl_dagster.checkpoint import materialize

    materialize(coordinator, force=True)
    coordinator.clean_up()
    with pytest.raises(Exception, match="checkpoint 1 of job 'job' was cleaned up"):
        made.collect()
    with pytest.raises(Exception, match="checkpoint 1 of job 'job' was cleaned up"):
        read(three, at=1)


def test_a_read_of_a_job_that_was_dropped_is_not_one_of_the_next(three: Job) -> None:
    """Also where the new job has a checkpoint of the same id."""
    made, store = read(three, at=1), three.coordinator.store
    drop_job(store, "job", owner="test", force=True, clock=VirtualClock())
    three.coordinator = CheckpointCoordinator("job", store)
    three.write_state(three.spark.sql("SELECT 7L AS id, 1L AS value"), keys=["id"])
    with pytest.raises(NotFoundError, match=r"the job was dropped.*another job of that name has begun since"):
        made.collect()


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.usefixtures("pushdown")
def test_one_dataframe_with_and_without_a_filter(three: Job) -> None:
    """Spark would reuse a plan narrowed by one query's filters for the next: nothing is narrowed."""
    df = read(three)
    assert df.where("id = 12").union(df).count() == 1 + 14
    assert [df.count(), df.where("id = 12").count(), df.count()] == [14, 1, 14]


def test_a_read_is_narrowed_by_a_condition(three: Job) -> None:
    """Option `where`: whole keys read their key groups alone; columns that are not asked for may be named."""
    assert rows(read(three, where="id = 12", columns="value")) == [(-12,)]
    assert read(three, where="id IN (12, 3) OR id = 0").rdd.getNumPartitions() <= 3
    assert rows(read(three, where="VALUE >= 4 AND note = 'new'")) == [(3, 30, "new")]
    halves = [read(three, where="id = 12", key_groups=groups) for groups in ("0-7", "8-15")]
    assert rows(halves[0].union(halves[1])) == [(12, -12, None)]
    df = read(three, where="id > 9")
    assert [df.count(), df.where("id = 12").count(), df.count()] == [5, 1, 5]
    assert rows(read(three, where="id = 99")) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"where": "nope = 1"}, "names column 'nope', and there are id, value, note"),
        ({"where": "id LIKE 5"}, "not understood at 'LIKE'"),
        ({"columns": "id,nope"}, "names 'nope', but the state has id, value, note"),
        ({"operator": "other"}, "no state of operator 'other'; it has op"),
        ({"at": 9}, "has no checkpoint '9'"),
    ],
)
def test_a_wrong_read_is_refused_by_name(three: Job, options: dict[str, object], reason: str) -> None:
    """When the DataFrame is made."""
    with pytest.raises(Exception, match=reason):
        read(three, **options)
