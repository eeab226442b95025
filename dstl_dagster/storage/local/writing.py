"""Writing the local store: the order of steps that makes a new file appear, or go, atomic and crash-safe.

Owns the steps of a change under the locks of its names, the stream that becomes an object, and the folders
that come and go with files. Does not own single file-system steps (`local.files`), the records beside the
files (`local.records`), or which names a request changes together (`local.store`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dstl_dagster.errors import ConflictError, DstlError, ErrorKind, InvalidInputError
from dstl_dagster.storage import rules
from dstl_dagster.storage.base import Buffer, ObjectStat, Precondition
from dstl_dagster.storage.local.errors import status_of, translate_os_errors
from dstl_dagster.storage.local.files import HiddenFolder, TemporaryFile
from dstl_dagster.storage.local.locks import HeldLocks
from dstl_dagster.storage.local.paths import object_path, object_uri
from dstl_dagster.storage.local.reading import LocalReading
from dstl_dagster.storage.local.records import Record, Records

_PLACE_ATTEMPTS: Final = 100


class LocalWriting:
    """The write side of one root. Safe from any thread and process."""

    def __init__(self, hidden: HiddenFolder, records: Records, reading: LocalReading) -> None:
        self.root = hidden.root
        self.hidden = hidden
        self._records = records
        self._reading = reading

    def publish(
        self,
        name: str,
        held: HeldLocks,
        temporary: TemporaryFile,
        precondition: Precondition,
        metadata: Mapping[str, str],
    ) -> ObjectStat:
        """Link a finished temporary file in, whose bytes are durable. `held`: the name's lock."""
        path = object_path(self.root, name)
        current = self._reading.live_record(name)
        rules.check_precondition(
            object_uri(self.root, name), current.generation if current else None, precondition
        )
        new = Record(
            generation=held.next_generation(name, current.generation if current else 0),
            crc32c=temporary.crc32c,
            updated=self.hidden.clock.now(),
            metadata=metadata,
            file=temporary.identity(),
        )
        # Record first: a reader of the file finds its record. A kill here leaves a record of no file.
        self._records.write(name, [new, current] if current else [new])
        try:
            self._place(temporary, path, create_only=current is None)
        except (DstlError, OSError):
            if current is None:
                self._records.remove(name)
            raise
        return new.to_stat(name)

    def remove(self, name: str) -> None:
        path = object_path(self.root, name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - as above
        self.hidden.sync_removal(path)
        self._records.remove(name)
        prune_empty_folders(self.root, path.parent)

    def _place(self, temporary: TemporaryFile, path: Path, *, create_only: bool) -> None:
        """Give the temporary file its final name in one step, durably.

        Raises: ConflictError (a file came from outside since the check), InvalidInputError (the
        name would be both file and folder), OSError (a new name is as it was; a replaced one is doubtful).
        """
        # A delete prunes empty folders, possibly the one just made: make it again, a bounded number of times.
        for _ in range(_PLACE_ATTEMPTS):
            try:
                temporary.place(path, create_only=create_only)
            except FileNotFoundError:
                continue
            except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
                if _empty_folder_removed(path):
                    continue
                raise _occupied(path, error) from error
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    raise InvalidInputError(
                        f"{str(path)[:80]!r}... is too long for this file system"
                    ) from error
                raise
            return self._sync_or_take_back(path, create_only=create_only)
        raise ConflictError(
            f"{path} cannot be made: its folder is removed again and again", ErrorKind.CONTENTION
        )

    def _sync_or_take_back(self, path: Path, *, create_only: bool) -> None:
        # The system reports a failed sync only once. A name that stayed would read back as a success, and be
        # gone after a power loss.
        try:
            self.hidden.sync_folder(path.parent)
        except OSError:
            taken_back = False
            if create_only:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                    taken_back = True
            if not taken_back:
                self._reading.doubtful.add(path)
            raise


class LocalWriter:
    """Streams into a temporary file; memory holds one write at a time."""

    def __init__(
        self,
        writing: LocalWriting,
        name: str,
        precondition: Precondition,
        metadata: Mapping[str, str],
    ) -> None:
        self._writing = writing
        self._name = name
        self._precondition = precondition
        self._metadata = metadata
        self._temporary: TemporaryFile | None = None
        self._made: ObjectStat | None = None
        self._over = False

    @translate_os_errors
    def write(self, payload: Buffer, crc32c: int | None = None) -> int:
        return self._open_file().write(payload, crc32c)

    @translate_os_errors
    def flush(self) -> None:
        self._open_file()

    @translate_os_errors
    def close(self) -> ObjectStat:
        if self._made is None:
            temporary = self._open_file()
            temporary.sync()  # before the lock, which others wait for: it takes longer than all the rest
            with self._writing.hidden.locked([self._name]) as held:
                self._made = self._writing.publish(
                    self._name, held, temporary, self._precondition, self._metadata
                )
            self.abort()
        return self._made

    def abort(self) -> None:
        self._over = True
        if self._temporary is not None:
            self._temporary.close()

    # Dropped without `close`: nothing was linked in, and the temporary file goes.
    __del__ = abort

    def _open_file(self) -> TemporaryFile:
        if self._over:
            raise rules.closed_writer(object_uri(self._writing.root, self._name))
        if self._temporary is None:
            self._temporary = self._writing.hidden.temporary_file()
        if self._temporary.is_lost:
            raise rules.lost_upload(object_uri(self._writing.root, self._name))
        return self._temporary


def prune_empty_folders(root: Path, folder: Path) -> None:
    """Remove `folder` and those above it, up to but not including `root`, as far as they are empty."""
    above, current = os.fspath(root).rstrip(os.sep) + os.sep, os.fspath(folder)
    while current.startswith(above):
        try:
            os.rmdir(current)  # noqa: PTH106 - a text: see HiddenFolder
        except OSError:
            return
        current = os.path.dirname(current)  # noqa: PTH120 - as above


def _empty_folder_removed(path: Path) -> bool:
    """Remove a folder that holds no file at any depth, as a kill before the first link may leave it."""
    if path.is_symlink() or not path.is_dir():
        return False
    for folder, _, files in os.walk(path, topdown=False):
        if files:
            return False
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
    return not path.exists()


def _occupied(path: Path, error: OSError) -> Exception:
    if path.is_dir() or isinstance(error, NotADirectoryError):
        return InvalidInputError(f"{path} would be both a file and a folder; choose another name")
    there = status_of(path)
    if there is not None and not stat.S_ISREG(there.st_mode):
        # No object, so no read sees it, and a caller that looks for what is in the way finds nothing.
        what = "a symbolic link" if stat.S_ISLNK(there.st_mode) else "no regular file"
        return InvalidInputError(f"{path} is {what}, which no object of this store is: move it away")
    return ConflictError(f"{path} is there already, written by another program")
