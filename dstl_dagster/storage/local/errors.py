"""The meaning of file system errors to the local store: there is no such file, or nothing is known.

Owns that line, and the error that callers see. Does not own what is done about it.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from dstl_dagster.errors import DstlError, ErrorKind, UnavailableError

# The last two: a symbolic link or a socket, where a file was to be opened.
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO}
_NO_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}

_P = ParamSpec("_P")
_T = TypeVar("_T")


def translate_os_errors(step: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a step so that an OSError (full, read-only, no rights, broken) becomes an UnavailableError."""

    @functools.wraps(step)
    def translated(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return step(*args, **kwargs)
        except DstlError:
            raise
        except OSError as error:
            raise refused(error) from error

    return translated


def refused(error: OSError) -> UnavailableError:
    """The store's error for one of the file system. Its kind is `no_permission` where waiting cannot help."""
    if error.errno in _NO_RIGHTS:
        # Still an UnavailableError: a disk may turn read-only in the middle of a write.
        return UnavailableError(
            f"{_cause(error)}: grant this user the rights to the store's folder, or mount it for writing",
            kind=ErrorKind.NO_PERMISSION,
        )
    advice = "free space there" if error.errno in _FULL else "look at that disk"
    return UnavailableError(f"{_cause(error)}: {advice}")


def _cause(error: OSError) -> str:
    """The file system's message, and the file."""
    where = "" if error.filename is None else f" ({error.filename})"
    return f"{error.strerror or error}{where}"


def is_missing(error: OSError) -> bool:
    """Whether the error says that there is no such file. Any other one says nothing about it."""
    return error.errno in _MISSING


def status_of(path: str | Path) -> os.stat_result | None:
    """The status of what is at this path, a symbolic link itself; `None` if nothing is. Raises: OSError."""
    try:
        return os.lstat(path)
    except OSError as error:
        if is_missing(error):
            return None
        raise
