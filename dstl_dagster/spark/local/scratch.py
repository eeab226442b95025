"""The scratch folder of a local session: shuffle files, logging settings.

Owns the folder's life: created with the session, removed when the session stops or its process exits, and by
a later session if the process was killed. Does not own what Spark writes into it (`session`).

Why removing another process's folder is safe: that process holds a lock on a file in it, which the kernel
releases when the process is gone, however it ended. A process id alone may have been reused, or belong to
another container that shares the folder for temporary files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path

_PREFIX = "dstl-spark-"
_OWNER = "owner.lock"


class ScratchFolder:
    """A new folder below the one for temporary files, this process's own until `remove`. One thread."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = os.open(self.path / _OWNER, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Written only under the lock: an empty file means that its process may not have the lock yet.
        os.write(self._lock, str(os.getpid()).encode())
        # Not `atexit`: children of multiprocessing, such as an orchestrator's steps, do not run it.
        self._at_exit = Finalize(self, _remove, args=(self.path, self._lock), exitpriority=0)

    def remove(self) -> None:
        """Delete the folder and its content. May be called again."""
        self._at_exit()


def remove_left_behind() -> list[Path]:
    """Delete the folders whose processes were killed; returns those that it deleted."""
    removed = []
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, another user's, or already removed
            owner = os.open(folder / _OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(owner).st_size == 0:
                    continue
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                removed.append(folder)
            finally:
                os.close(owner)
    return removed


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
