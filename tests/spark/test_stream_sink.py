"""`df.writeStream.format("dstl")` in a real query: a micro-batch becomes one checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from dstl_dagster.errors import ConflictError, InvalidInputError
from dstl_dagster.spark import checkpointed_batches, lines, register
from dstl_dagster.spark.streaming.micro_batches import POSITION

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


def events(job: Job, folder: Path) -> DataFrame:
    return job.spark.readStream.schema("id BIGINT, value BIGINT").json(str(folder))


STATE = {"operator": "op", "keys": "id"}


def run(
    job: Job, df: DataFrame, checkpoints: Path, mode: str = "append", what: dict[str, str] = STATE
) -> None:
    """Read all available input, then stop."""
    register(job.spark)
    given = {"store": job.coordinator.store.uri, "job": "job", **what}
    query = (
        df.writeStream.format("dstl")
        .options(**given)
        .option("checkpointLocation", str(checkpoints))
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


@pytest.fixture
def arrive(tmp_path: Path) -> Callable[[str, range, int], Path]:
    """Put a file of events into the source folder."""
    folder = tmp_path / "events"
    folder.mkdir()

    def put(name: str, ids: range, value: int) -> Path:
        lines = "".join(f'{{"id":{n},"value":{value}}}\n' for n in ids)
        (folder / f"{name}.tmp").write_text(lines)
        (folder / f"{name}.tmp").rename(folder / f"{name}.json")
        return folder

    return put


def test_a_query_restarts_where_it_stood(
    job: Job, arrive: Callable[[str, range, int], Path], tmp_path: Path
) -> None:
    """Two starts of one query, on 2 tasks and on 7: the state is all rows, a later one replaces."""
    expected: dict[int, int] = {}
    for start, partitions in enumerate((2, 7)):
        ids = range(10 * start, 10 * start + 30)
        folder = arrive(f"e{start}", ids, start)
        expected |= dict.fromkeys(ids, start)
        run(job, events(job, folder).repartition(partitions), tmp_path / "ck")
    assert {row.id: row.value for row in job.read_state().collect()} == expected
    latest = job.coordinator.latest()
    assert latest is not None
    assert latest.positions[POSITION]["batch_id"] == 1
    assert [record.kind for record in job.coordinator.timeline.records()] == [
        "opened",
        "completed",
        "committed",
    ] * 2


def test_a_mode_that_replaces_everything_is_refused(
    job: Job, arrive: Callable[[str, range, int], Path], tmp_path: Path
) -> None:
    """Spark offers update mode to no Python sink; complete mode is refused by name, with the way out."""
    folder = arrive("e", range(5), 1)
    totals = events(job, folder).groupBy("id").agg(F.sum("value").alias("total"))
    with pytest.raises(InvalidInputError, match="overwrites nothing: use outputMode"):
        run(job, totals, tmp_path / "ck", mode="complete")
    assert list(job.coordinator.timeline.records()) == []


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_aggregates_are_written_in_a_function(
    job: Job, arrive: Callable[[str, range, int], Path], tmp_path: Path, mode: str
) -> None:
    """Update mode gives the rows that changed, complete mode all, which take the place of the state."""
    is_complete = mode == "complete"
    each = checkpointed_batches(
        lambda batch, rows: batch.write_state(rows, operator="op", keys=["id"], replace=is_complete),
        store=job.coordinator.store.uri,
        job="job",
    )
    expected: dict[int, int] = {}
    for start in range(2):
        ids = range(start * 3, start * 3 + 5)
        folder = arrive(f"e{start}", ids, 7)
        totals = events(job, folder).groupBy("id").agg(F.sum("value").alias("total"))
        writer = totals.writeStream.outputMode(mode).foreachBatch(each).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "ck")).start().awaitTermination()
        expected |= {id_: expected.get(id_, 0) + 7 for id_ in ids}
    assert {row.id: row.total for row in job.read_state().collect()} == expected
    assert job.coordinator.get(2).manifest.operators["op"].report.upserts == 5  # of 8 rows in complete mode


def test_each_batch_is_a_file_of_many_tasks(
    job: Job, arrive: Callable[[str, range, int], Path], tmp_path: Path
) -> None:
    """Lines by Spark's own `to_json`; the query starts twice, and each micro-batch has one file."""
    what = {"path": "out/{batch}.jsonl", "file_format": "jsonl"}
    for each in range(2):
        folder = arrive(f"e{each}", range(each * 10, each * 10 + 5), each)
        df = lines(events(job, folder).repartition(3), "jsonl")
        run(job, df, tmp_path / "ck", what=what)
    files = sorted((job.folder / "out").iterdir())
    assert [path.name for path in files] == ["0000000000.jsonl", "0000000001.jsonl"]
    for each, path in enumerate(files):
        ids = sorted(json.loads(line)["id"] for line in path.read_text().splitlines())
        assert ids == list(range(each * 10, each * 10 + 5))


