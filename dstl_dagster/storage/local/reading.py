"""Reading the local store: which generation a file is, its bytes, and the ordered walk.

Owns the match of files with records, by their bytes where a tree was copied, and what is said of a file that
is not what was written. Does not own writing (`local.writing`). No read takes away what a writer recorded.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dstl_dagster.errors import FormatError, InvalidInputError, UnavailableError
from dstl_dagster.format.crc32c import EMPTY_CRC32C, extend
from dstl_dagster.storage import rules
from dstl_dagster.storage.base import ObjectStat
from dstl_dagster.storage.local.errors import is_missing, status_of, translate_os_errors
from dstl_dagster.storage.local.file_ranges import FileRanges
from dstl_dagster.storage.local.files import FileIdentity, HiddenFolder
from dstl_dagster.storage.local.paths import check_inside, object_path
from dstl_dagster.storage.local.records import (
    Record,
    Records,
    match_record,
    record_by_bytes,
    written,
)

_MOST_BYTES = 1 << 26
"""Of one read by the system, which takes no more than 2 GiB."""
_SUMMED_BYTES = 1 << 18
_LOOK_ATTEMPTS = 100
_SUMS_REMEMBERED = 10_000


class LocalReader(FileRanges):
    """An open file and the record of its generation. One thread at a time.

    The open file is the generation: a later write makes another file and never changes this one.
    """

    def __init__(self, path: Path, descriptor: int, record: Record, start: int) -> None:
        super().__init__(path, descriptor)
        self.record = record
        self._position = start

    @translate_os_errors
    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, all the rest when negative; `b""` at the end."""
        wanted = self.record.file.size - self._position if size < 0 else size
        parts: list[bytes] = []
        descriptor = self._opened()
        while wanted > 0 and (part := os.pread(descriptor, min(wanted, _MOST_BYTES), self._position)):
            parts.append(part)
            self._position += len(part)
            wanted -= len(part)
        return b"".join(parts)

    size_bytes = translate_os_errors(FileRanges.size_bytes)
    read_range = translate_os_errors(FileRanges.read_range)

    def __del__(self) -> None:
        self.close()


