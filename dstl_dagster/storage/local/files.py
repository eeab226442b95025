"""The file-system steps beneath the local store: durable files, temporary files, locks, generations.

Owns `.dstl-store/`, the hidden folder under a root. Does not own objects or their records
(`local.records`), nor any decision (`local.writing`).

A kill at any step leaves nothing wrong behind: a lock is the kernel's and dies with its process; a
temporary file is locked while it is in use, so an unlocked one belongs to nobody; a file kept while another
replaces it belongs to whoever holds the lock of its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from dstl_dagster.clock import Clock
from dstl_dagster.concurrency import after_fork
from dstl_dagster.storage import rules
from dstl_dagster.storage.base import Buffer
from dstl_dagster.storage.local.errors import status_of
from dstl_dagster.storage.local.locks import DEFAULT_LOCK_WAIT_SECONDS, close_locked, lock, lock_new, unlock

__all__ = [
    "HIDDEN_FOLDER",
    "HiddenFolder",
    "TemporaryFile",
    "empty_folder_removed",
    "prune_empty_folders",
]

HIDDEN_FOLDER = ".dstl-store"
_LOCK_STRIPES = 16
"""Lock files that names share. Few, because creating one costs more than a short wait for another name."""
_KEPT = ".before-"
"""Between a temporary file's name and the lock under which it replaces another: whoever gets that lock may
remove what a killed process left."""
_file_numbers = itertools.count(1)
_sweep_lock = threading.Lock()


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
        self._clock = clock
        self._durable = durable
        self.lock_wait_seconds = lock_wait_seconds
        self.doubtful: set[Path] = set()
        """Files that could be neither made durable nor rolled back: their state is unknown."""
        self._swept = False
        # Strings, because a path object costs as much as a system call, and a write needs many.
        self._temporary_path = str(self.path / "temporary")
        self._locks_path = str(self.path / "locks")
        self._generation_path = str(self.path / "generation")

    def is_own(self) -> bool:
        """Whether this user owns the folder, or the root if nothing was written below it yet."""
        status = status_of(self.path) or status_of(self.root)
        return status is not None and status.st_uid == os.geteuid()

    # -- durability

    def sync_file(self, descriptor: int) -> None:
        """Sync a file's bytes to disk."""
        if self._durable:
            os.fsync(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Sync a folder's entries to disk."""
        if self._durable:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def sync_removal(self, path: Path) -> None:
        """Sync the removal of `path`. Whoever removed its neighbours may have pruned its folder."""
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
        """Write a small file so that it is seen old or new, never in part."""
        temporary = self.temporary_file()
        try:
            temporary.write(content)
            temporary.sync_bytes()
            try:
                temporary.replace(path)
            except FileNotFoundError:
                self.make_folder(Path(path).parent)
                temporary.replace(path)
            if self._durable:
                self.sync_folder(Path(path).parent)
        finally:
            temporary.close()

    # -- temporary files

    def temporary_file(self) -> TemporaryFile:
        """A new locked file. The first one also removes what killed processes left."""
        if not self._swept:
            with _sweep_lock:
                if not self._swept:
                    self._sweep(self._temporary_path)
                    self._swept = True
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

    def _sweep(self, folder: str) -> None:
        if not Path(folder).is_dir():
            return
        for path in Path(folder).iterdir():
            try:
                descriptor = os.open(self._guard_of(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except OSError:
                continue  # locked: a living process writes it
            finally:
                os.close(descriptor)

    def kept_path(self, temporary: str, path: Path) -> str:
        """Where the file at `path` is kept while a temporary file replaces it, under the lock of its name."""
        return f"{temporary}{_KEPT}{_stripe(path.relative_to(self.root).as_posix()):02x}"

    def _guard_of(self, path: Path) -> str | Path:
        # The lock of a kept file would be the lock of an object's bytes, which nobody holds.
        _, kept, stripe = path.name.partition(_KEPT)
        return f"{self._locks_path}/{stripe}" if kept else path

    # -- locks and generations

    def locked(self, exclusive: Iterable[str], shared: Iterable[str] = ()) -> _HeldLocks:
        """Hold the locks of these names while in its `with`. Names share locks, so never nest two calls.

        Ascending order over all processes is why no two callers wait for each other.
        """
        modes = dict.fromkeys((_stripe(name) for name in shared), fcntl.LOCK_SH)
        modes.update(dict.fromkeys((_stripe(name) for name in exclusive), fcntl.LOCK_EX))
        return _HeldLocks(self, [(f"{self._locks_path}/{each:02x}", modes[each]) for each in sorted(modes)])

    def next_generation(self, floor: int) -> int:
        """A number above every earlier one of this root, and above `floor`."""
        descriptor = self.open_file(self._generation_path, os.O_RDWR | os.O_CREAT)
        try:
            lock(descriptor, fcntl.LOCK_EX, self._generation_path, self.lock_wait_seconds)
            text = os.pread(descriptor, 32, 0).strip()
            counted = int(text) if text.isdigit() else 0
            # The count alone survives a kill. After a loss of power it may be old, and then the wall
            # clock (microseconds) is above all that was given out before.
            microseconds = int(self._clock.now().timestamp() * 1_000_000)
            generation = max(counted, floor, microseconds) + 1
            os.pwrite(descriptor, f"{generation:<32d}".encode(), 0)
            return generation
        finally:
            unlock(descriptor)


class _HeldLocks:
    """Locks on files, taken in order when it is entered and freed when it is left. One thread, once.

    A class, because a generator and an exit stack cost more than the locks themselves.
    """

    def __init__(self, hidden: HiddenFolder, modes: Sequence[tuple[str, int]]) -> None:
        self._hidden = hidden
        self._modes = modes
        self._descriptors: list[int] = []

    def __enter__(self) -> None:
        try:
            for path, mode in self._modes:
                descriptor = self._hidden.open_file(path, os.O_RDWR | os.O_CREAT)
                self._descriptors.append(descriptor)
                lock(descriptor, mode, path, self._hidden.lock_wait_seconds)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        while self._descriptors:
            unlock(self._descriptors.pop())


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
        rest = memoryview(payload).cast("B")
        descriptor = self._open_descriptor()
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError as error:
            error.filename = self.path  # the error of a full disk names a descriptor only
            raise

    def sync(self) -> os.stat_result:
        """Make the bytes durable. Returns the file's status after that."""
        self.sync_bytes()
        return os.fstat(self._open_descriptor())

    def sync_bytes(self) -> None:
        """Make the bytes durable."""
        self._hidden.sync_file(self._open_descriptor())

    def replace(self, path: str | Path) -> None:
        """Take this name instead of the temporary one, from whoever has it. Raises: OSError."""
        os.replace(self.path, path)  # noqa: PTH105 - a text: see HiddenFolder
        self._renamed = True

    def keep(self, path: Path) -> str:
        """A second name of the file at `path`, for `take_back`. Raises: OSError."""
        kept = self._hidden.kept_path(self.path, path)
        os.link(path, kept)
        return kept

    def take_back(self, path: Path, kept: str | None) -> None:
        """Undo `replace` or a link: `path` is the kept file again, or does not exist. Raises: OSError."""
        if kept is None:
            path.unlink(missing_ok=True)
        else:
            os.link(path, self.path)
            self._renamed = False
            os.replace(kept, path)  # noqa: PTH105 - a text: see HiddenFolder

    def close(self) -> None:
        """Forget the temporary name and free the lock. Never raises; may be called again."""
        if self._descriptor is not None and self._process_id == os.getpid():
            # The name goes while the lock is still held: the other way round a sweep could meet it. Without
            # the name nobody looks for the lock.
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


def prune_empty_folders(root: Path, folder: Path) -> None:
    """Remove `folder` and those above it, up to but not including `root`, as far as they are empty."""
    above, current = os.fspath(root).rstrip(os.sep) + os.sep, os.fspath(folder)
    while current.startswith(above):
        try:
            os.rmdir(current)  # noqa: PTH106 - a text: see HiddenFolder
        except OSError:
            return
        current = os.path.dirname(current)  # noqa: PTH120 - as above


def empty_folder_removed(path: Path) -> bool:
    """Remove a folder that holds no file at any depth, as a kill before the first link may leave it."""
    if path.is_symlink() or not path.is_dir():
        return False
    for folder, _, files in os.walk(path, topdown=False):
        if files:
            return False
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
    return not path.exists()


def _free_sweep_lock() -> None:
    # It may have been held by a thread that the child does not have.
    global _sweep_lock
    _sweep_lock = threading.Lock()


after_fork(_free_sweep_lock)


def _stripe(name: str) -> int:
    return hashlib.sha256(name.encode()).digest()[0] % _LOCK_STRIPES
