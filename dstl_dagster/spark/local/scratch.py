"""The folder in which a local session keeps what only it needs: shuffle files, its logging settings.

Owns the folder's life: made with the session, removed when the session stops or its process ends, and by
a later session where the process was killed. Does not own what Spark writes into it (`session`).

Why removing another's folder is safe. Its process holds a lock on a file in it, which the kernel frees when
that process is gone, whatever way it ended; a process id alone may be somebody else's by now, or of another
container that shares the folder of temporary files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path

__all__ = ["ScratchFolder", "remove_left_behind"]

_PREFIX = "dstl-spark-"
_OWNER = "owner.lock"


class ScratchFolder:
    """A new folder below the one for temporary files, this process's own until `remove`. One thread."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = os.open(self.path / _OWNER, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Only a file with something in it says that its process had the lock: nobody judges before.
        os.write(self._lock, str(os.getpid()).encode())
        # Not `atexit`: processes that multiprocessing starts, such as an orchestrator's steps, do not run it.
        self._at_exit = Finalize(self, _remove, args=(self.path, self._lock), exitpriority=0)

    def remove(self) -> None:
        """Delete it with all that is in it. May be called again."""
        self._at_exit()


def remove_left_behind() -> list[Path]:
    """Delete the folders whose processes were killed; gives those that are gone now."""
    removed = []
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, another user's, or removed by somebody else meanwhile
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
