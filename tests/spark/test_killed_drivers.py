"""Kill -9 of the process that commits a micro-batch, of a worker, and of the JVM under a Dagster run.

Each once. What continues is this session, so that only the last one costs a start of Spark. Whole drivers,
many kills, random moments: `tests/process/replay_kills.py` and `flights_kills.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.keyed import KeyedState
from dstl_dagster.spark.data_source import DstlDataSource
from dstl_dagster.spark.sink.writers import StreamWriter
from dstl_dagster.storage import open_store
from tests.spark import killed_drivers as program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Job

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.timeout(600)]

PATIENCE_SECONDS = 240.0


def held_source(reached: Path) -> type[DstlDataSource]:
    """A sink whose first commit of batch 1 stops where the commit point is to be written."""

    class HeldWriter(StreamWriter):
        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            if batchId == 1 and not reached.exists():

                def hold(*_: object, **__: object) -> None:
                    note(reached)
                    threading.Event().wait(PATIENCE_SECONDS)

                CheckpointCoordinator.confirm = hold  # type: ignore[assignment,method-assign]
            super().commit(messages, batchId)

    class HeldSource(DstlDataSource):
        @classmethod
        def name(cls) -> str:
            return "held"

        def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
            writer: StreamWriter = super().streamWriter(schema, overwrite)  # type: ignore[assignment]
            writer.__class__ = HeldWriter
            return writer

    return HeldSource


def note(path: Path) -> None:
    """This process's id, whole or not at all."""
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)


def kill_once_it_is_there(path: Path) -> threading.Thread:
    """Kill the process whose id will be in this file."""

    def kill() -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(int(path.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    return killer


def test_a_stream_killed_inside_its_commit_goes_on(job: Job, tmp_path: Path) -> None:
    """The process that commits the second micro-batch dies before the commit point, and the query with it. It
    starts again from Spark's log, repeats that micro-batch, and each row counts once.
    """
    events, reached = tmp_path / "events", tmp_path / "reached"
    events.mkdir()
    for number in range(3):
        path = events / f"{number}.json"
        path.write_text("".join(f'{{"id":{key},"value":{number}}}\n' for key in range(number, number + 5)))
        os.utime(path, (number, number))  # Spark takes them by age

    def run() -> None:
        rows = job.spark.readStream.schema("id BIGINT, value BIGINT").option("maxFilesPerTrigger", 1)
        query = (
            rows.json(str(events))
            .writeStream.format("held")
            .options(store=job.coordinator.store.uri, job="job", operator="op", keys="id")
            .option("checkpointLocation", str(tmp_path / "ck"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    job.spark.dataSource.register(held_source(reached))
    killer = kill_once_it_is_there(reached)
    with pytest.raises(StreamingQueryException):
        run()
    killer.join(PATIENCE_SECONDS)
    assert [each.checkpoint_id for each in job.coordinator.list()] == [1]
    run()
    assert {row.id: row.value for row in job.read_state().collect()} == {0: 0, 1: 1} | dict.fromkeys(
        range(2, 7), 2
    )
    whole = ["opened", "completed", "committed"]
    kinds = [record.kind for record in job.coordinator.timeline.records()]
    assert kinds == [*whole, "opened", "aborted", *whole, *whole]
    assert nothing_is_left(job.coordinator)


def test_a_killed_worker_is_a_task_that_is_tried_again(job: Job, tmp_path: Path) -> None:
    """A Python worker dies while it has rows: Spark tries its task again, and each row is there once."""
    inside = tmp_path / "inside"

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = not inside.exists()
        for batch in batches:
            yield batch
            if first and batch.num_rows:
                note(inside)
                threading.Event().wait(PATIENCE_SECONDS)

    killer = kill_once_it_is_there(inside)
    rows = job.spark.range(20).selectExpr("id", "id * 2 AS value").coalesce(1)
    job.write_state(rows.mapInArrow(hold, "id BIGINT, value BIGINT"), keys=["id"])
    killer.join(PATIENCE_SECONDS)
    assert inside.exists()
    assert {row.id: row.value for row in job.read_state().collect()} == {n: 2 * n for n in range(20)}


@pytest.mark.dagster
def test_a_jvm_killed_under_a_dagster_run_is_an_ordinary_failure(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a task has rows. The run fails and aborts its attempt; re-executed, it makes one checkpoint."""
    assert spark.version  # the session that the second run finds and uses
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(program.FOLDER, str(tmp_path))
    log = tmp_path / "log"
    with log.open("wb") as output:
        command = [sys.executable, program.__file__, str(tmp_path)]
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        until((tmp_path / "task").exists, process, log)
        os.kill(int((tmp_path / "jvm").read_text()), signal.SIGKILL)
        assert process.wait(PATIENCE_SECONDS) == 3, log.read_text()[-4000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
    with dg.DagsterInstance.get() as instance:
        (run,) = instance.get_runs(dg.RunsFilter(tags={program.TOKEN: "1"}))
        assert run.status is dg.DagsterRunStatus.FAILURE
    assert program.run_day(run.run_id)
    coordinator = CheckpointCoordinator(program.JOB, open_store((tmp_path / "store").as_uri()))
    kinds = [record.kind for record in coordinator.timeline.records()]
    assert kinds == ["opened", "aborted", "opened", "completed", "committed"]
    state = KeyedState.of(coordinator.store, coordinator.get(1).manifest, "totals")
    assert state is not None
    rows = {row["id"]: row["value"] for table in state.tables() for row in table.to_pylist()}
    assert rows == {key: key * 10 for key in range(10)}
    assert nothing_is_left(coordinator)


def until(happened: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.02)


def nothing_is_left(coordinator: CheckpointCoordinator) -> bool:
    """After a clean-up, of attempts that made no checkpoint."""
    coordinator.clean_up()
    complete = {str(each.entry.completed.attempt) for each in coordinator.list()}
    names = [stat.name for stat in coordinator.store.list(f"dstl/{coordinator.job}/attempts/")]
    return all(name.split("/")[3] in complete for name in names)
