"""What a client of Spark Connect imports: `pyspark-client` has no JVM's names, and no py4j."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import pyspark, pyspark.sql.functions, pyspark.sql.types, pyspark.sql.datasource
for name in ("SparkContext", "Accumulator", "SparkConf", "RDD"):
    delattr(pyspark, name)
sys.modules.update(dict.fromkeys(["py4j.protocol", "py4j.java_gateway", "pyspark.accumulators"]))

import dstl_dagster.spark as spark
of_this_process = {"local_session", "running_session", "stop_session"}
for name in spark.__all__:
    if name not in of_this_process:
        getattr(spark, name)

from types import SimpleNamespace
from dstl_dagster.spark.stores import read_cost_of
assert read_cost_of(SimpleNamespace()) is None
"""


def test_all_that_a_client_needs_is_imported_without_a_jvm() -> None:
    """But for the sessions that are a Spark of this process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
