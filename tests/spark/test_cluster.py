"""Executors without the package installed: it comes with the application.

Two executors of a local-cluster run a Python that has Spark and Arrow, and not this package, which reaches
them as a zip. Starting such a cluster takes a while: the usual tests have the same for the Python workers of
the session that is there anyway. A standalone cluster, with a master and workers, loses one of them.

    python -m pytest -m soak tests/spark/test_cluster.py
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

import pyarrow as pa
import pyspark
import pytest

import dstl_dagster
from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.spark import executors, register
from dstl_dagster.spark.local.java import use_java

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
DAEMON_MODULE = "spark.python.daemon.module"

PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import functions as F
from dstl_dagster.spark import by_key_group, local_session, register

folder, package = Path(sys.argv[1]), sys.argv[2]
conf = {"spark.master": "local-cluster[2,1,1024]", "spark.submit.pyFiles": package}
spark = local_session("cluster", conf=conf)
register(spark)
options = {"store": (folder / "store").as_uri(), "job": "job", "operator": "op"}
df = spark.range(1000).selectExpr("id", "id * 2 AS value")
sink = by_key_group(df, ["id"], partitions=4).write.format("dstl").mode("append")
sink.options(**options, keys="id", idempotency_key="x").save()
state = spark.read.format("dstl").options(**options, partitions="4").load()
assert state.agg(F.sum("value")).head()[0] == 999 * 1000
assert state.count() == 1000

def seen(batches):
    import sys
    import pyarrow as pa
    for _ in batches:
        pass
    import dstl_dagster.spark.sink.tasks
    heavy = [name for name in ("dagster", "google.cloud") if name in sys.modules]
    where = dstl_dagster.__file__
    yield pa.record_batch([[f"{where}|{','.join(heavy)}|{sys.prefix}"]], ["seen"])

for row in spark.range(0, 4, 1, 4).mapInArrow(seen, "seen STRING").collect():
    print("SEEN", row.seen)
spark.stop()
"""


ASKING = """
import sys
import dstl_dagster as dstl
from dstl_dagster.errors import DstlError
from dstl_dagster.spark import local_session

spark = local_session("cluster", conf={"spark.master": "local-cluster[1,1,1024]"})
try:
    with dstl.open_batch(sys.argv[1], "job", idempotency_key="monday") as batch:
        batch.write_state(spark.range(10), operator="op", keys=["id"])
except DstlError as error:
    print(error.kind, error.message)
print("JOBS", len(spark.sparkContext.statusTracker().getJobIdsForGroup(None)))
spark.stop()
"""


DAYS = """
import os
import signal
import sys
from pathlib import Path

import dstl_dagster as dstl
from dstl_dagster.spark import register
from pyspark.sql import SparkSession

master, folder, workers = sys.argv[1], Path(sys.argv[2]), {int(each) for each in sys.argv[3:]}
conf = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}
spark = SparkSession.builder.master(master).config(map=conf).getOrCreate()
register(spark)

def parent(process):
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])

def dying(batches):
    yield from batches
    try:
        (folder / "killed").touch(exist_ok=False)
    except FileExistsError:
        return
    above = [parent(os.getpid())]
    while above[-1] not in workers:
        above.append(parent(above[-1]))
    for process in reversed(above):
        os.kill(process, signal.SIGKILL)

for day in range(1, 4):
    flown = spark.range(0, 1000, 1, 8).selectExpr("id % 100 AS tail").groupBy("tail").count()
    rows = flown.toDF("tail", "flights").repartition(4)
    if day == 2:
        rows = rows.mapInArrow(dying, rows.schema)
    with dstl.open_batch((folder / "store").as_uri(), "job", idempotency_key=str(day)) as batch:
        batch.merge_state(
            rows, operator="op", keys=["tail"], schema="tail BIGINT, flights BIGINT",
            update={"flights": "coalesce(old.flights, 0) + new.flights"},
            job_options={"dstl.dfs.compression": "zstd"},  # such a merge is made by tasks
        )
    options = {"store": (folder / "store").as_uri(), "job": "job", "operator": "op"}
    state = spark.read.format("dstl").options(**options).load()
    print("DAY", day, state.count(), sorted({row.flights for row in state.collect()}))
spark.stop()
"""


