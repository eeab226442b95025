"""Java's archive of Spark's classes, which local sessions map where there is one.

Owns the archive's place, when a JVM gets it, and its dump. Does not own what a session does meanwhile, and so
which classes it takes (`archiving`).

Half of the processor time of a short session goes into loading Spark's classes. A JVM can keep them as it has
them in memory. It checks an archive against itself and its class path, and passes over one that does not fit;
but one that is damaged may end it, so each launch compares the files with their checksums.

Source: Java's dynamic application class-data sharing (JEP 350).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Final

import google_crc32c

from dstl_dagster.errors import ErrorKind, UnavailableError
from dstl_dagster.spark.local.cache_folder import cache_folders
from dstl_dagster.spark.local.java import JavaRuntime
from dstl_dagster.spark.local.launch_variable import launch_variable

__all__ = ["ArchiveWriter", "archive_folders", "class_archive_set"]

logger = logging.getLogger(__name__)

_VARIABLE: Final = "SPARK_SUBMIT_OPTS"
_JAVA, _SPARK, _SUMS = "java.jsa", "spark.jsa", "crc32c"
_LOCK, _WRITING = "lock", ".writing-"
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""A Java that passes an archive over need not say so: the session works without."""

_SHARING: Final = ("SharedArchiveFile", "ArchiveClassesAtExit", "AutoCreateSharedArchive", "-Xshare")
"""Whoever gives one of these has an archive of his own in mind."""

_UNSPEAKABLE: Final = frozenset(':"\\')
"""Java separates archives by a colon; Spark splits options at spaces, but for what is in quotes."""

