"""docs/how-to: the driver of driver-elsewhere.md under a real spark-submit, the client of spark-connect.md on
a real Connect server.

The client is another process: a session of Spark Connect and one of Spark itself exclude each other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyspark
import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.spark.local.java import use_java
from dstl_dagster.storage import open_store
from tests.docs.pages import ROOT, blocks
from tests.sessions import QUICK

pytestmark = [pytest.mark.spark, pytest.mark.dagster, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "how-to" / "driver-elsewhere.md"
CONNECT = PAGE.with_name("spark-connect.md")
PATIENCE_SECONDS = 300.0
LEAN = QUICK | {
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.authenticate.socketTimeout": "120s",
}
SUBMIT = ["--master", "local[2]", *(part for each in LEAN.items() for part in ("--conf", "=".join(each)))]
BY_HAND = """
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.spark import CheckpointBatch, checkpointed_batches
from dstl_dagster.storage import open_store

told = []
coordinator = CheckpointCoordinator("by-hand", open_store(STORE))
with CheckpointBatch(coordinator, progress=lambda *counts: told.append(counts)) as batch:
    rows = spark.sql("SELECT * FROM VALUES ('a', 1L), ('b', 2L) AS t(k, v)")
    batch.write_state(rows, operator="op", keys=["k"])
    try:
        batch.merge_state(rows, operator="s", keys=["k"], schema="k STRING, v INT", update={"v": "new.nope"})
    except InvalidInputError as error:
        assert "'s': update of column 'v'" in str(error), error
    else:
        raise AssertionError("a rule of a column that is not there was not refused")
assert not told or told[-1][0] == told[-1][1], told  # the server tells of what takes long
try:
    checkpointed_batches(print, store=STORE, job="stream")
except InvalidInputError:
    pass
else:
    raise AssertionError("foreachBatch without a query's name was not refused")
"""
FOREACH_BATCH = """
import json
from pathlib import Path

FOLDER = Path(STORE.removeprefix("file://")).parent
(FOLDER / "events").mkdir()


def arrive(number):
    (FOLDER / "events" / f"{number}.json").write_text(json.dumps({"id": number, "value": number}))


