"""A SPARK_HOME whose Python processes import PySpark as it is installed, and not from Spark's archive.

Owns the folder's location and content, and when a JVM gets it. Does not own the session (`session`).

The JVM puts `$SPARK_HOME/python/lib/pyspark.zip` before everything else on the path of the Python processes
that it starts: a daemon for tasks, and one for each kind of planner of a Python data source. The archive
holds no byte code, so each of them compiles PySpark again, 0.4 s of CPU and more. The folder has all of
Spark but its Python part: the archive is missed there, and the same release is found where this process has
it from (docs/decisions/0092).
"""

from __future__ import annotations

import contextlib
import importlib.util
import sysconfig
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Final

from dstl_dagster.spark.local.cache_folder import cache_folders
from dstl_dagster.spark.local.launch_variable import launch_variable

__all__ = ["home_without_archive", "spark_home_set"]

_VARIABLE: Final = "SPARK_HOME"
_LINKED: Final = ("LICENSE", "RELEASE", "bin", "conf", "data", "examples", "jars", "licenses", "sbin")
"""What Spark may have beside `python`. A link to what is missing does no harm, and finds what comes later."""


@contextlib.contextmanager
def spark_home_set(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Have a JVM that is launched in the block use that folder, where there can be one. Never raises."""
    home = home_without_archive(environ)
    if home is None:
        yield
        return
    with launch_variable(environ, _VARIABLE, str(home)):
        yield


def home_without_archive(environ: Mapping[str, str]) -> Path | None:
    """The folder, created once for a Spark; several processes may create it at the same time.

    `None` where a SPARK_HOME is chosen already, where another process of this interpreter would not find
    PySpark, or where no folder can be written.
    """
    spark = _installed("pyspark")
    if _VARIABLE in environ or spark is None or _installed("py4j") is None:
        return None
    if not (spark / "bin" / "spark-submit").exists():
        return None
    for home in cache_folders(environ, "spark-home", "\n".join([str(spark), *_LINKED])):
        with contextlib.suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            for each in _LINKED:
                _link(home / each, spark / each)
            return home
    return None


def _installed(package: str) -> Path | None:
    """Where every process of this interpreter finds it, whatever else is on its path; `None`: nowhere."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return folder if str(folder.parent) in places else None


def _link(link: Path, target: Path) -> None:
    """Raises: OSError, also if the link is there and leads elsewhere."""
    with contextlib.suppress(FileExistsError):
        link.symlink_to(target)
    if link.readlink() != target:
        raise FileExistsError(f"{link} does not lead to {target}")
