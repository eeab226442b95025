"""The Python of Spark's executors, asked whether it has what tasks import.

Owns the question, once for each Spark, and the sentence about an answer that will not do: otherwise four
tries of a task fail with a traceback that names a module. Does not own the tasks.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import dstl_dagster
from dstl_dagster.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OTHER_PYTHON: Final = re.compile(r"PYTHON_VERSION_MISMATCH\D*(\d+\.\d+)")
_NO_PYTHON: Final = re.compile(r"Cannot run program.*")
_asked: WeakSet[Any] = WeakSet()


def require_package(spark: SparkSession) -> None:
    """Pass if executors can run this package's tasks; later calls of the same Spark pass at once.

    Runs one task, on one executor, unless executors have this driver's own Python; by Connect once a session.

    Raises: InvalidInputError (kind `not_installed`).
    """
    context = getattr(spark, "_sc", None)
    asked = spark if context is None else context
    if asked in _asked:
        return
    is_own = (
        context is not None
        and context.master.partition("[")[0] == "local"
        and context.pythonExec == sys.executable
    )
    answer = "" if is_own else _answer(spark, "" if context is None else f" at {context.pythonExec}")
    if answer:
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        when, whose = "before its session begins", "the driver's"
        if context is None:
            when, whose = "before the Spark Connect server starts", "its"
        raise InvalidInputError(
            f"Spark's executors {answer}: {when}, set {whose} environment variable PYSPARK_PYTHON to a "
            f"Python {own} that every executor has, with dstl-dagster {dstl_dagster.__version__} and its "
            "dependencies (spark.pyspark.python is for spark-submit alone)",
            ErrorKind.NOT_INSTALLED,
        )
    _asked.add(asked)


def _answer(spark: SparkSession, where: str) -> str:
    """What is wrong with the executors' Python; nothing if all is well. `where` it is, if that is known."""
    from pyspark.sql import functions as F

    release = dstl_dagster.__version__

    def missing(_: int) -> str:  # inside of a function, so that it is sent as it is, not by its module's name
        import platform
        import sys

        python = f"run Python {platform.python_version()} at {sys.executable}, which has"
        try:
            import dstl_dagster
            from dstl_dagster.keyed import write_rows  # noqa: F401
        except ImportError as error:
            return f"{python} no module {error.name!r}"
        found = dstl_dagster.__version__
        return "" if found == release else f"{python} dstl-dagster {found}, and this driver {release}"

    asked = F.udf(missing, "string", useArrow=False)  # Arrow may be what is missing
    try:
        ((answer,),) = spark.range(1).select(asked("id")).collect()
    except Exception as error:
        other, none = _OTHER_PYTHON.search(str(error)), _NO_PYTHON.search(str(error))
        if other is not None:
            return f"run Python {other[1]}{where}, and this driver another"
        if none is not None:
            return f"have no Python{where}"
        raise
    return str(answer)