def run(dies=False, name="followed", folder="ck"):
    told = FOLDER / "told"

    def update(batch, rows):
        batch.write_state(rows, operator="op", keys=["id"])
        batch.write_files(rows, f"rows/{batch.attempt.checkpoint_id}.jsonl")
        with told.open("a") as log:
            log.write("x")
        if dies:
            raise RuntimeError("dies with everything written")

    rows = spark.readStream.schema("id BIGINT, value BIGINT").option("maxFilesPerTrigger", 1)
    each = checkpointed_batches(update, store=STORE, job="stream", query_name="followed")
    query = (
        rows.json(str(FOLDER / "events")).writeStream.foreachBatch(each).queryName(name)
        .option("checkpointLocation", str(FOLDER / folder)).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    return query.id


arrive(1)
query = run()
arrive(2)
for how, said in (
    ({"dies": True}, "dies with everything written"),
    ({"name": "another"}, "no query named 'followed'"),
):
    try:
        run(**how)
    except Exception as error:
        assert said in str(error), error
    else:
        raise AssertionError(f"{how} went on")
arrive(3)
run()
coordinator = CheckpointCoordinator("stream", open_store(STORE))
positions = [each.positions["spark query"] for each in coordinator.list()]
assert positions == [{"query_id": query, "batch_id": number} for number in range(3)], positions
assert (FOLDER / "told").read_text() == "x" * 4  # one of them died
found = coordinator.read_state("op").to_arrow().to_pylist()
assert sorted((row["id"], row["value"]) for row in found) == [(1, 1), (2, 2), (3, 3)]
assert [json.loads(coordinator.store.get(f"rows/{n}.jsonl"))["id"] for n in (1, 2, 3)] == [1, 2, 3]
try:
    run(folder="deleted")  # another query, whatever its name: not taken for what was applied
except Exception as error:
    assert "the job is at batch 2 of query" in str(error), error
else:
    raise AssertionError("another query went on")
"""


ERRORS = """
from dstl_dagster import errors
from dstl_dagster.spark import register

register(spark)
classes = [each for each in vars(errors).values() if isinstance(each, type)]
for name in [each.__name__ for each in classes if issubclass(each, errors.DstlError)]:

    def fails(batches, name=name):
        from dstl_dagster import errors

        raise getattr(errors, name)("what happened:\\nand what to do", "own_kind")
        yield

    try:
        spark.range(1).mapInArrow(fails, "id BIGINT").collect()
    except errors.DstlError as error:
        assert (type(error).__name__, error.kind) == (name, "own_kind"), error
        assert error.message == "what happened:\\nand what to do", error
    else:
        raise AssertionError(f"{name} was lost")
try:
    spark.read.format("dstl").options(store=STORE, job="none", operator="op").load().schema
except errors.NotFoundError as error:
    assert error.kind == "no_checkpoint", error
else:
    raise AssertionError("a job that is not there was read")
twice = spark.range(4).selectExpr("id % 2 AS id").coalesce(1).write.format("dstl").mode("append")
twice = twice.options(store=STORE, job="twice", operator="op", keys="id", idempotency_key="monday")
try:
    twice.save()
except errors.InvalidInputError as error:
    assert error.kind == "duplicate_key", error
else:
    raise AssertionError("a key was written twice")
"""


def python_blocks(page: Path) -> list[str]:
    return [text for language, text, passed_over in blocks(page) if language == "python" and not passed_over]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark that is installed, and this interpreter for all of its Python."""
    use_java()
    home = Path(pyspark.__file__).parent
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.mark.filterwarnings("ignore:Function `PipesMessageReader:Warning")  # of Dagster's own
@pytest.mark.usefixtures("environment")
def test_the_driver_is_submitted_and_dagster_completes_its_batch(tmp_path: Path) -> None:
    """One day by spark-submit; the day again launches nothing. What it holds is read without Spark."""
    driver, definitions = python_blocks(PAGE)
    (tmp_path / "orders.py").write_text(driver)
    names: dict[str, Any] = {
        "__name__": "page",
        "STORE": (tmp_path / "store").as_uri(),
        "SUBMIT": SUBMIT,
        "DRIVER": str(tmp_path / "orders.py"),
    }
    exec(compile(definitions, PAGE.name, "exec", dont_inherit=True), names)
    job = names["defs"].resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        assert job.execute_in_process(instance=instance, partition_key="2024-01-01").success
        names["DRIVER"] = "nothing.py"  # it would fail
        assert job.execute_in_process(instance=instance, partition_key="2024-01-01").success
    coordinator = CheckpointCoordinator("orders", open_store(names["STORE"]))
    (done,) = coordinator.list()
    assert (done.positions, done.committed) == ({"inbox": "2024-01-02T00:00:00+00:00"}, True)
    assert done.manifest.persist_seconds > 0
    rows = coordinator.read_state("totals").to_arrow().to_pylist()
    assert rows == [{"customer": "ada", "total": 5}]
    report = coordinator.store.get("reports/2024-01-01.jsonl")
    assert report == b'{"customer":"ada","amount":5}\n'


@contextlib.contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Its address. It is another process, as is each of its Python workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    binding = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
    }
    conf = [part for each in binding.items() for part in ("--conf", "=".join(each))]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = ["spark-submit", *SUBMIT, *conf, "--class", server, "spark-internal"]
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, start_new_session=True)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _answers(port):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.mark.soak  # a server of its own: half a minute of two cores
@pytest.mark.usefixtures("environment")
def test_the_client_writes_merges_and_reads_by_spark_connect(tmp_path: Path) -> None:
    """The page's programs, then what its table promises: by hand with progress; `foreachBatch` by the query's
    name, which dies in a micro-batch, goes on, and is not taken for another query; and each class of error.
    """
    if not os.environ.get("CI"):
        pytest.importorskip("zstandard", reason="pyspark[connect] is not installed")
    imports = "import dagster as dg\nimport dstl_dagster as dstl\n"
    program = tmp_path / "client.py"
    with connect_server(tmp_path) as server:
        places = f"STORE = {(tmp_path / 'store').as_uri()!r}\nSERVER = {server!r}\n"
        program.write_text(
            "\n".join([imports, places, *python_blocks(CONNECT), BY_HAND, FOREACH_BATCH, ERRORS])
        )
        done = subprocess.run(
            [sys.executable, str(program)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-6000:]
    coordinator = CheckpointCoordinator("visits", open_store((tmp_path / "store").as_uri()))
    assert [each.checkpoint_id for each in coordinator.list()] == [1, 2]
    assert coordinator.verify().ok