def zipped_package(folder: Path) -> Path:
    package = folder / "package.zip"
    with zipfile.ZipFile(package, "w") as zipped:
        for path in sorted((ROOT / "dstl_dagster").rglob("*.py*")):
            if path.suffix in (".py", ".pyi"):
                zipped.write(path, path.relative_to(ROOT))
    return package


def site_packages() -> str:
    (installed,) = (each for each in sys.path if each.endswith("site-packages"))
    return installed


def test_workers_get_the_package_with_the_application(
    job: Job, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Planner, tasks and commit of the data source run in a Python that cannot import it but from the zip."""
    package = zipped_package(job.folder.parent)
    bare = job.folder.parent / "python"
    # `-S`: a .pth file is not processed, so an editable install is not seen; `-P`: nor is the folder.
    bare.write_text(f'#!/bin/sh\nPYTHONPATH="{site_packages()}" exec "{sys.executable}" -S -P "$@"\n')
    bare.chmod(0o755)
    context = job.spark.sparkContext
    # A local session's daemon is ours; an executor without the package has Spark's.
    conf = context._jsc.sc().conf()
    daemon = conf.get(DAEMON_MODULE)
    conf.set(DAEMON_MODULE, "pyspark.daemon")
    request.addfinalizer(lambda: conf.set(DAEMON_MODULE, daemon))
    monkeypatch.setattr(context, "pythonExec", str(bare))
    monkeypatch.setattr(context, "_python_includes", list(context._python_includes))
    monkeypatch.setattr(sys, "path", list(sys.path))
    context.addPyFile(str(package))
    register(job.spark)
    options = {"store": job.coordinator.store.uri, "job": "job", "operator": "op"}
    sink = job.spark.range(100).coalesce(1).write.format("dstl").mode("append")
    sink.options(**options, keys="id", idempotency_key="x").save()
    assert job.spark.read.format("dstl").options(**options, partitions="1").load().count() == 100

    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import dstl_dagster.spark.sink.tasks

        heavy = [name for name in ("dagster", "google.cloud") if name in sys.modules]
        for _ in batches:
            yield pa.record_batch([[dstl_dagster.__file__], [",".join(heavy)]], ["place", "heavy"])

    (row,) = job.spark.range(1).coalesce(1).mapInArrow(seen, "place STRING, heavy STRING").collect()
    assert "package.zip" in row.place
    assert row.heavy == ""


@pytest.fixture
def other_python(job: Job, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A path that workers of the session are started from, as if it were new: to be filled by a test."""
    context = job.spark.sparkContext
    conf = context._jsc.sc().conf()
    daemon = conf.get(DAEMON_MODULE)
    conf.set(DAEMON_MODULE, "pyspark.daemon")
    monkeypatch.setattr(executors, "_asked", WeakSet())
    python = job.folder.parent / "other-python"
    monkeypatch.setattr(context, "pythonExec", str(python))
    yield python
    conf.set(DAEMON_MODULE, daemon)


def refused(job: Job) -> str:
    """In one sentence, by whatever comes first; also the second time."""
    said = set()
    for first in (lambda: register(job.spark), lambda: job.write_state(job.spark.range(1), keys=["id"])):
        with pytest.raises(InvalidInputError) as caught:
            first()
        assert caught.value.kind == ErrorKind.NOT_INSTALLED
        said.add(caught.value.message)
    (sentence,) = said
    assert "environment variable PYSPARK_PYTHON" in sentence
    return sentence


def test_executors_without_the_package(job: Job, other_python: Path) -> None:
    """The sentence says which Python it is, and which module it has not."""
    other_python.write_text(f'#!/bin/sh\nPYTHONPATH="{site_packages()}" exec "{sys.executable}" -S -P "$@"\n')
    other_python.chmod(0o755)
    assert f"at {sys.executable}, which has no module 'dstl_dagster'" in refused(job)


def test_executors_with_another_release(
    job: Job, other_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks are other code than the driver's; the sentence says both."""
    other_python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other_python.chmod(0o755)
    monkeypatch.setattr(dstl_dagster, "__version__", "99.0")
    said = refused(job)
    assert re.search(r"which has dstl-dagster \d[\d.a-z]*, and this driver 99.0: ", said)
    assert "with dstl-dagster 99.0 and its dependencies" in said


def test_executors_with_another_python(job: Job, other_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark runs no task there; the sentence says both."""
    other_python.symlink_to(sys.executable)
    monkeypatch.setattr(job.spark.sparkContext, "pythonVer", "3.9")
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"run Python {here} at {other_python}, and this driver another" in refused(job)


def test_executors_without_python(job: Job, other_python: Path) -> None:
    """As where PYSPARK_PYTHON names a file of the driver's machine alone."""
    assert f"have no Python at {other_python}" in refused(job)


@pytest.mark.timeout(120)
@pytest.mark.soak
def test_a_connect_server_is_asked_before_the_first_batch(tmp_path: Path) -> None:
    """Its executors have an empty environment; the sentence says where to set another."""
    pytest.importorskip("zstandard", reason="pyspark[connect] is not installed")
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    program = tmp_path / "program.py"
    program.write_text(
        "from pyspark.sql import SparkSession\n"
        "from dstl_dagster.spark import register\n"
        "register(SparkSession.builder.remote('local[1]').getOrCreate())\n"
    )
    python = str(bare / "bin" / "python")
    done = subprocess.run(
        [sys.executable, str(program)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"at {python}, which has no module" in done.stderr
    assert "before the Spark Connect server starts, set its environment variable" in done.stderr


@pytest.mark.timeout(120)
@pytest.mark.soak
def test_a_cluster_is_asked_before_the_first_batch(tmp_path: Path) -> None:
    """Real executors, and an empty environment: a sentence after one job of Spark, and none of the batch."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    program = tmp_path / "program.py"
    program.write_text(ASKING)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYSPARK_PYTHON"] = str(bare / "bin" / "python")
    done = subprocess.run(
        [sys.executable, str(program), (tmp_path / "store").as_uri()],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    first, last = done.stdout.splitlines()
    assert first.startswith(f"not_installed Spark's executors run Python {sys.version.split()[0]} at {bare}")
    assert "which has no module" in first
    assert last == "JOBS 1"
    assert "Traceback" not in done.stderr


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_cluster_gets_the_package_with_the_application(tmp_path: Path) -> None:
    """Write and read by the data source; executors import the zip, and neither Dagster nor Google's."""
    package = zipped_package(tmp_path)
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    (site,) = bare.glob("lib/python*/site-packages")
    # A .pth file in another folder is not processed, so an editable install is not seen.
    (site / "base.pth").write_text(f"{site_packages()}\n")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PYSPARK_PYTHON": str(bare / "bin" / "python"), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path), str(package)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = [line.removeprefix("SEEN ").split("|") for line in done.stdout.splitlines() if "SEEN" in line]
    assert len(seen) == 4
    for where, heavy, prefix in seen:
        assert "package.zip" in where
        assert heavy == ""
        assert prefix == str(bare)


@contextmanager
def started(java_class: str, *arguments: str, says: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of Spark's, once it has said so; what it says later is read on."""
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    command = [spark_class, f"org.apache.spark.deploy.{java_class}", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        rest = threading.Thread(target=process.stderr.read)
        try:
            line = next((found for each in process.stderr if (found := re.search(says, each))), None)
            assert line is not None, f"{java_class} ended"
            rest.start()
            yield process, line[0]
        finally:
            process.kill()
            if rest.ident is not None:
                rest.join()


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_three_days_on_a_standalone_cluster_that_loses_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master and two workers; one is killed, with its executor, by a task of the second day's batch."""
    program = tmp_path / "program.py"
    program.write_text(DAYS)
    monkeypatch.setenv("JAVA_HOME", str(use_java({}).home))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for each in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(each, sys.executable)
    with ExitStack() as cluster:
        local = ("--host", "127.0.0.1", "--webui-port", "0")
        _, master = cluster.enter_context(
            started("master.Master", *local, "--port", "0", says=r"spark://127\S+\d")
        )
        workers = []
        for name in ("one", "two"):
            place = (*local, "--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / name))
            process, _ = cluster.enter_context(
                started("worker.Worker", *place, master, says="registered with master")
            )
            workers.append(process)
        done = subprocess.run(
            [sys.executable, str(program), master, str(tmp_path), *(str(each.pid) for each in workers)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert [each.poll() for each in workers].count(-signal.SIGKILL) == 1
    assert done.stdout.splitlines() == [f"DAY {day} 100 [{10 * day}]" for day in range(1, 4)]
