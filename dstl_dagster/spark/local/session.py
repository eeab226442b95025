"""A local Spark session whose defaults serve a pipeline, a test or a demo on one machine.

Owns the defaults and the interpreter and Java that Spark's processes run on. Does not own a session on a
cluster: there the platform decides, and everything else in this package works on any session.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.spark.local.java import use_java
from dstl_dagster.spark.local.scratch import ScratchFolder, remove_left_behind

__all__ = ["local_conf", "local_session", "running_session", "stop_session"]

logger = logging.getLogger(__name__)
_scratch_folders: list[ScratchFolder] = []
"""Of this process's sessions: Spark allows one at a time, and others may follow it."""

_QUIET_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


def local_conf(cores: int, scratch_folder: Path) -> dict[str, str]:
    """The settings of a session on this machine, before the caller's own. Pure."""
    log4j = (scratch_folder / "log4j2.properties").as_uri()
    return {
        "spark.master": f"local[{cores}]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The name of the machine may resolve to an address that is not there (laptops, containers).
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Spark's 200 is for clusters: here each one costs more than the rows in it.
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        # A time stamp without a zone in a file or a test means the same on every machine.
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(scratch_folder / "local"),
        "spark.sql.warehouse.dir": (scratch_folder / "warehouse").as_uri(),
        # Settings alone cannot quiet what is logged before they are read.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j}",
    }


def local_session(app_name: str, *, cores: int = 2, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session in this process's own Spark, on `cores` threads; the running one, if there is one.

    `conf` stands above the defaults of `local_conf`. In local mode (also with a `spark.master` such as
    `local[2,3]` in `conf`), Python workers run on this interpreter; for another master the environment
    is left as it is. Sets JAVA_HOME (see `java.choose_java`) unless a session is running already.
    End it with `stop_session`, which removes its temporary files too; the process's end does so as well.

    Raises: InvalidInputError where `cores` is below 1, or no usable Java is found (kind `no_java`).
    """
    if cores < 1:
        raise InvalidInputError(f"a local session needs 1 core or more, not {cores}")
    running = running_session()
    if running is not None:
        return running
    runtime = use_java()
    scratch_folder = _new_scratch_folder()
    settings = local_conf(cores, scratch_folder) | dict(conf or {})
    if settings["spark.master"].partition("[")[0] == "local":  # a local-cluster has executors of its own
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    logger.info("starting Spark", extra={"java": str(runtime.home), "java_version": runtime.version})
    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def running_session() -> SparkSession | None:
    """A session on the Spark that this process runs already, whoever started it; `None`: none runs."""
    # Not `getActiveSession`: that is of the calling thread, and another one may have started Spark.
    return None if SparkContext._active_spark_context is None else SparkSession.builder.getOrCreate()


def stop_session(spark: SparkSession) -> None:
    """Stop Spark in this process and remove the folders of its sessions. May be called again."""
    try:
        spark.stop()
    finally:  # a JVM that was killed cannot be stopped, and needs its folder no more
        while _scratch_folders:
            _scratch_folders.pop().remove()


def _new_scratch_folder() -> Path:
    remove_left_behind()
    folder = ScratchFolder()
    (folder.path / "log4j2.properties").write_text(_QUIET_LOG4J, encoding="utf-8")
    _scratch_folders.append(folder)
    return folder.path
