"""Reading the local store: which generation a file is, its bytes, and the ordered walk.

Owns the match of files with records, and the adoption of files put there by hand. Does not own writing
(`local_writing`).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, TracebackType

from dstl_dagster.errors import DstlError, InvalidInputError, UnavailableError
from dstl_dagster.format.crc32c import EMPTY_CRC32C, extend
from dstl_dagster.storage import file_ranges, rules
from dstl_dagster.storage.base import ObjectStat
from dstl_dagster.storage.local_errors import is_missing, refused, status_of, translate_os_errors
from dstl_dagster.storage.local_files import HIDDEN_FOLDER, HiddenFolder
from dstl_dagster.storage.local_paths import check_inside, object_path
from dstl_dagster.storage.local_records import FileIdentity, Record, Records, match_record

__all__ = ["LocalReader", "LocalReading"]

_READ_BYTES = 1 << 20
_LOOK_ATTEMPTS = 100


class LocalReader:
    """An open file and the record of its generation. One thread at a time.

    The open file is the generation: a later write makes another file and never changes this one.
    """

    def __init__(self, path: Path, descriptor: int, record: Record, start: int) -> None:
        self._path = path
        self.record = record
        self._descriptor: int | None = descriptor
        self._position = start

    @translate_os_errors
    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, all the rest when negative; `b""` at the end."""
        descriptor = self._open_descriptor()
        wanted = max(0, self.record.file.size - self._position) if size < 0 else size
        parts: list[bytes] = []
        while wanted > 0:
            part = os.pread(descriptor, min(wanted, 64 * _READ_BYTES), self._position)
            if not part:
                break
            parts.append(part)
            self._position += len(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def place(self) -> str:
        """The file's path."""
        return str(self._path)

    def size_bytes(self) -> int:
        """The size of the generation that is open."""
        return self.record.file.size

    @translate_os_errors
    def read_range(self, start: int, length: int) -> bytes | memoryview:
        """As `RangeReader.read_range`; does not move where `read` goes on."""
        return file_ranges.read_range(self._open_descriptor(), start, length)

    @translate_os_errors
    def read_summed(self, start: int, length: int) -> tuple[bytes | memoryview, int]:
        """As `RangeReader.read_summed`."""
        return file_ranges.read_summed(self._open_descriptor(), start, length)

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise rules.closed_writer("a file that was being read")
        return self._descriptor

    def close(self) -> None:
        """May be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # it is closed all the same, and what was read was right
                os.close(descriptor)

    def __enter__(self) -> LocalReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class LocalReading:
    """The read side of one root. Safe from any thread."""

    def __init__(self, root: Path, hidden: HiddenFolder, records: Records) -> None:
        self._root = root
        self._hidden = hidden
        self._records = records

    @translate_os_errors
    def stat(self, name: str, generation: int | None) -> ObjectStat | None:
        """As `ObjectStore.stat`."""
        path = self._path(name)
        record = self._look(name, path)
        if record is None or generation not in (None, record.generation):
            return None
        return record.to_stat(name)

    @translate_os_errors
    def open(self, name: str, generation: int | None, start: int = 0) -> LocalReader:
        """Open the live generation. Raises: NotFoundError."""
        path = self._path(name)
        for _ in range(_LOOK_ATTEMPTS):
            try:
                # O_NONBLOCK: a pipe put there by hand must not make us wait.
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as error:
                if is_missing(error):
                    break
                raise
            record = None
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    break
                record = match_record(self._records.read(name), FileIdentity.of(status))
                if record is not None:
                    if generation not in (None, record.generation):
                        record = None
                        break
                    return LocalReader(path, descriptor, record, start)
            finally:
                if record is None:
                    os.close(descriptor)
            if self._look(name, path) is None:
                break
        raise rules.missing(f"{self._root / name}", generation)

    def live_record(self, name: str) -> Record | None:
        """The record of the file that is there, adopting one that came by hand. Under the name's lock."""
        path = self._path(name)
        for _ in range(_LOOK_ATTEMPTS):
            file = _regular_file(path)
            if file is None:
                return None
            records = self._records.read(name)
            record = match_record(records, file)
            if record is None:
                record = self._adopt(name, path, file, records)
            if record is not None:
                return record
        raise UnavailableError(f"{path} is being changed by hand again and again; wait until that is over")

    def _path(self, name: str) -> Path:
        path = object_path(self._root, name)
        # For writes too: each looks at what is there first.
        check_inside(self._root, path)
        if self._hidden.doubtful and path in self._hidden.doubtful:
            raise UnavailableError(
                f"{path} could be neither synced to the disk nor rolled back; "
                "find out what is wrong with the disk, then open the store again"
            )
        return path

    def _look(self, name: str, path: Path) -> Record | None:
        # Without the lock first. Where no record matches the file (yet, or any more), again under the lock.
        file = _regular_file(path)
        if file is None:
            return None
        record = match_record(self._records.read(name), file)
        if record is not None:
            return record
        try:
            with self._hidden.locked([name]):
                return self.live_record(name)
        except DstlError:
            raise
        except OSError as error:
            raise UnavailableError(
                f"{path} was put there by hand, and {self._hidden.path} cannot be written to note it: {error}"
            ) from error

    def _adopt(self, name: str, path: Path, file: FileIdentity, records: list[Record]) -> Record | None:
        crc = EMPTY_CRC32C
        try:
            with path.open("rb") as stream:
                while payload := stream.read(_READ_BYTES):
                    crc = extend(crc, payload)
                if FileIdentity.of(os.fstat(stream.fileno())) != file:
                    return None
        except FileNotFoundError:
            return None
        # A copied or restored tree has new inodes and the same bytes: its records still hold. The bytes of
        # an earlier generation, put there by hand, are a new one: only a copy of a tree in which a
        # replacement was under way has them with the time of that generation.
        for record in records:
            may_be = record is records[0] or record.file.modified_nanos == file.modified_nanos
            if may_be and record.file.size == file.size and record.crc32c == crc:
                adopted = record.bound_to(file)
                break
        else:
            highest = max((record.generation for record in records), default=0)
            adopted = Record(
                generation=self._hidden.next_generation(highest),
                crc32c=crc,
                updated=datetime.fromtimestamp(file.modified_nanos / 1e9, tz=UTC),
                metadata=MappingProxyType({}),
                file=file,
            )
        self._records.write(name, [adopted])
        return adopted

    # -- the walk

    def walk(self, prefix: str, start_offset: str) -> Iterator[ObjectStat]:
        """Objects in the order of their names' bytes. Holds the entries of one folder per level."""
        folder, slash, _ = prefix.rpartition("/")
        if any(level in ("", ".", "..") for level in folder.split("/")) and folder:
            return
        levels = folder.split("/") if folder else []
        if (levels and levels[0].lower() == HIDDEN_FOLDER) or (slash and not folder):
            return
        begin = self._root.joinpath(*levels)
        try:
            try:
                check_inside(self._root, begin / "any")
            except InvalidInputError:
                return
            above = f"{folder}/" if folder else ""
            yield from self._walk_folder(begin, above, prefix.encode(), start_offset.encode())
        except DstlError:
            raise
        except OSError as error:
            raise refused(error) from error

    def _walk_folder(self, folder: Path, above: str, prefix: bytes, offset: bytes) -> Iterator[ObjectStat]:
        for name, is_folder in _ordered_entries(folder, above):
            octets = name.encode()
            if is_folder:
                # Every name in it begins with `octets`: skip a folder that lies wholly before the offset
                # or outside the prefix.
                before = octets < offset and not offset.startswith(octets)
                if not before and (octets.startswith(prefix) or prefix.startswith(octets)):
                    yield from self._walk_folder(self._root / name, name, prefix, offset)
            elif octets >= offset and octets.startswith(prefix):
                found = self.stat(name, None)
                if found is not None:
                    yield found


def _ordered_entries(folder: Path, above: str) -> list[tuple[str, bool]]:
    """Names of a folder's files, and of its folders ending in `/`, in the order of their bytes."""
    entries: list[tuple[str, bool]] = []
    try:
        with os.scandir(folder) as scan:
            for entry in scan:
                if not above and entry.name.lower() == HIDDEN_FOLDER:
                    continue
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder or entry.is_file(follow_symlinks=False):
                    entries.append((f"{above}{entry.name}/" if is_folder else above + entry.name, is_folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    # A file put there by hand, under a name that no object can have, is not an object.
    readable = [entry for entry in entries if _is_name(entry[0])]
    return sorted(readable, key=lambda entry: entry[0].encode())


def _is_name(name: str) -> bool:
    try:
        rules.check_name(name)
    except InvalidInputError:
        return False
    return True


def _regular_file(path: Path) -> FileIdentity | None:
    status = status_of(path)
    return FileIdentity.of(status) if status is not None and stat.S_ISREG(status.st_mode) else None
