"""A folder that serves as JAVA_HOME for a Java without a module that Spark asks for.

Owns the folder's location and content. Does not own the choice of a Java (`java`).

Spark starts every JVM with `--add-modules=jdk.incubator.vector`. A runtime linked without this module
refuses to start, although Spark works without it. The folder's `bin/java` drops this one argument and
execs the real Java.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path

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


def make_launcher(java: Path) -> Path:
    """A JAVA_HOME whose `bin/java` starts `java`: a temporary folder of this process, gone at its exit.

    The same for the same `java`. Raises: OSError.
    """
    return _made(java, os.getpid())


@functools.cache
def _made(java: Path, _process_id: int) -> Path:
    home = Path(tempfile.mkdtemp(prefix="dstl-java-"))
    # Not `atexit`: children of multiprocessing, such as an orchestrator's steps, do not run it.
    Finalize(None, shutil.rmtree, args=(home, True), exitpriority=0)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    script = _SCRIPT.format(argument=shlex.quote(VECTOR_MODULE_ARGUMENT), java=shlex.quote(str(java)))
    launcher.write_text(script, encoding="utf-8")
    launcher.chmod(0o700)
    return home
