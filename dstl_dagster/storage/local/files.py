"""The file-system steps beneath the local store: durable files and temporary ones.

Owns `.dstl-store/`, the hidden folder under a root. Does not own locks (`local.locks`), objects or their
records (`local.records`), nor any decision (`local.writing`).

A kill at any step leaves nothing wrong behind: a temporary file is locked while it is in use, so an unlocked
one is of no process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dstl_dagster.clock import Clock
from dstl_dagster.format.crc32c import EMPTY_CRC32C, extend
from dstl_dagster.storage.base import Buffer
from dstl_dagster.storage.local.locks import HeldLocks, lock, unlock

HIDDEN_FOLDER = ".dstl-store"


class HiddenFolder:
    """The folder under one root. Safe from any thread and process.

    Args:
        root: the store's root; made when something is first written.
        clock, durable, lock_wait_seconds: as in `LocalObjectStore`.
    """

    def __init__(self, root: Path, clock: Clock, durable: bool, lock_wait_seconds: float) -> None:
        self.root = root
        self.path = root / HIDDEN_FOLDER
        self.clock = clock
        self.durable = durable
        self.lock_wait_seconds = lock_wait_seconds
        self._swept = False
        # Strings, because a path object costs as much as a system call, and a write needs many.
        self._temporary_path = str(self.path / "temporary")
        self.locks_path = str(self.path / "locks")

    # -- durability

    def sync_folder(self, folder: str | Path) -> None:
        """Sync a folder's entries to disk."""
        if self.durable:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def sync_removal(self, path: Path) -> None:
        """Sync the removal of `path`. Another removal may have taken its emptied folder away."""
        for folder in path.parents:
            try:
                self.sync_folder(folder)
            except FileNotFoundError:
                # A folder that is gone took the entry with it: its own removal is what must stay.
                if folder == self.root:
                    raise
            else:
                return

    def make_folder(self, folder: Path) -> None:
        """Create a folder and those above it, durably. Raises: OSError, as `mkdir`."""
        if folder.is_dir():
            return
        self.make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir()
        try:
            self.sync_folder(folder.parent)
        except OSError:
            # Otherwise the next call would take it for durable.
            with suppress(OSError):
                folder.rmdir()
            raise
        # A file of that name made `mkdir` fail the same way as a rival's folder.
        if not folder.is_dir():
            raise NotADirectoryError(f"{folder} is no folder")

    def open_file(self, path: str, flags: int) -> int:
        """A descriptor of a file under this folder; makes the file's folder where that is missing."""
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            self.make_folder(Path(path).parent)
            return os.open(path, flags | os.O_CLOEXEC, 0o666)

    # -- temporary files

    def temporary_file(self) -> TemporaryFile:
        """A new locked file. The first one also removes what killed processes left."""
        if not self._swept:
            self._swept = True
            self._sweep()
        while True:
            path = f"{self._temporary_path}/{os.urandom(16).hex()}"
            descriptor = self.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            made = TemporaryFile(self, path, descriptor)
            try:
                lock(descriptor, fcntl.LOCK_EX, path, self.lock_wait_seconds)
                if os.fstat(descriptor).st_nlink:
                    return made
            except BaseException:
                made.close()
                raise
            made.close()  # a sweep, which takes unlocked files, was there before

    def _sweep(self) -> None:
        with suppress(FileNotFoundError):
            for path in list(Path(self._temporary_path).iterdir()):
                with suppress(OSError):  # locked: a living process writes it
                    # O_NONBLOCK: a pipe that a user put there must not block us.
                    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        path.unlink(missing_ok=True)
                    finally:
                        os.close(descriptor)

    def locked(self, exclusive: Iterable[str], shared: Iterable[str] = ()) -> HeldLocks:
        """Hold the locks of these names while in its `with`. Names share locks, so never nest two calls."""
        return HeldLocks(self, exclusive, shared)


@dataclass(frozen=True)
class FileIdentity:
    """Which file it is: a rename or hard link keeps all three, a change or copy does not."""

    inode: int
    size: int
    modified_nanos: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class TemporaryFile:
    """A file that readers do not see until it is linked in. One thread at a time.

    An error in it ends it: how much of it there is on disk is not known then. It belongs to the process that
    created it. The copy that a fork leaves in a child is lost, and its `close` does nothing.
    """

    def __init__(self, hidden: HiddenFolder, path: str, descriptor: int) -> None:
        self._hidden = hidden
        self.path = path
        self._descriptor = descriptor
        self._process_id = os.getpid()
        self._renamed = self._closed = False
        self.crc32c = EMPTY_CRC32C

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be done with it any more."""
        return self._closed or self._process_id != os.getpid()

    def write(self, payload: Buffer, crc32c: int | None = None) -> int:
        """Write all of it. `crc32c`: of all until then, if known. Raises: OSError, which names the file."""
        octets = rest = memoryview(payload).cast("B")
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            self.close()
            error.filename = self.path  # the error of a full disk names a descriptor only
            raise
        self.crc32c = extend(self.crc32c, octets) if crc32c is None else crc32c
        return len(octets)

    def sync(self) -> None:
        try:
            if self._hidden.durable:
                os.fsync(self._descriptor)
        except OSError:
            # The system reports it only once: the next sync would succeed without these bytes.
            self.close()
            raise

    def identity(self) -> FileIdentity:
        """It stays the same when the file gets its name."""
        return FileIdentity.of(os.fstat(self._descriptor))

    def place(self, path: str | Path, *, create_only: bool) -> None:
        """Give it this name: a new one, or one that it takes from another file. Raises: OSError."""
        put = os.link if create_only else os.replace
        try:
            put(self.path, path)
        except FileNotFoundError:
            self._hidden.make_folder(Path(path).parent)
            put(self.path, path)
        self._renamed = not create_only

    def close(self) -> None:
        """Forget the temporary name and free the lock. Never raises; may be called again."""
        if self.is_lost:
            return
        self._closed = True
        # The name goes while the lock is still held: the other way round a sweep could meet it. On a disk
        # that has become read-only it stays, for a sweep.
        if not self._renamed:
            with suppress(OSError):
                os.unlink(self.path)  # noqa: PTH108 - a text: see HiddenFolder
        unlock(self._descriptor)
