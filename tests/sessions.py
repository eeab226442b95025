"""The one Spark of a test process, whichever folder its tests are in, and the bucket that its tasks know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from dstl_dagster.testing.gcs_server import GCSServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


QUICK = {
    # Spark's classes are verified as they are loaded: a third of what a start costs.
    "spark.driver.defaultJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions "
        "-XX:-BytecodeVerificationRemote"
    ),
    # For a few rows, code generation costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
}
"""For sessions that live for seconds."""


@pytest.fixture(scope="session")
def strict_gcs() -> Iterator[GCSServer]:
    """A server that takes one update of an object a second, as the service does."""
    with GCSServer(one_update_a_second=True) as server:
        yield server


@pytest.fixture(scope="session")
def spark(strict_gcs: GCSServer) -> Iterator[SparkSession]:
    """A session on two threads that gives a task three tries. For its tasks, `gs://` is `strict_gcs`."""
    from dstl_dagster.spark import local_session, stop_session  # PySpark: not for tests that need none

    conf = QUICK | {"spark.master": "local[2,3]", "spark.driver.memory": "1g"}
    with pytest.MonkeyPatch.context() as patch:  # tasks inherit what the JVM is started with
        patch.setenv("STORAGE_EMULATOR_HOST", strict_gcs.url)
        session = local_session("tests", conf=conf)
    yield session
    stop_session(session)
