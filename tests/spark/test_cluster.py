"""Executors without the package installed: it comes with the application.

Two executors of a local-cluster run a Python that has Spark and Arrow, and not this package, which reaches
them as a zip. Starting such a cluster takes a while: the usual tests have the same for the Python workers of
the session that is there anyway.

    python -m pytest -m soak tests/spark/test_cluster.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dstl_dagster.spark import register

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


def zipped_package(folder: Path) -> Path:
    package = folder / "package.zip"
    with zipfile.ZipFile(package, "w") as zipped:
        for path in sorted((ROOT / "dstl_dagster").rglob("*.py")):
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
