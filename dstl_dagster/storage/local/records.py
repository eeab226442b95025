"""The local store's record of an object, beside its bytes: generation, checksum, metadata.

Owns the record files (`.dstl-store/records/`) and the match between a record and the file that is there.
Does not own locks or the order of steps (`local`).

A record is durable before its file is linked in, so it may describe a file that never came, and two files
while a replacement is under way. What counts is the generation that matches the live file: same inode, size
and modification time, or, in a tree that was copied or restored, the same bytes.

A record that a writer made is replaced by writers only, and removed with its file or after it. Reads add
what is proven: that a file holds its bytes, or the checksum of a file that no writer made (`foreign`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from dstl_dagster.errors import FormatError
from dstl_dagster.format.stored import from_fields, plain_list, to_fields
from dstl_dagster.storage.base import ObjectStat
from dstl_dagster.storage.local.files import FileIdentity, HiddenFolder

_VERSION = 1
_ENCODER = json.JSONEncoder(sort_keys=True)
_DAMAGES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of reading a record that is not one."""


@dataclass(frozen=True)
class Record:
    """One generation of one object, bound to the file that holds its bytes."""

    generation: int
    crc32c: int
    updated: datetime
    metadata: Mapping[str, str]
    file: FileIdentity
    foreign: bool = False
    """No writer of this store made the file."""

    def to_stat(self, name: str) -> ObjectStat:
        return ObjectStat(name, self.generation, self.file.size, self.crc32c, self.updated, self.metadata)


def match_record(records: Sequence[Record], file: FileIdentity) -> Record | None:
    """The record of this very file."""
    return next((record for record in records if record.file == file), None)


def written(records: Sequence[Record]) -> list[Record]:
    """Those that a writer made, newest first."""
    return [record for record in records if not record.foreign]


def record_by_bytes(records: Sequence[Record], file: FileIdentity, crc32c: int) -> Record:
    """The record of a file that none of them describes, by its bytes: in every process the same.

    Of the bytes of an earlier generation, from outside, it is a new one: only in the copy of a tree in
    which a replacement was under way do they have the time of that generation.
    """
    made = written(records)
    for record in made:
        may_be = record is made[0] or record.file.modified_nanos == file.modified_nanos
        if may_be and (record.file.size, record.crc32c) == (file.size, crc32c):
            return replace(record, file=file)
    return Record(
        generation=max(0, file.modified_nanos // 1000, *(record.generation for record in records)) + 1,
        crc32c=crc32c,
        updated=datetime.fromtimestamp(file.modified_nanos / 1e9, tz=UTC),
        metadata=MappingProxyType({}),
        file=file,
        foreign=True,
    )


class Records:
    """The record files of one root. Reads need no lock; write and remove under the name's lock."""

    def __init__(self, hidden: HiddenFolder) -> None:
        self._hidden = hidden
        self._folder = str(hidden.path / "records")

    def read(self, name: str) -> list[Record]:
        """All records of the name, newest first; empty where there are none.

        Raises: FormatError naming the damaged file.
        """
        path = self._path(name)
        try:
            return _from_text(_content(path), path, name)
        except FileNotFoundError:
            return []

    def names(self) -> Iterator[str]:
        """Every name that has records, those of deleted files too. Passes over damaged records.

        Holds the names of a sixteenth of the records at a time.
        """
        folder = Path(self._folder)
        for group in sorted(folder.iterdir()) if folder.is_dir() else []:
            # Read to its end first: what is removed meanwhile must not disturb the scan.
            for path in list(group.glob("*.json")):
                try:
                    name = json.loads(_content(str(path)))["name"]
                    known = str(path) == self._path(name)
                except (*_DAMAGES, OSError):
                    continue
                if known:
                    yield name

    def write(self, name: str, records: Sequence[Record]) -> None:
        """Replace the records of the name, durably."""
        document = {
            "version": _VERSION,
            "name": name,
            "generations": [to_fields(record) for record in records],
        }
        path = self._path(name)
        temporary = self._hidden.temporary_file()
        try:
            temporary.write(_ENCODER.encode(document).encode())
            temporary.sync()
            temporary.place(path, create_only=False)
        finally:
            temporary.close()
        self._hidden.sync_folder(os.path.dirname(path))  # noqa: PTH120 - a text: see HiddenFolder

    def remove(self, name: str) -> None:
        """Delete the records of the name. One that reappears after a power loss matches no file."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))  # noqa: PTH108 - a text: see HiddenFolder

    def _path(self, name: str) -> str:
        # Few folders: creating one costs as much as creating a file, and a store ends up with all of them.
        digest = hashlib.sha256(name.encode()).hexdigest()
        return f"{self._folder}/{digest[:1]}/{digest[1:]}.json"


def _content(path: str) -> bytes:
    # One read: a record is replaced by a rename, so an open one does not change.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not block us
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _from_text(text: bytes, path: str, name: str) -> list[Record]:
    try:
        document = json.loads(text)
        if document["version"] != _VERSION or document["name"] != name:
            raise FormatError(f"{path} is of version {document['version']} or of another name")
        return [from_fields(Record, entry) for entry in plain_list(document["generations"])]
    except _DAMAGES as error:
        raise FormatError(
            f"{path}, which records the object {name!r}, is damaged ({error}); "
            "move it away to have the file taken as one that another program wrote"
        ) from error
