"""A folder that serves as JAVA_HOME for a Java that lacks a module which Spark asks for.

Owns the folder's location and content. Does not own the choice of a Java (`java`).

Spark starts every JVM with `--add-modules=jdk.incubator.vector`. A runtime linked without this module
refuses to start, although Spark works without it. The folder's `bin/java` drops this one argument and
execs the real Java.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dstl_dagster.errors import ErrorKind, UnavailableError
from dstl_dagster.spark.local.cache_folder import cache_folders

__all__ = ["VECTOR_MODULE_ARGUMENT", "make_launcher"]

VECTOR_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"

_SCRIPT = """\
#!/bin/sh
# Starts a Java that has no module jdk.incubator.vector, without the argument that asks for it.
for argument do
  shift
  [ "$argument" = {argument} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def make_launcher(java: Path, environ: Mapping[str, str]) -> Path:
    """A JAVA_HOME whose `bin/java` starts `java`; created once for the same `java`.

    It is in the user's cache folder or, if that is not writable, in the user's own folder below the one for
    temporary files. Several processes may create it at the same time.

    Raises: UnavailableError if neither place is writable.
    """
    script = _SCRIPT.format(argument=shlex.quote(VECTOR_MODULE_ARGUMENT), java=shlex.quote(str(java)))
    reasons = []
    for home in cache_folders(environ, "java-launcher", script):
        try:
            _write_launcher(home / "bin" / "java", script)
        except OSError as error:
            reasons.append(f"{home}: {error.strerror or error}")
            continue
        return home
    raise UnavailableError(
        f"no writable place for a launcher of {java} ({'; '.join(reasons)}). Set XDG_CACHE_HOME to a "
        "writable folder",
        kind=ErrorKind.NO_CACHE_FOLDER,
    )


def _write_launcher(launcher: Path, script: str) -> None:
    with contextlib.suppress(OSError):
        if launcher.read_text("utf-8") == script and os.access(launcher, os.X_OK):
            return
    launcher.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=launcher.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(script)
        Path(temporary).chmod(0o755)
        # One rename of a closed, executable file: another process sees no launcher or a whole one.
        Path(temporary).replace(launcher)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