_READERS: Final = (_VARIABLE, "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
_SETTINGS: Final = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
_DUMP_SECONDS: Final = 120.0


def archive_folders(environ: Mapping[str, str], java: JavaRuntime, spark: str) -> Iterator[Path]:
    """Where an archive of this Java and this Spark may be, the best place first.

    `spark`: what tells one Spark from another.
    """
    for folder in cache_folders(environ, "class-archive", f"{java.home}\n{java.version}\n{spark}"):
        if not _UNSPEAKABLE & set(str(folder)):
            yield folder


@contextlib.contextmanager
def class_archive_set(
    environ: MutableMapping[str, str], settings: Mapping[str, str], java: JavaRuntime, spark: str
) -> Iterator[None]:
    """Have a JVM that is launched in the block map the archive if there is one, and none was chosen."""
    given = [environ.get(each, "") for each in _READERS] + [settings.get(each, "") for each in _SETTINGS]
    chosen = any(option in text for option in _SHARING for text in given)
    found = None if chosen else _whole(archive_folders(environ, java, spark))
    if found is None:
        yield
        return
    logger.info("Spark's classes are archived", extra={"class_archive": str(found)})
    own = f'"-XX:SharedArchiveFile={found / _JAVA}:{found / _SPARK}" -Xshare:auto {_QUIET}'
    before = environ.get(_VARIABLE)
    with launch_variable(environ, _VARIABLE, own if before is None else f"{own} {before}"):
        yield


def _whole(folders: Iterator[Path]) -> Path | None:
    """The first that has an archive, if that is as it was published."""
    found = next((each for each in folders if (each / _SUMS).exists()), None)
    if found is not None and _sums(found) != _sums_of(found, _JAVA, _SPARK):
        logger.warning("the archive of Spark's classes in %s is damaged: dstl spark archive-classes", found)
        return None
    return found


class ArchiveWriter:
    """Writes the archive of one Java and Spark; a context manager. One thread.

    In the block a JVM is run with `java_options` to its exit, and then `publish` called. An archive that is
    there already stays until then, and JVMs that have mapped it keep it.

    Raises: UnavailableError if no folder can be written, if another process is writing it, or if this Java
        dumps no archive.
    """

    def __init__(self, environ: Mapping[str, str], java: JavaRuntime, spark: str) -> None:
        self._java = java
        self._folders = archive_folders(environ, java, spark)
        self._held = contextlib.ExitStack()

    def __enter__(self) -> ArchiveWriter:
        with contextlib.ExitStack() as held:
            self._folder = held.enter_context(_locked_folder(self._folders))
            scratch = tempfile.TemporaryDirectory(
                dir=self._folder, prefix=_WRITING, ignore_cleanup_errors=True
            )
            self._scratch = Path(held.enter_context(scratch))
            self._dump_java()
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def java_options(self) -> str:
        """For the JVM whose classes are archived, at its exit."""
        java, spark = self._folder / _JAVA, self._scratch / _SPARK
        return f'"-XX:SharedArchiveFile={java}" "-XX:ArchiveClassesAtExit={spark}" {_QUIET}'

    def publish(self) -> Path:
        """The archive's folder, once the archive is there. Raises: UnavailableError if the JVM wrote none."""
        if not (self._scratch / _SPARK).exists():
            (self._folder / _SUMS).unlink(missing_ok=True)  # perhaps for Java's sake: it is dumped anew then
            raise _refused(self._java, "it wrote none at its exit")
        self._put(_SPARK)
        (self._scratch / _SUMS).write_text("\n".join(_sums_of(self._folder, _JAVA, _SPARK)))
        self._put(_SUMS)
        return self._folder

    def _put(self, name: str) -> None:
        with (self._scratch / name).open("rb") as file:
            os.fsync(file.fileno())  # a JVM maps it unread: it must never see a part
        (self._scratch / name).replace(self._folder / name)

    def _dump_java(self) -> None:
        """Of Java's own classes: that of Spark's builds on it, and not every Java comes with one.

        Once for a Java, and at its place: the other one has its path.
        """
        if _sums(self._folder)[:1] == _sums_of(self._folder, _JAVA):
            return
        options = ["-Xshare:dump", f"-XX:SharedArchiveFile={self._scratch / _JAVA}"]
        command = [str(self._java.home / "bin" / "java"), *options]
        try:
            done = subprocess.run(  # noqa: S603 - the Java that was chosen; no shell
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_DUMP_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _refused(self._java, str(error)) from error
        if done.returncode != 0 or not (self._scratch / _JAVA).exists():
            said = (done.stdout + done.stderr).decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise _refused(self._java, f"`-Xshare:dump` exited with {done.returncode}: {said[:200]}")
        self._put(_JAVA)


def _sums(folder: Path) -> list[str]:
    """Of the archive in the folder, as it was published; empty if none was."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (folder / _SUMS).read_text("utf-8").split()
    return []


def _sums_of(folder: Path, *names: str) -> list[str]:
    """Of these files as they are: 0.1 ms a megabyte."""
    found = []
    for name in names:
        crc = 0
        with contextlib.suppress(OSError), (folder / name).open("rb") as file:
            while piece := file.read(1 << 20):
                crc = google_crc32c.extend(crc, piece)
        found.append(f"{crc:08x}")
    return found


def _refused(java: JavaRuntime, why: str) -> UnavailableError:
    return UnavailableError(
        f"Java {java.version} at {java.home} archives no classes ({why}); sessions start without an archive. "
        "Set JAVA_HOME to another Java to try that"
    )


@contextlib.contextmanager
def _locked_folder(folders: Iterator[Path]) -> Iterator[Path]:
    """The first that can be written, for this process alone."""
    reasons = []
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror or error}")
            continue
        with contextlib.closing(os.fdopen(lock, "wb")):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UnavailableError(
                    f"another process is writing {folder}; wait for it", kind=ErrorKind.BUSY
                ) from error
            for left in folder.glob(f"{_WRITING}*"):  # its writer was killed, or it would have the lock
                shutil.rmtree(left, ignore_errors=True)
            yield folder
        return
    raise UnavailableError(
        f"no place for an archive of classes ({'; '.join(reasons)}). Set XDG_CACHE_HOME to a writable "
        "folder without a colon or quote in its path",
        kind=ErrorKind.NO_CACHE_FOLDER,
    )
