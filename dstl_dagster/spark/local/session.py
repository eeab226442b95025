"""A local Spark session whose defaults suit a pipeline, a test or a demo on one machine.

Owns the defaults, and the interpreter and Java of Spark's processes. Does not own a session on a cluster:
there the platform decides, and everything else in this package works on any session.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from zlib import crc32

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.spark.local.java import JavaRuntime, use_java
from dstl_dagster.spark.local.scratch import ScratchFolder, remove_left_behind

logger = logging.getLogger(__name__)

_ARCHIVING_JAVA = 19
"""The oldest that sees for itself whether an archive of classes is there and fits (JDK-8261455)."""
_MOST_ARCHIVES = 3
"""How many are kept, of 200 MB each: environments come and go, and nothing says which of them are gone."""
_PLAIN = re.compile(r"[\w./+@-]+")
"""Spark splits Java's options at spaces, and Java the names of archives at colons."""

_scratch_folders: list[ScratchFolder] = []
"""Of this process's sessions: Spark allows one at a time, but several in succession."""

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


def local_conf(cores: int, scratch_folder: Path, archive_options: Sequence[str] = ()) -> dict[str, str]:
    """The settings of a session on this machine, before the caller's own. Pure.

    `archive_options`: Java's own, for the classes of Spark that the next session need not load again.
    """
    log4j = (scratch_folder / "log4j2.properties").as_uri()
    java = [f"-Dlog4j2.configurationFile={log4j}", *archive_options]
    return {
        "spark.master": f"local[{cores}]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The host name may resolve to an address that does not exist (laptops, containers).
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Spark's default of 200 is for clusters: here a partition costs more than the rows in it.
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        # A time stamp without a zone in a file or a test means the same on every machine.
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(scratch_folder / "local"),
        "spark.sql.warehouse.dir": (scratch_folder / "warehouse").as_uri(),
        # A log level set through Spark would come too late for what it logs while starting.
        "spark.driver.extraJavaOptions": " ".join(java),
    }


def local_session(app_name: str, *, cores: int = 2, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session in this process's own Spark, on `cores` threads; the running one, if there is one.

    `conf` overrides the defaults of `local_conf`. In local mode (also with a `spark.master` such as
    `local[2,3]` in `conf`) Python workers run on this interpreter; for another master the environment
    is left alone. Sets JAVA_HOME (see `java.choose_java`) unless a session is already running.
    `stop_session` ends it and removes its temporary files; so does the exit of the process.

    Raises: InvalidInputError if `cores` is below 1, or if there is no usable Java (kind `not_installed`).
    """
    if cores < 1:
        raise InvalidInputError(f"a local session needs 1 core or more, not {cores}")
    running = running_session()
    if running is not None:
        return running
    runtime = use_java()
    scratch_folder = _new_scratch_folder()
    settings = local_conf(cores, scratch_folder, _archive_options(runtime)) | dict(conf or {})
    is_local = settings["spark.master"].partition("[")[0] == "local"  # not local-cluster: it has executors
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # This interpreter has the package, so workers can be forked with it already imported.
        settings.setdefault("spark.python.daemon.module", "dstl_dagster.spark.local.daemon")
    logger.info("starting Spark", extra={"java": str(runtime.home), "java_version": runtime.version})
    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _archive_options(java: JavaRuntime) -> list[str]:
    """With them a session starts and warms up in half of the time, from the second one on."""
    if int(java.version.partition(".")[0]) < _ARCHIVING_JAVA:
        return []
    archive = _class_archive(java)
    if archive is None:
        return []
    return ["-XX:+AutoCreateSharedArchive", f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off"]


def _class_archive(java: JavaRuntime) -> Path | None:
    """A file in a folder that no other user can change, if there is one. It is of this Java and these
    classes, of which Java compares the places, too.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dstl-dagster"
    places = crc32(f"{java.home} {pyspark.__file__}".encode())
    name = f"java-{java.version}-pyspark-{pyspark.__version__}-{places:08x}.jsa"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        if any(_is_changed_by_others(each) for each in (folder, *folder.parents)):
            return None
        if not (folder / name).exists():
            by_age = sorted(folder.glob("*.jsa"), key=lambda each: each.stat().st_mtime)
            for old in by_age[: 1 - _MOST_ARCHIVES]:
                old.unlink()
    except OSError:
        return None
    return folder / name if _PLAIN.fullmatch(str(folder / name)) else None


def _is_changed_by_others(folder: Path) -> bool:
    """Whether another user may put something into the folder, or something else in its place."""
    status = folder.stat(follow_symlinks=False)
    open_to_others = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
    return status.st_uid not in (0, os.geteuid()) or bool(open_to_others)


def running_session() -> SparkSession | None:
    """A session on the Spark already running in this process, however it was started; `None` if none runs."""
    # Not `getActiveSession`: it is per thread, and another thread may have started Spark.
    return None if SparkContext._active_spark_context is None else SparkSession.builder.getOrCreate()


def stop_session(spark: SparkSession) -> None:
    """Stop Spark in this process and remove its sessions' scratch folders. May be called again."""
    try:
        spark.stop()
    finally:  # a killed JVM cannot be stopped, but it no longer needs its folder
        while _scratch_folders:
            _scratch_folders.pop().remove()


def _new_scratch_folder() -> Path:
    remove_left_behind()
    folder = ScratchFolder()
    (folder.path / "log4j2.properties").write_text(_QUIET_LOG4J, encoding="utf-8")
    _scratch_folders.append(folder)
    return folder.path
