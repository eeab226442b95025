"""Files that only this process needs, in a folder that no other user can read or change.

Owns the folder: that it is this user's alone, who uses it, and what dead processes left in it. Does not own
what the files hold, nor when they go.

Below a directory, which others may share:

    <prefix>-<user id>/      of this user, mode 0700; used only if it is exactly that
        <id>.lock            locked (`local.locks`) by the process that uses the folder <id>
        <id>/                its files, created anew, never followed as links

The kernel frees a lock when its process is gone, however it ended. So a folder whose lock is free belongs to
nobody, and the next process that opens one removes it. After the check everything goes through the open
folder: who may rename the folders above cannot put another in its place.
"""

from __future__ import annotations

import contextlib
import errno
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
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD_LOCK: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class PrivateFolder:
    """A folder of its own for each process. Any thread; a forked child gets an empty one.

    Args:
        directory: where this user's folder is made; may be shared with others.
        prefix: begins the name of this user's folder.
    """

    def __init__(self, directory: Path, prefix: str) -> None:
        self._directory = directory
        self._prefix = prefix
        self._lock = threading.Lock()
        self._place: _Place | None = None
        self._closed = False
        after_fork(self._forget)

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
            if self._place is None:
                self._place = _open_place(self._directory, self._prefix)
            try:
                return self._place, self._place.create(name)
            except FileNotFoundError:
                # Something that tidies the directory has removed the folder.
                self._place.let_go()
                self._place = None
                self._place = _open_place(self._directory, self._prefix)
                return self._place, self._place.create(name)

    def _forget(self) -> None:
        """In a forked child: what the parent had is the parent's."""
        self._lock = threading.Lock()
        self._place = None


class PrivateFile:
    """One file, until it is removed. In a forked child it is gone."""

    def __init__(self, place: _Place, name: str) -> None:
        self._place: _Place | None = place
        self._name = name

    def open(self) -> tuple[Path, int]:
        """Its path, for people, and a new descriptor to read it by, also after `remove`. Raises: OSError."""
        place = self._place
        if place is None:
            raise FileNotFoundError(f"the private file {self._name} was removed")
        return place.path / self._name, place.open(self._name)

    def remove(self) -> None:
        """Delete it. Never raises; may be called again."""
        place, self._place = self._place, None
        if place is not None:
            place.remove(self._name)


class _Place:
    """The folder of one process, held by whoever uses it and by each file in it."""

    def __init__(self, path: Path, home: int, folder: int, owner: int) -> None:
        self.path = path
        self._home, self._folder, self._owner = home, folder, owner
        self._lock = threading.Lock()
        self._holds = 1
        self._inherited = False
        after_fork(self._forget)

    def create(self, name: str) -> int:
        descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=self._folder)
        with self._lock:
            self._holds += 1
        return descriptor

    def open(self, name: str) -> int:
        if self._inherited:
            raise FileNotFoundError(f"{self.path / name} belongs to the process that was forked")
        return os.open(name, _OLD_FILE, dir_fd=self._folder)

    def remove(self, name: str) -> None:
        if not self._inherited:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._folder)
        self.let_go()

    def let_go(self) -> None:
        """Give up one hold; the last one removes the folder."""
        with self._lock:
            self._holds -= 1
            last = self._holds == 0
        if last:
            self._end()

    def __del__(self) -> None:
        # Of a folder that nobody closed, and nobody can reach any more.
        if self._holds > 0:
            self._end()

    def _end(self) -> None:
        if not self._inherited:
            _remove_place(self._home, self.path.name)
            unlock(self._owner)
            self._close_folders()

    def _forget(self) -> None:
        """In a forked child: the folder is the parent's, and the copy of its lock is closed already."""
        self._lock = threading.Lock()
        if self._holds > 0 and not self._inherited:
            self._close_folders()
        self._inherited = True

    def _close_folders(self) -> None:
        for descriptor in (self._folder, self._home):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _open_place(directory: Path, prefix: str) -> _Place:
    """A new folder in this user's one, locked. Raises: OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as undo:
        path, home = _open_home(directory, prefix)
        undo.callback(os.close, home)
        _sweep(home)
        name, owner = _new_owner(path, home)
        undo.callback(unlock, owner)
        undo.callback(_remove_place, home, name)
        os.mkdir(name, 0o700, dir_fd=home)
        folder = os.open(name, _FOLDER, dir_fd=home)
        undo.pop_all()
        return _Place(path / name, home, folder, owner)


def _open_home(directory: Path, prefix: str) -> tuple[Path, int]:
    """This user's folder, checked and open."""
    user = os.geteuid()
    path = directory / f"{prefix}-{user}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    try:
        home = os.open(path, _FOLDER)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise PermissionError(f"{path} is no folder but a link or a file; remove it") from error
    status = os.fstat(home)
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != user or mode & 0o077:
        os.close(home)
        raise PermissionError(
            f"{path} is of user {status.st_uid} with mode {mode:04o}, but has to be of user {user} with mode "
            "0700; remove it"
        )
    return path, home


def _new_owner(path: Path, home: int) -> tuple[str, int]:
    """A name nobody has, and the descriptor by which its lock is held."""
    while True:
        name = uuid.uuid4().hex
        owner = os.open(name + _LOCK, _NEW_FILE, 0o600, dir_fd=home)
        try:
            if lock_new(owner, str(path / (name + _LOCK))):
                return name, owner
        except BaseException:
            _remove_place(home, name)
            unlock(owner)
            raise
        unlock(owner)


def _sweep(home: int) -> None:
    """Remove the folders whose processes are gone."""
    for entry in os.listdir(home):
        name = entry.removesuffix(_LOCK)
        try:
            owner = os.open(name + _LOCK, _OLD_LOCK, dir_fd=home)
        except FileNotFoundError:
            # A lock is made before its folder and removed after it.
            shutil.rmtree(name, ignore_errors=True, dir_fd=home)
            continue
        except OSError:
            continue
        try:
            lock(owner, fcntl.LOCK_EX, name, 0.0)
            _remove_place(home, name)
        except (UnavailableError, OSError):
            continue  # a living process uses it
        finally:
            unlock(owner)


def _remove_place(home: int, name: str) -> None:
    # The folder first: without a lock it would look left behind while it is being removed, and it is.
    shutil.rmtree(name, ignore_errors=True, dir_fd=home)
    with contextlib.suppress(OSError):
        os.unlink(name + _LOCK, dir_fd=home)
