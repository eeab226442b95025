"""Executors without the package installed: it comes with the application.

Two executors of a local-cluster run a Python that has Spark and Arrow, and not this package, which reaches
them as a zip. Starting such a cluster takes a while: this is no part of the usual tests.

    python -m pytest -m soak tests/spark/test_cluster.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.soak]

ROOT = Path(__file__).parents[2]

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


@pytest.mark.timeout(600)
def test_a_cluster_gets_the_package_with_the_application(tmp_path: Path) -> None:
    """Write and read by the data source; executors import the zip, and neither Dagster nor Google's."""
    package = tmp_path / "package.zip"
    with zipfile.ZipFile(package, "w") as zipped:
        for path in sorted((ROOT / "dstl_dagster").rglob("*.py")):
            zipped.write(path, path.relative_to(ROOT))
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    (site,) = bare.glob("lib/python*/site-packages")
    # A .pth file in another folder is not processed, so an editable install is not seen.
    (installed,) = (Path(each) for each in sys.path if each.endswith("site-packages"))
    (site / "base.pth").write_text(f"{installed}\n")
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
