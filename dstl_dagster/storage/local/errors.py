"""The meaning of file system errors to the local store: there is no such file, or nothing is known.

Owns that line, and the error that callers see. Does not own what is done about it.
"""

from __future__ import annotations

import errno
import os
from contextlib import ContextDecorator
from pathlib import Path
from types import TracebackType

from dstl_dagster.errors import DstlError, ErrorKind, UnavailableError

# The last two: a symbolic link or a socket, where a file was to be opened.
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO}
_NO_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}


class _TranslatedErrors(ContextDecorator):
    def __enter__(self) -> None:
        return None

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, DstlError):
            raise _refused(error) from error


translate_os_errors = _TranslatedErrors()
"""A decorator and a context: an OSError (full, read-only, no rights, broken) becomes an UnavailableError."""


def _refused(error: OSError) -> UnavailableError:
    # Its kind is `no_permission` where waiting cannot help.
    where = "" if error.filename is None else f" ({error.filename})"
    cause = f"{error.strerror or error}{where}"
    if error.errno in _NO_RIGHTS:
        # Still an UnavailableError: a disk may turn read-only in the middle of a write.
        return UnavailableError(
            f"{cause}: grant this user the rights to the store's folder, or mount it for writing",
            kind=ErrorKind.NO_PERMISSION,
        )
    advice = "free space there" if error.errno in _FULL else "look at that disk"
    return UnavailableError(f"{cause}: {advice}")


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
