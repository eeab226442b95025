"""The one Spark of a test process, whichever folder its tests are in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two threads that gives a task three tries."""
    from dstl_dagster.spark import local_session, stop_session  # PySpark: not for tests that need none

    conf = {
        "spark.master": "local[2,3]",
        "spark.driver.memory": "1g",
        # For a few rows, code generation costs more than it saves.
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    session = local_session("tests", conf=conf)
    yield session
    stop_session(session)
