"""Errors of this package on their way from Spark's Python processes to the driver.

Owns both ways there. Does not own an outcome's form (`dataframes.outcomes`, `sink.messages`).

* A task that writes returns an outcome. An error that another try would meet again is one, and the task ends
  well, since Spark repeats every task that fails: `refusal`, `raise_refusal`.
* Of everything else Spark takes the traceback's text alone, where the driver finds class, message and, in the
  note below, the kind. Spark has no hook for that, so `raise_as_raised` puts one where PySpark makes its own
  exception of a Java one or of an answer of Spark Connect. A task that reads goes this way, and Spark repeats
  it as often as it is configured to.

Imports pyspark on the driver alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import ModuleType
from typing import Any, Final

from dstl_dagster.errors import DstlError, ErrorKind

_REFUSED: Final = "refused"
_IN_TRACEBACK: Final = re.compile(
    r"\bdstl_dagster(?:\.\w+)+\.(\w+)(?:: (.*\n(?:.*\n)*?)|\n)kind: (\w+)$", re.MULTILINE
)


def refusal(error: DstlError) -> dict[str, Any]:
    """The outcome of a task that met an error which another try of it would meet again.

    Raises: the error itself if another try may do better.
    """
    if error.is_transient:
        raise error
    return {_REFUSED: [type(error).__name__, error.message, error.kind]}


def raise_refusal(outcomes: Iterable[Mapping[str, Any]]) -> None:
    """Pass if no task refused its work. Raises: the error of the first that did."""
    for outcome in outcomes:
        if _REFUSED in outcome:
            raise _error(*outcome[_REFUSED])


def error_in(text: str) -> DstlError | None:
    """The last error of this package in a traceback; `None` if it has none."""
    found = _IN_TRACEBACK.findall(text)
    if not found:
        return None
    name, message, kind = found[-1]
    return _error(name, message.removesuffix("\n"), kind)


def raise_as_raised() -> None:
    """From now on PySpark raises an error of this package as itself on this driver. Idempotent."""
    from pyspark.sql.utils import is_remote

    converting: ModuleType
    if is_remote():
        from pyspark.sql.connect.client import core as converting
    else:
        from pyspark.errors.exceptions import captured as converting
    convert: Callable[..., BaseException] = vars(converting)["convert_exception"]
    if hasattr(convert, "__wrapped__"):
        return

    @wraps(convert)
    def converted(*args: Any, **how: Any) -> BaseException:
        theirs = convert(*args, **how)
        ours = error_in(str(theirs))
        return theirs if ours is None else ours.with_traceback(theirs.__traceback__)

    vars(converting)["convert_exception"] = converted


def said_by_spark(error: Exception) -> str:
    """What an error of Spark's says first, on one line."""
    return " ".join(str(error).partition("SQLSTATE")[0].split())


def _error(name: str, message: str, kind: str) -> DstlError:
    return _classes(DstlError).get(name, DstlError)(message, ErrorKind(kind))


def _classes(root: type[DstlError]) -> dict[str, type[DstlError]]:
    return {root.__name__: root} | {
        name: each for below in root.__subclasses__() for name, each in _classes(below).items()
    }
