"""Locks on files between processes: waited for a limited time, and never inherited.

Owns taking and freeing a lock, naming its holder when the wait is too long, and what a forked child drops.
Does not own which files are locked, or in which order (`local.files`).

A lock is the kernel's (`flock`): it ends with its process, however that ends. But it belongs to the open
file, which a fork without exec copies; so a child closes its copies before anything else.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from dstl_dagster.clock import SystemClock
from dstl_dagster.concurrency import after_fork
from dstl_dagster.errors import UnavailableError

DEFAULT_LOCK_WAIT_SECONDS: Final = 60.0
"""Far longer than a change takes, including a slow sync."""

_FIRST_PAUSE_SECONDS: Final = 0.0002
_MAX_PAUSE_SECONDS: Final = 0.01

_clock: Final = SystemClock()  # others hold their locks in real time, whatever the store's clock says
_locked: set[int] = set()
"""The descriptors by which this process holds locks."""


def lock(descriptor: int, mode: int, path: str, wait_seconds: float) -> None:
    """Lock an open file, waiting at most `wait_seconds` for others.

    Raises: UnavailableError, which names the file and, if the system tells, the processes that hold it.
    """
    _locked.add(descriptor)
    deadline = None
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            now = _clock.monotonic_seconds()
            deadline = now + wait_seconds if deadline is None else deadline
            if now >= deadline:
                raise UnavailableError(
                    f"{path} has been locked for {wait_seconds:g} s by {_holders(descriptor)}; "
                    "let it continue or end it, then repeat the call"
                ) from None
        _clock.sleep_seconds(min(pause, max(0.0, deadline - now)))
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)


def lock_new(descriptor: int, path: str) -> bool:
    """Lock a file that was just made; False if a sweep, which takes unlocked files, was there before.

    Raises: OSError.
    """
    try:
        lock(descriptor, fcntl.LOCK_EX, path, 0.0)
    except UnavailableError:
        return False
    return os.fstat(descriptor).st_nlink > 0


def unlock(descriptor: int) -> None:
    """Free the lock, if held, and close the file. Never raises."""
    with suppress(OSError):
        # Explicitly, before the close: that frees nothing while a child has a copy.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    close_locked(descriptor)


def close_locked(descriptor: int) -> None:
    """Close a file whose lock nobody else will ask for. Never raises."""
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
    told = f"process {process_id}"
    with suppress(OSError, IndexError):
        proc = Path(f"/proc/{process_id}")
        told += f" ({proc.joinpath('comm').read_text().strip()})"
        state = proc.joinpath("stat").read_text().rpartition(")")[2].split()[0]
        if state in ("T", "t"):
            told += f", which is stopped (`kill -CONT {process_id}` resumes it)"
    return told


def _forget_inherited() -> None:
    # Only copies are closed: the parent's locks stay its own.
    for descriptor in _locked:
        with suppress(OSError):
            os.close(descriptor)
    _locked.clear()


after_fork(_forget_inherited)