class LocalReading:
    """The read side of one root. Safe from any thread."""

    def __init__(self, hidden: HiddenFolder, records: Records) -> None:
        self._root = hidden.root
        self._hidden = hidden
        self._records = records
        # Asked again, as of a copy that cannot be written, it is remembered.
        self._crc32c_of = functools.lru_cache(_SUMS_REMEMBERED)(_crc32c_of)
        self.doubtful: set[Path] = set()
        """Files whose name could be neither made durable nor taken back: their state is unknown."""

    @translate_os_errors
    def stat(self, name: str, generation: int | None) -> ObjectStat | None:
        """As `ObjectStore.stat`. Raises: FormatError if the file is not that generation any more."""
        path = self._path(name)
        record = self._look(name, path)
        if record is None:
            return None
        if generation not in (None, record.generation):
            self._check_undamaged(name, path, record, generation)
            return None
        return record.to_stat(name)

    @translate_os_errors
    def open(self, name: str, generation: int | None, start: int = 0) -> LocalReader:
        """Open the live generation.

        Raises: NotFoundError, FormatError (the file is not what was written; ask for the generation that
        `stat` reports to read it all the same).
        """
        path = self._path(name)
        for _ in range(_LOOK_ATTEMPTS):
            record = self._look(name, path)
            if record is None:
                break
            if generation != record.generation:
                self._check_undamaged(name, path, record, generation)
                if generation is not None:
                    break
            with contextlib.suppress(FileNotFoundError):
                return LocalReader(path, _open(path, record.file), record, start)
        raise rules.missing(f"{self._root / name}", generation)

    def live_record(self, name: str) -> Record | None:
        """The record of the file that is there, proven by its bytes if need be. Under the name's lock."""
        path = self._path(name)
        for _ in range(_LOOK_ATTEMPTS):
            file = _regular_file(path)
            if file is None:
                return None
            records = self._records.read(name)
            record = match_record(records, file)
            if record is not None:
                return record
            with contextlib.suppress(FileNotFoundError):
                return record_by_bytes(records, file, self._crc32c_of(path, file))
        raise UnavailableError(
            f"{path} is being changed by another program again and again; wait until it ends"
        )

    def _path(self, name: str) -> Path:
        path = object_path(self._root, name)
        # For writes too: each looks at what is there first.
        check_inside(self._root, path)
        if self.doubtful and path in self.doubtful:
            raise UnavailableError(
                f"whether {path} survives a power loss is not known, as its folder could not be synced; "
                "find out what is wrong with the disk, then open the store again"
            )
        return path

    def _look(self, name: str, path: Path) -> Record | None:
        file = _regular_file(path)
        if file is None:
            return None
        record = match_record(self._records.read(name), file)
        if record is not None:
            return record
        self._note(name)
        return self.live_record(name)

    def _note(self, name: str) -> None:
        """Save what the bytes prove, so that they need not be read again. Nothing depends on it.

        Not in the folder of another user, who could not replace what this one makes there.
        """
        folder = status_of(self._hidden.path) or status_of(self._root)
        if folder is None or folder.st_uid != os.geteuid():
            return
        with contextlib.suppress(OSError), self._hidden.locked([name]):
            record = self.live_record(name)
            if record is None:
                return
            records = self._records.read(name)
            # A file in the place of another generation is not noted: the right bytes may come back.
            if record not in records and not (record.foreign and written(records)):
                others = [each for each in records if each.generation != record.generation]
                self._records.write(name, [record, *written(others)])

    def _check_undamaged(self, name: str, path: Path, record: Record, generation: int | None) -> None:
        """Raises: FormatError where this file stands in the place of the wanted generation, or the newest."""
        if not record.foreign:
            return
        lost = [each for each in written(self._records.read(name)) if generation in (None, each.generation)]
        if lost:
            raise FormatError(
                f"{path} is damaged, or was replaced by another program: it has {record.file.size} bytes "
                f"with CRC-32C {record.crc32c:#010x}, where {lost[0].file.size} with "
                f"{lost[0].crc32c:#010x} were written; restore the right bytes"
            )

    # -- the walk

    def walk(self, prefix: str, start_offset: str) -> Iterator[ObjectStat]:
        """Objects in the order of their names' bytes. Holds the entries of one folder per level."""
        folder, slash, _ = prefix.rpartition("/")
        with translate_os_errors:
            try:
                begin = object_path(self._root, folder) if slash else self._root
                check_inside(self._root, begin / "any")
            except InvalidInputError:
                return  # nothing is below a folder that no object's name can have
            yield from self._walk_folder(begin, folder + slash, prefix, start_offset)

    def _walk_folder(self, folder: Path, above: str, prefix: str, offset: str) -> Iterator[ObjectStat]:
        for name in self._ordered_names(folder, above):
            if name.endswith("/"):
                # Every name in it begins with this one: skip a folder that lies wholly before the offset or
                # outside the prefix.
                before = name < offset and not offset.startswith(name)
                if not before and (name.startswith(prefix) or prefix.startswith(name)):
                    yield from self._walk_folder(self._root / name, name, prefix, offset)
            elif name >= offset and name.startswith(prefix):
                found = self.stat(name, None)
                if found is not None:
                    yield found

    def _ordered_names(self, folder: Path, above: str) -> list[str]:
        """A folder's files, and its folders ending in `/`. Text has the order of its UTF-8 bytes."""
        names: list[str] = []
        try:
            with os.scandir(folder) as scan:
                for entry in scan:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if not is_folder and not entry.is_file(follow_symlinks=False):
                        continue
                    # Neither the store's own files are objects, nor others under a name that none can have.
                    with contextlib.suppress(InvalidInputError):
                        object_path(self._root, above + entry.name)
                        names.append(f"{above}{entry.name}/" if is_folder else above + entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(names)


def _open(path: Path, file: FileIdentity) -> int:
    """A descriptor of this very file. Raises: FileNotFoundError if there is none, or another, by now."""
    try:
        # O_NONBLOCK: a pipe put there by a user must not block us.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if is_missing(error):
            raise FileNotFoundError(path) from error
        raise
    if FileIdentity.of(os.fstat(descriptor)) != file:
        os.close(descriptor)
        raise FileNotFoundError(path)
    return descriptor


def _crc32c_of(path: Path, file: FileIdentity) -> int:
    """The CRC-32C of this very file. Raises: as `_open`."""
    crc = EMPTY_CRC32C
    with FileRanges(path, _open(path, file)) as opened:
        for start in range(0, file.size, _SUMMED_BYTES):
            crc = extend(crc, opened.read_range(start, _SUMMED_BYTES))
        if FileIdentity.of(opened.status()) != file:
            raise FileNotFoundError(path)
    return crc


def _regular_file(path: Path) -> FileIdentity | None:
    status = status_of(path)
    return FileIdentity.of(status) if status is not None and stat.S_ISREG(status.st_mode) else None
