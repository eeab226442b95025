"""Objects as plain files under a root folder, with the semantics of a real bucket between processes.

Owns `LocalObjectStore`: the order of steps that makes a create atomic and crash-safe. Does not own the
file-system steps themselves (`local_files`), the records beside the files (`local_records`), reading
and walking (`local_reading`).

An object `reports/x.jsonl` is the file `root/reports/x.jsonl`, for anybody to read, move or remove. A file
that was put there by hand is an object too: it gets a generation and a checksum when it is first seen,
and has no metadata.

What this store refuses beyond the rules of all stores: a name that would be both file and folder, levels
that are empty, `.`, `..`, or too long for the file system, and its own hidden folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote, unquote

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import DstlError, InvalidInputError
from dstl_dagster.format.crc32c import EMPTY_CRC32C, extend
from dstl_dagster.storage import rules
from dstl_dagster.storage.base import (
    Buffer,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    Precondition,
    RangeReader,
    RequestCost,
    Source,
    StoreCapabilities,
)
from dstl_dagster.storage.local_files import (
    HiddenFolder,
    TemporaryFile,
    file_errors_told,
    prune_empty_folders,
)
from dstl_dagster.storage.local_paths import LOCAL_BUCKET, object_path, place_file
from dstl_dagster.storage.local_reading import LocalReading
from dstl_dagster.storage.local_records import FileIdentity, Record, Records

__all__ = ["LocalObjectStore", "open_local"]

_COPY_BYTES = 1 << 20
_CAPABILITIES = StoreCapabilities(
    request_cost=RequestCost.SYSTEM_CALL,
    # No request waits for a network: more threads than cores would contend. Two overlap a sync with work.
    max_useful_threads=max(2, os.cpu_count() or 2),
    open_ranges=True,
    write_summed=True,
)


class LocalObjectStore:
    """The files under one folder of this machine; its one bucket is called `local`.

    Args:
        root: an absolute or relative folder; made when something is first written.
        clock: stamps `ObjectStat.updated` and backs the generations.
        durable: False leaves out the fsyncs (for tests): safe against kills, not against loss of power.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, clock: Clock | None = None, durable: bool = True
    ) -> None:
        text = os.fspath(root)
        if not isinstance(text, str) or not text or "\0" in text:
            raise InvalidInputError(f"{root!r} is no folder to keep objects in")
        self._root = Path(text).absolute()
        self._clock = clock or SystemClock()
        self._hidden = HiddenFolder(self._root, self._clock, durable=durable)
        self._records = Records(self._hidden)
        self._reading = LocalReading(self._root, self._hidden, self._records)

    def __repr__(self) -> str:
        return f"LocalObjectStore({str(self._root)!r})"

    # -- where objects are

    @property
    def root(self) -> Path:
        """The folder, absolute."""
        return self._root

    @property
    def capabilities(self) -> StoreCapabilities:
        return _CAPABILITIES

    @property
    def uri(self) -> str:
        return "file://" + quote(str(self._root))

    @property
    def bucket_name(self) -> str:
        return LOCAL_BUCKET

    @property
    def prefix(self) -> str:
        return ""

    def in_bucket(self, bucket_name: str) -> ObjectStore:
        if bucket_name != LOCAL_BUCKET:
            raise InvalidInputError(
                f"{self.uri!r} has one bucket, {LOCAL_BUCKET!r}; there is no {bucket_name!r}: "
                "unset the temporary bucket, or use gs://"
            )
        return self

    def locate(self, uri: str) -> tuple[str, str]:
        """Takes `file:///root/object`, percent-encoded as usual; refuses `gs://`: no folder stands for it."""
        path = _path_of_uri(uri)
        try:
            name = path.relative_to(self._root).as_posix()
        except ValueError:
            raise InvalidInputError(f"{uri!r} lies outside of {self.uri!r}") from None
        if name == "." or uri.endswith("/"):
            raise InvalidInputError(f"{uri!r} names no object: write {self.uri}/object")
        object_path(self._root, name)
        return LOCAL_BUCKET, name

    def uri_of(self, name: str) -> str:
        object_path(self._root, name)
        return f"{self.uri}/{quote(name)}"

    # -- reading

    def stat(self, name: str, *, generation: int | None = None) -> ObjectStat | None:
        return self._reading.stat(name, generation)

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        with self._reading.open(name, generation) as reader:
            payload = reader.read()
            rules.check_crc32c(self.uri_of(name), extend(EMPTY_CRC32C, payload), reader.record.crc32c)
            return payload

    def get_range(
        self, name: str, start: int, length: int, *, generation: int | None = None
    ) -> bytes | memoryview:
        rules.check_range(name, start, length)
        with self._reading.open(name, generation) as reader:
            return reader.read_range(start, length)

    def open_ranges(self, name: str, *, generation: int | None = None) -> RangeReader:
        return self._reading.open(name, generation)

    def open_read(self, name: str, *, start: int = 0, generation: int | None = None) -> ObjectReader:
        rules.check_range(name, start)
        return self._reading.open(name, generation, start)

    def list(self, prefix: str = "", *, start_offset: str | None = None) -> Iterator[ObjectStat]:
        return self._reading.walk(prefix, start_offset or "")

    # -- writing

    def put(
        self,
        name: str,
        payload: Buffer,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectStat:
        writer = self.open_write(name, precondition=precondition, metadata=metadata)
        try:
            writer.write(payload)
            return writer.close()
        finally:
            writer.abort()

    def open_write(
        self,
        name: str,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int | None = None,
    ) -> ObjectWriter:
        object_path(self._root, name)
        rules.check_chunk_size(chunk_size)
        return _LocalWriter(self, name, precondition, rules.check_metadata(metadata))

    def _publish(
        self,
        name: str,
        temporary: TemporaryFile,
        file: FileIdentity,
        crc: int,
        precondition: Precondition,
        metadata: Mapping[str, str],
    ) -> ObjectStat:
        """Link a finished temporary file in, whose bytes are durable. Call under the name's lock."""
        path = object_path(self._root, name)
        current = self._reading.live_record(name)
        rules.check_precondition(self.uri_of(name), current.generation if current else None, precondition)
        new = Record(
            generation=self._hidden.next_generation(current.generation if current else 0),
            crc32c=crc,
            updated=self._clock.now(),
            metadata=metadata,
            file=file,
        )
        # Record first: whoever sees the file finds its record. A kill here leaves a record of no file.
        self._records.write(name, [new, current] if current else [new])
        try:
            place_file(self._hidden, temporary, path, create_only=current is None)
        except DstlError:
            if current is None:
                self._records.remove(name)
            raise
        return new.to_stat(name)

    # -- compose, copy, delete

    def compose(
        self,
        sources: Sequence[Source],
        target: str,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
        delete_sources: bool = False,
        crc32c: int | None = None,
    ) -> ObjectStat:
        rules.check_compose(sources, target)
        pairs = rules.check_metadata(metadata)
        return self._concatenate(sources, target, precondition, pairs, delete_sources, crc32c)

    def copy(
        self,
        source: Source,
        target: str,
        *,
        to: ObjectStore | None = None,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectStat:
        if to is not None and not (isinstance(to, LocalObjectStore) and to.root == self._root):
            raise InvalidInputError(f"cannot copy from {self.uri!r} to another store, {to!r}")
        rules.check_name(source.name)
        return self._concatenate([source], target, precondition, rules.check_metadata(metadata), False, None)

    @file_errors_told
    def _concatenate(
        self,
        sources: Sequence[Source],
        target: str,
        precondition: Precondition,
        metadata: Mapping[str, str],
        delete_sources: bool,
        wanted_crc32c: int | None,
    ) -> ObjectStat:
        object_path(self._root, target)
        temporary = self._hidden.temporary_file()
        try:
            pinned, crc = self._copy_bytes(sources, temporary)
            rules.check_crc32c(self.uri_of(target), crc, wanted_crc32c)
            file = FileIdentity.of(temporary.sync())
            going = [source for source in pinned if delete_sources and source.name != target]
            locked = [target, *(source.name for source in going)]
            with self._hidden.locked(locked, shared=[source.name for source in pinned]):
                # The bytes were read without locks. That the sources are there still, now that nobody can
                # take them, makes this one step: a late compose never brings back what was published
                # and cleaned up.
                for source in pinned:
                    live = self._reading.live_record(source.name)
                    if live is None or live.generation != source.generation:
                        raise rules.missing(self.uri_of(source.name), source.generation)
                made = self._publish(target, temporary, file, crc, precondition, metadata)
                for source in going:
                    self._remove(source.name)
                return made
        finally:
            temporary.close()

    def _copy_bytes(
        self, sources: Sequence[Source], temporary: TemporaryFile
    ) -> tuple[Sequence[Source], int]:
        pinned = []
        whole_crc = EMPTY_CRC32C
        for source in sources:
            with self._reading.open(source.name, source.generation) as reader:
                part_crc = EMPTY_CRC32C
                while payload := reader.read(_COPY_BYTES):
                    part_crc = extend(part_crc, payload)
                    whole_crc = extend(whole_crc, payload)
                    temporary.write(payload)
                rules.check_crc32c(self.uri_of(source.name), part_crc, reader.record.crc32c)
                pinned.append(Source(source.name, reader.record.generation))
        return pinned, whole_crc

    @file_errors_told
    def delete(self, name: str, *, precondition: Precondition) -> bool:
        rules.check_delete(name, precondition)
        path = object_path(self._root, name)
        if not os.path.isfile(path):  # noqa: PTH113 - a third of the time of Path.is_file
            return False
        with self._hidden.locked([name]):
            current = self._reading.live_record(name)
            if current is None:
                return False
            rules.check_precondition(self.uri_of(name), current.generation, precondition)
            self._remove(name)
            return True

    def _remove(self, name: str) -> None:
        path = object_path(self._root, name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - as above
        self._hidden.sync_removal(path)
        self._records.remove(name)
        prune_empty_folders(self._root, path.parent)

    def close(self) -> None:
        """Nothing to free: no file stays open between calls."""


class _LocalWriter:
    """Streams into a temporary file; memory holds one write at a time."""

    def __init__(
        self,
        store: LocalObjectStore,
        name: str,
        precondition: Precondition,
        metadata: Mapping[str, str],
    ) -> None:
        self._store = store
        self._name = name
        self._precondition = precondition
        self._metadata = MappingProxyType(dict(metadata))
        self._temporary: TemporaryFile | None = None
        self._crc = EMPTY_CRC32C
        self._made: ObjectStat | None = None
        self._over = False

    def write(self, payload: Buffer) -> int:
        return self._take(payload, None)

    def write_summed(self, payload: Buffer, crc32c: int) -> int:
        return self._take(payload, crc32c)

    @file_errors_told
    def _take(self, payload: Buffer, crc32c: int | None) -> int:
        temporary = self._open_file()
        octets = memoryview(payload).cast("B")
        try:
            temporary.write(octets)
        except OSError:
            self.abort()  # how much of it was taken is not known
            raise
        self._crc = extend(self._crc, octets) if crc32c is None else crc32c
        return len(octets)

    def flush(self) -> None:
        self._open_file()

    @file_errors_told
    def close(self) -> ObjectStat:
        if self._made is None:
            temporary = self._open_file()
            # Before the lock, which others wait for: a sync takes longer than all the rest.
            file = FileIdentity.of(temporary.sync())
            with self._store._hidden.locked([self._name]):
                self._made = self._store._publish(
                    self._name, temporary, file, self._crc, self._precondition, self._metadata
                )
            self._release()
        return self._made

    def abort(self) -> None:
        self._release()

    def __del__(self) -> None:
        # Dropped without `close`: nothing was linked in, and the temporary file goes.
        self._release()

    def _open_file(self) -> TemporaryFile:
        if self._over:
            raise rules.closed_writer(self._store.uri_of(self._name))
        if self._temporary is None:
            self._temporary = self._store._hidden.temporary_file()
        return self._temporary

    def _release(self) -> None:
        self._over = True
        if self._temporary is not None:
            self._temporary.close()


def open_local(uri: str) -> LocalObjectStore:
    """The store of `file:///absolute/folder`. Raises: InvalidInputError."""
    return LocalObjectStore(_path_of_uri(uri))


def _path_of_uri(uri: str) -> Path:
    if not isinstance(uri, str) or not uri.startswith("file://"):
        raise InvalidInputError(f"{uri!r} is no file:// URI, which is what a local store takes")
    path = unquote(uri[len("file://") :], errors="strict")
    if path.startswith("localhost/"):
        path = path[len("localhost") :]
    if not path.startswith("/") or "\0" in path:
        raise InvalidInputError(f"{uri!r} names no absolute path: write file:///folder")
    if ".." in path.split("/"):
        raise InvalidInputError(f"{uri!r} climbs out by '..'; write the folder itself")
    return Path(path)
