"""The file-system steps beneath the local store: durable files, temporary files, locks, generations.

Owns `.dstl-store/`, the hidden folder under a root. Does not own objects or their records
(`local.records`), nor any decision (`local.writing`).

A kill at any step leaves nothing wrong behind: a lock is the kernel's and dies with its process; a
temporary file is locked while it is in use, so an unlocked one is of no process. A lock belongs to the open
file, which a fork without exec copies; so a child closes its copies before anything else.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.concurrency import after_fork
from dstl_dagster.errors import UnavailableError
from dstl_dagster.storage import rules
from dstl_dagster.storage.base import Buffer
from dstl_dagster.storage.local.errors import status_of

DEFAULT_LOCK_WAIT_SECONDS: Final = 60.0
"""Far longer than a change takes, including a slow sync."""

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
    """Close a file whose lock no other caller will ask for. Never raises."""
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


HIDDEN_FOLDER = ".dstl-store"
_LOCK_STRIPES = 16
"""Lock files that names share. Few, because creating one costs more than a short wait for another name."""
_file_numbers = itertools.count(1)


class HiddenFolder:
    """The folder under one root. Safe from any thread and process.

    Args:
        root: the store's root; made when something is first written.
        clock: keeps generations rising even where a power loss undid the last write.
        durable: False skips the fsyncs: then writes survive a kill, but not a power loss.
        lock_wait_seconds: how long a change waits for a lock of another process.
    """

    def __init__(
        self,
        root: Path,
        clock: Clock,
        *,
        durable: bool = True,
        lock_wait_seconds: float = DEFAULT_LOCK_WAIT_SECONDS,
    ) -> None:
        self.root = root
        self.path = root / HIDDEN_FOLDER
        self.clock = clock
        self._durable = durable
        self.lock_wait_seconds = lock_wait_seconds
        self._swept = False
        # Strings, because a path object costs as much as a system call, and a write needs many.
        self._temporary_path = str(self.path / "temporary")
        self._locks_path = str(self.path / "locks")

    def is_own(self) -> bool:
        """Whether this user owns the folder, or the root if nothing was written below it yet."""
        status = status_of(self.path) or status_of(self.root)
        return status is not None and status.st_uid == os.geteuid()

    # -- durability

    def sync_file(self, descriptor: int) -> None:
        """Sync a file's bytes to disk."""
        if self._durable:
            os.fsync(descriptor)

    def sync_folder(self, folder: str | Path) -> None:
        """Sync a folder's entries to disk."""
        if self._durable:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def sync_removal(self, path: Path) -> None:
        """Sync the removal of `path`. Another removal may have taken its emptied folder away."""
        folder = path.parent
        while True:
            try:
                return self.sync_folder(folder)
            except FileNotFoundError:
                # A folder that is gone took the entry with it: its own removal is what must stay.
                if folder == self.root:
                    raise
                folder = folder.parent

    def make_folder(self, folder: Path) -> None:
        """Create a folder and those above it, durably. Raises: OSError, as `mkdir`."""
        if folder.is_dir():
            return
        made: list[Path] = []
        current = folder
        while not current.is_dir():
            made.append(current)
            current = current.parent
        for missing in reversed(made):
            with contextlib.suppress(FileExistsError):
                missing.mkdir()
            try:
                self.sync_folder(missing.parent)
            except OSError:
                # Otherwise the next call would take it for durable.
                with contextlib.suppress(OSError):
                    missing.rmdir()
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

    def replace_file(self, path: str, content: bytes) -> None:
        """Write a small file so that it is seen old or new, never in part. Under a lock of its own."""
        new = f"{path}.new"  # what a kill leaves of it, the next write empties
        descriptor = self.open_file(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            try:
                _write_all(descriptor, content, new)
                self.sync_file(descriptor)
            finally:
                os.close(descriptor)
            os.replace(new, path)  # noqa: PTH105 - a text: see above
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new)  # noqa: PTH108 - as above
            raise
        self.sync_folder(os.path.dirname(path))  # noqa: PTH120 - as above

    # -- temporary files

    def temporary_file(self) -> TemporaryFile:
        """A new locked file. The first one also removes what killed processes left."""
        if not self._swept:
            self._swept = True
            self._sweep()
        while True:
            path = f"{self._temporary_path}/{os.getpid()}-{next(_file_numbers)}"
            try:
                descriptor = self.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue  # of another process that once had this id, or of another machine's
            made = TemporaryFile(self, path, descriptor)
            try:
                if lock_new(descriptor, path):
                    return made
            except BaseException:
                made.close()
                raise
            unlock(descriptor)

    def _sweep(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for path in list(Path(self._temporary_path).iterdir()):
                with contextlib.suppress(OSError):  # locked: a living process writes it
                    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        path.unlink(missing_ok=True)
                    finally:
                        os.close(descriptor)

    # -- locks

    def locked(self, exclusive: Iterable[str], shared: Iterable[str] = ()) -> HeldLocks:
        """Hold the locks of these names while in its `with`. Names share locks, so never nest two calls."""
        modes = dict.fromkeys((_stripe(name) for name in shared), fcntl.LOCK_SH)
        modes.update(dict.fromkeys((_stripe(name) for name in exclusive), fcntl.LOCK_EX))
        return HeldLocks(self, self._locks_path, modes)


class HeldLocks:
    """Locks of names, taken when it is entered and freed when it is left. One thread, once.

    Ascending order over all processes is why no two callers wait for each other. A class, because a generator
    and an exit stack cost more than the locks themselves.
    """

    def __init__(self, hidden: HiddenFolder, folder: str, modes: Mapping[int, int]) -> None:
        self._hidden = hidden
        self._folder = folder
        self._modes = modes
        self._descriptors: dict[int, int] = {}

    def __enter__(self) -> HeldLocks:
        try:
            for stripe in sorted(self._modes):
                path = f"{self._folder}/{stripe:02x}"
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


class TemporaryFile:
    """A file that readers do not see until it is linked in. One thread at a time.

    It belongs to the process that created it. The copy that a fork leaves in a child holds nothing: its
    `close` does nothing, and any other use raises NotFoundError, kind `upload_lost`.
    """

    def __init__(self, hidden: HiddenFolder, path: str, descriptor: int) -> None:
        self._hidden = hidden
        self.path = path
        self._descriptor: int | None = descriptor
        self._process_id = os.getpid()
        self._renamed = False

    def write(self, payload: Buffer) -> None:
        """Write all of it. Raises: OSError, which names the file."""
        _write_all(self._open_descriptor(), payload, self.path)

    def sync(self) -> os.stat_result:
        """Make the bytes durable. Returns the file's status after that."""
        descriptor = self._open_descriptor()
        self._hidden.sync_file(descriptor)
        return os.fstat(descriptor)

    def replace(self, path: Path) -> None:
        """Take this name instead of the temporary one, from another file if one has it. Raises: OSError."""
        os.replace(self.path, path)  # noqa: PTH105 - a text: see HiddenFolder
        self._renamed = True

    def close(self) -> None:
        """Forget the temporary name and free the lock. Never raises; may be called again."""
        if self._descriptor is not None and self._process_id == os.getpid():
            # The name goes while the lock is still held: the other way round a sweep could meet it. Without
            # the name no process looks for the lock.
            if self._renamed or self._unlinked():
                close_locked(self._descriptor)
            else:
                unlock(self._descriptor)
        self._descriptor = None

    def _unlinked(self) -> bool:
        """Remove the name; False on a disk that has become read-only, where it stays for a sweep."""
        try:
            os.unlink(self.path)  # noqa: PTH108 - a text: see HiddenFolder
        except OSError:
            return False
        return True

    def _open_descriptor(self) -> int:
        if self._process_id != os.getpid():
            raise rules.lost_upload(self.path)
        assert self._descriptor is not None, "a closed temporary file is not used again"
        return self._descriptor


def _write_all(descriptor: int, payload: Buffer, path: str) -> None:
    rest = memoryview(payload).cast("B")
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError as error:
        error.filename = path  # the error of a full disk names a descriptor only
        raise


def _stripe(name: str) -> int:
    return hashlib.sha256(name.encode()).digest()[0] % _LOCK_STRIPES
