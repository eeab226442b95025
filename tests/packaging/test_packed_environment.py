"""The packed environment of docs/install.md: executors without anything installed run a batch with it.

The long form: it installs from an index, and starts a cluster's processes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import dstl_dagster as dstl
from dstl_dagster.spark.local.java import use_java

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
JOB = """
import sys
from pyspark.sql import SparkSession
from dstl_dagster import open_batch

def interpreter(_):
    import dstl_dagster
    yield sys.executable + " " + dstl_dagster.__file__

spark = SparkSession.builder.getOrCreate()
with open_batch(sys.argv[1], "packed", idempotency_key="day") as batch:
    batch.write_state(spark.range(0, 1000, 1, 4), operator="ids", keys=["id"])
print("task", *spark.sparkContext.parallelize([0], 1).mapPartitions(interpreter).collect())
spark.stop()
"""


def test_tasks_run_in_the_packed_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both lines of the page, with this checkout's package and a cluster on this machine."""
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    pack, submit = re.findall(r"^(?:python -m venv|PYSPARK_PYTHON=).*$", page, re.MULTILINE)
    pack = pack.replace("python -m", f"{sys.executable} -m", 1).replace("'.[gcs]'", f"'{ROOT}[gcs]'")
    use_java()
    home = Path(pyspark.__file__).parent
    monkeypatch.delenv("PYTHONPATH", raising=False)  # local executors would have it too
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setenv("SPARK_WORKER_DIR", str(tmp_path / "work"))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    store = (tmp_path / "store").as_uri()
    cluster = "spark-submit --master 'local-cluster[1,1,1024]' --conf spark.ui.enabled=false"
    submit = submit.replace("spark-submit", cluster, 1).replace("job.py", f"job.py {store}")
    done = None
    for line in (pack, submit):
        done = subprocess.run(
            ["bash", "-euc", line], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done is not None
    (task,) = re.findall(r"^task (.*)$", done.stdout, re.MULTILINE)
    assert [re.search(r"/env/(?:bin|lib)/", each) is not None for each in task.split()] == [True, True]
    assert dstl.read_state(store, "packed", "ids").to_arrow().num_rows == 1000