def test_each_batch_has_folders_of_values(
    job: Job, arrive: Callable[[str, range, int], Path], tmp_path: Path
) -> None:
    """By `partitionBy` of a stream, below the folder of the micro-batch; Spark reads the values from it."""
    df = events(job, arrive("e", range(6), 1)).selectExpr("id", "id % 2 AS odd")
    writer = df.writeStream.format("dstl").partitionBy("odd").trigger(availableNow=True)
    given = {"store": job.coordinator.store.uri, "job": "job", "path": "out/batch={batch}"}
    writer.options(**given, checkpointLocation=str(tmp_path / "ck")).start().awaitTermination()
    found = job.spark.read.parquet(str(job.folder / "out")).selectExpr("batch", "odd", "id")
    assert sorted(map(tuple, found.collect())) == [(0, n % 2, n) for n in (0, 2, 4, 1, 3, 5)]


def test_a_new_checkpoint_folder_is_refused(
    job: Job, arrive: Callable[[str, range, int], Path], tmp_path: Path
) -> None:
    """Spark would read everything again; the job knows that it already has it."""
    folder = arrive("e", range(3), 1)
    run(job, events(job, folder), tmp_path / "ck")
    with pytest.raises(ConflictError, match="adopt_after="):
        run(job, events(job, folder), tmp_path / "lost")
    assert len(job.coordinator.list()) == 1
    assert job.coordinator.timeline.tail().open_attempt is None


def test_a_wrong_query_does_not_disturb_the_one_that_runs(
    job: Job, arrive: Callable[[str, range, int], Path], tmp_path: Path
) -> None:
    """Somebody starts another query on the job, the second time to take it over: it is told which query the
    job belongs to, and that one goes on.
    """
    folder = arrive("e0", range(3), 0)
    register(job.spark)
    given = {"store": job.coordinator.store.uri, "job": "job", **STATE}
    right = events(job, folder).writeStream.format("dstl").options(**given).queryName("daily")
    query = right.option("checkpointLocation", str(tmp_path / "ck")).start()
    try:
        until(query, lambda: len(job.coordinator.list()) == 1)
        for number, take_over in ((1, "false"), (2, "true")):
            arrive(f"e{number}", range(3), number)
            with pytest.raises(ConflictError, match="adopt_after="):
                run(job, events(job, folder), tmp_path / "lost", what={**STATE, "take_over": take_over})
        until(query, lambda: {row.value for row in job.read_state().collect()} == {2})
    finally:
        query.stop()
    kinds = {record.kind for record in job.coordinator.timeline.records()}
    assert kinds == {"opened", "completed", "committed"}


def until(query: StreamingQuery, reached: Callable[[], bool]) -> None:
    """Wait for it while the query runs."""
    deadline = time.monotonic() + 120
    while not reached():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_continuous_processing_is_refused_as_the_query_starts(job: Job) -> None:
    """It would be active, and write nothing. Queries into other sinks are Spark's to judge."""
    register(job.spark)
    register(job.spark)
    rates = job.spark.readStream.format("rate").load().selectExpr("value AS id", "value")
    writer = rates.writeStream.trigger(continuous="1 second")
    for format_before, how in (("DSTL", {}), ("noop", {"format": "dstl"})):
        with pytest.raises(InvalidInputError, match=r"no row of a query with trigger\(continuous"):
            writer.format(format_before).start(**how)
    with pytest.raises(AnalysisException):
        writer.format("noop").outputMode("complete").start()


def test_a_first_micro_batch_without_rows_is_a_state_without_rows(job: Job, tmp_path: Path, arrive) -> None:  # type: ignore[no-untyped-def]
    """Its readers find the columns, and the next micro-batch goes on."""
    folder = arrive("one", range(3), 1)
    run(job, events(job, folder).where("id > 5"), tmp_path / "spark")
    assert (job.read_state().columns, job.read_state().collect()) == (["id", "value"], [])


@pytest.mark.soak
def test_windows_are_written_once_the_watermark_has_passed_them(
    job: Job, arrive: Callable[[str, range, int], Path], tmp_path: Path
) -> None:
    """In append mode: micro-batches before that have no rows, and each window is a row once."""
    for name, ids in (("a", range(100, 102)), ("b", range(123, 124)), ("c", range(150, 151))):
        seen = events(job, arrive(name, ids, 1)).selectExpr("CAST(id AS TIMESTAMP) AS at")
        windows = seen.withWatermark("at", "10 seconds").groupBy(F.window("at", "5 seconds")).count()
        counted = windows.selectExpr("CAST(window.start AS BIGINT) AS start", "count")
        run(job, counted, tmp_path / "ck", what={"operator": "op", "keys": "start"})
    assert {row.start: row["count"] for row in job.read_state().collect()} == {100: 2, 120: 1}
