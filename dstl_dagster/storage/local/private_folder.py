"""Files that only this process needs, in a folder that no other user can read or change.

Owns the folder: that it is this user's alone, who uses it, and what dead processes left in it. Does not own
what the files hold, nor when they go.

Below a directory of this user, or a sticky one that others share, such as /tmp:

    <prefix>-<user id>/      of this user, mode 0700; used only if it is exactly that
        <id>.lock            locked (`local.locks`) by the process that uses the folder <id>
        <id>/                its files

The kernel frees a lock when its process is gone, however it ended. So a folder whose lock is free belongs to
no process, and the next process that opens one removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dstl_dagster.concurrency import after_fork
from dstl_dagster.errors import ClosedError, UnavailableError
from dstl_dagster.storage.base import Buffer
from dstl_dagster.storage.local.locks import lock, lock_new, unlock

__all__ = ["PrivateFile", "PrivateFolder"]

_LOCK: Final = ".lock"
_NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class PrivateFolder:
    """A folder of its own for each process. Any thread; a forked child gets an empty one.

    Args:
        directory: where this user's folder is made; may be shared with others.
        prefix: begins the name of this user's folder.
    """

    def __init__(self, directory: Path, prefix: str) -> None:
        self._directory = directory
        self._prefix = prefix
        self._closed = False
        self._begin()
        after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._place: _Place | None = None

    def keep(self, pieces: Iterable[Buffer]) -> PrivateFile:
        """A new file of these bytes. The first one also removes what dead processes left.

        Raises: ClosedError, OSError (PermissionError if the folder is not this user's alone), and what
            `pieces` raises. No file is left then.
        """
        name = uuid.uuid4().hex
        place, descriptor = self._new_file(name)
        file = PrivateFile(place, name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                for piece in pieces:
                    stream.write(piece)
        except BaseException:
            file.remove()
            raise
        return file

    def close(self) -> None:
        """Keep no more files; the folder goes with its last one. May be called again."""
        with self._lock:
            self._closed = True
            place, self._place = self._place, None
        if place is not None:
            place.let_go()

    def _new_file(self, name: str) -> tuple[_Place, int]:
        with self._lock:
            if self._closed:
                raise ClosedError(f"the private folder in {self._directory} is closed; open another")
            if self._place is not None:
                try:
                    return self._place, self._place.create(name)
                except FileNotFoundError:
                    # Something that tidies the directory has removed the folder.
                    self._place.let_go()
                    self._place = None
            self._place = _open_place(self._directory, self._prefix)
            return self._place, self._place.create(name)


class PrivateFile:
    """One file, until it is removed. In a forked child it is gone."""

    def __init__(self, place: _Place, name: str) -> None:
        self._place: _Place | None = place
        self._name = name

    def open(self) -> tuple[Path, int]:
        """Its path, for people, and a new descriptor to read it by, also after `remove`. Raises: OSError."""
        place = self._place
        if place is None or place.is_inherited:
            raise FileNotFoundError(f"the private file {self._name} was removed, or belongs to the parent")
        path = place.path / self._name
        return path, os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def remove(self) -> None:
        """Delete it. Never raises; may be called again."""
        place, self._place = self._place, None
        if place is not None and not place.is_inherited:
            with contextlib.suppress(OSError):
                (place.path / self._name).unlink()
            place.let_go()


class _Place:
    """The folder of one process, held by its `PrivateFolder` and by each file in it; the last one removes it.

    In a forked child it is inherited: its parent's, whose lock the child does not have.
    """

    def __init__(self, path: Path, owner: int) -> None:
        self.path = path
        self._owner = owner
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._holds = 1

    @property
    def is_inherited(self) -> bool:
        return self._process_id != os.getpid()

    def create(self, name: str) -> int:
        descriptor = os.open(self.path / name, _NEW_FILE, 0o600)
        with self._lock:
            self._holds += 1
        return descriptor

    def let_go(self) -> None:
        """Give up one hold."""
        with self._lock:
            self._holds -= 1
            last = self._holds == 0
        if last:
            self._end()

    def __del__(self) -> None:
        # Of a folder that was not closed, and cannot be reached any more.
        if self._holds > 0 and not self.is_inherited:
            self._end()

    def _end(self) -> None:
        _remove_place(self.path)
        unlock(self._owner)


def _open_place(directory: Path, prefix: str) -> _Place:
    """A new folder in this user's one, locked. Raises: OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    home = _private_home(directory, prefix)
    _sweep(home)
    while True:
        path = home / uuid.uuid4().hex
        lock_path = _lock_of(path)
        owner = os.open(lock_path, _NEW_FILE, 0o600)
        try:
            if lock_new(owner, str(lock_path)):
                path.mkdir(0o700)
                return _Place(path, owner)
        except BaseException:
            _remove_place(path)
            unlock(owner)
            raise
        unlock(owner)


def _private_home(directory: Path, prefix: str) -> Path:
    """This user's folder, checked."""
    user = os.geteuid()
    path = directory / f"{prefix}-{user}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{path} is no folder but a link or a file; remove it")
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != user or mode & 0o077:
        raise PermissionError(
            f"{path} is of user {status.st_uid} with mode {mode:04o}, but has to be of user {user} with mode "
            "0700; remove it"
        )
    return path


def _sweep(home: Path) -> None:
    """Remove the folders whose processes are gone."""
    for name in {entry.name.removesuffix(_LOCK) for entry in home.iterdir()}:
        path = home / name
        try:
            owner = os.open(_lock_of(path), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            # A lock is made before its folder and removed after it.
            shutil.rmtree(path, ignore_errors=True)
            continue
        except OSError:
            continue
        try:
            lock(owner, fcntl.LOCK_EX, name, 0.0)
            _remove_place(path)
        except (UnavailableError, OSError):
            continue  # a living process uses it
        finally:
            unlock(owner)


def _remove_place(path: Path) -> None:
    # The folder first: without a lock it would look left behind while it is being removed, and it is.
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        _lock_of(path).unlink()


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + _LOCK)
