"""Locks between threads and processes: of a file, and of names, whose files count their generations.

Owns how long a lock is waited for, the words about its holder, and what becomes of one in a forked child.
Does not own which names an operation locks (`local.writing`, `local.store`).

A lock is the kernel's and dies with its process. It belongs to the open file, which a fork without exec
copies; so a child closes its copies before anything else.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dstl_dagster.clock import SystemClock
from dstl_dagster.concurrency import after_fork
from dstl_dagster.errors import UnavailableError

if TYPE_CHECKING:
    from dstl_dagster.storage.local.files import HiddenFolder

_LOCK_STRIPES = 16
"""Lock files that names share. Few, because creating one costs more than a short wait for another name."""
_FIRST_PAUSE_SECONDS: Final = 0.0002
_MAX_PAUSE_SECONDS: Final = 0.01

_clock: Final = SystemClock()  # others hold their locks in real time, not by the store's clock
_locked: set[int] = set()
"""The descriptors by which this process holds locks."""


def lock(descriptor: int, mode: int, path: str, wait_seconds: float) -> None:
    """Lock an open file, waiting at most `wait_seconds` for others.

    Raises: UnavailableError, which names the file and, if the system says so, the processes that hold it.
    """
    _locked.add(descriptor)
    deadline = _clock.monotonic_seconds() + wait_seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            left = deadline - _clock.monotonic_seconds()
            if left <= 0:
                raise UnavailableError(
                    f"{path} has been locked for {wait_seconds:g} s by {_holders(descriptor)}; "
                    "let it continue or end it, then repeat the call"
                ) from None
        _clock.sleep_seconds(min(pause, left))
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)


def unlock(descriptor: int) -> None:
    """Free the lock, if held, and close the file. Never raises."""
    with suppress(OSError):
        # Explicitly, before the close: that frees nothing while a child has a copy.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    _locked.discard(descriptor)
    with suppress(OSError):
        os.close(descriptor)


def _holders(descriptor: int) -> str:
    """The holders of this file's lock according to `/proc/locks`, for people."""
    inode = os.fstat(descriptor).st_ino
    found = []
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "->" not in words and words[1] == "FLOCK" and int(words[5].rpartition(":")[2]) == inode:
                found.append(_process(int(words[4])))
    return ", ".join(found) or "another process"


def _process(process_id: int) -> str:
    said = f"process {process_id}"
    with suppress(OSError, IndexError):
        proc = Path(f"/proc/{process_id}")
        said += f" ({proc.joinpath('comm').read_text().strip()})"
        state = proc.joinpath("stat").read_text().rpartition(")")[2].split()[0]
        if state in ("T", "t"):
            said += f", which is stopped (`kill -CONT {process_id}` resumes it)"
    return said


def _forget_inherited() -> None:
    # Only copies are closed: the parent's locks stay its own.
    for descriptor in _locked:
        with suppress(OSError):
            os.close(descriptor)
    _locked.clear()


after_fork(_forget_inherited)


class HeldLocks:
    """Locks of names, taken when it is entered and freed when it is left. One thread, once.

    Ascending order over all processes is why no two callers wait for each other. A class, because a generator
    and an exit stack cost more than the locks themselves.
    """

    def __init__(self, hidden: HiddenFolder, exclusive: Iterable[str], shared: Iterable[str]) -> None:
        self._hidden = hidden
        modes = dict.fromkeys(map(_stripe, shared), fcntl.LOCK_SH)
        self._modes = modes | dict.fromkeys(map(_stripe, exclusive), fcntl.LOCK_EX)
        self._descriptors: dict[int, int] = {}

    def __enter__(self) -> HeldLocks:
        try:
            for stripe in sorted(self._modes):
                path = f"{self._hidden.locks_path}/{stripe:02x}"
                descriptor = self._hidden.open_file(path, os.O_RDWR | os.O_CREAT)
                self._descriptors[stripe] = descriptor
                lock(descriptor, self._modes[stripe], path, self._hidden.lock_wait_seconds)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self._descriptors:
            unlock(self._descriptors.popitem()[1])

    def next_generation(self, name: str, floor: int) -> int:
        """A number above `floor`, and above every earlier one of a name that is locked exclusively here.

        The lock's file counts them, so that also a name that was deleted goes on.
        """
        descriptor = self._descriptors[_stripe(name)]
        text = os.pread(descriptor, 32, 0).strip()
        counted = int(text) if text.isdigit() else 0
        # The count alone survives a kill. After a loss of power it may be old, and then the wall
        # clock (microseconds) is above all numbers issued before.
        microseconds = int(self._hidden.clock.now().timestamp() * 1_000_000)
        generation = max(counted, floor, microseconds) + 1
        os.pwrite(descriptor, f"{generation:<32d}".encode(), 0)
        return generation


def _stripe(name: str) -> int:
    return hashlib.sha256(name.encode()).digest()[0] % _LOCK_STRIPES
