"""Objects as plain files under a root folder, with the semantics of a real bucket between processes.

Owns `LocalObjectStore`: the contract's methods, and which names each of them locks. Does not own reading and
walking (`local.reading`), the steps by which a file appears or goes (`local.writing`), or what names and URIs
a folder takes (`local.paths`).

An object `reports/x.jsonl` is the file `root/reports/x.jsonl`, for any program to read, move, remove. A file
that came from outside the store is an object too: it gets a generation and checksum when first seen,
and has no metadata.

What this store refuses beyond the rules of all stores: a name that would be both file and folder, levels
that are empty, `.`, `..`, or too long for the file system, and its own hidden folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import DstlError, InvalidInputError
from dstl_dagster.format.crc32c import EMPTY_CRC32C, extend
from dstl_dagster.format.crc32c import crc32c as checksum
from dstl_dagster.storage import rules
from dstl_dagster.storage.base import (
    ObjectReader,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    Precondition,
    RangeReader,
    Source,
    StoreCapabilities,
)
from dstl_dagster.storage.local.errors import status_of, translate_os_errors
from dstl_dagster.storage.local.files import HiddenFolder, TemporaryFile
from dstl_dagster.storage.local.paths import (
    LOCAL_BUCKET,
    folder_uri,
    located,
    object_path,
    object_uri,
    path_of_uri,
)
from dstl_dagster.storage.local.reading import LocalReading
from dstl_dagster.storage.local.records import Records
from dstl_dagster.storage.local.writing import LocalWriter, LocalWriting

DEFAULT_LOCK_WAIT_SECONDS = 60.0
"""Far longer than a change takes, including a slow sync."""
_COPY_BYTES = 1 << 20
_CAPABILITIES = StoreCapabilities(
    is_local=True,
    # No request waits for a network: more threads than cores would contend. Two overlap a sync with work.
    max_useful_threads=max(2, os.cpu_count() or 2),
    nested_names=True,
)


class LocalObjectStore(ObjectStore):
    """The files under one folder of this machine; its one bucket is called `local`.

    Args:
        root: an absolute or relative folder; created by the first write.
        clock: stamps `ObjectStat.updated`, and keeps generations rising across a power loss.
        durable: False skips the fsyncs (for tests): safe against kills, not against a power loss.
        lock_wait_seconds: how long a change waits for a lock of another process (a frozen one, say) before it
            fails with UnavailableError.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        durable: bool = True,
        lock_wait_seconds: float = DEFAULT_LOCK_WAIT_SECONDS,
    ) -> None:
        text = os.fspath(root)
        if not isinstance(text, str) or not text or "\0" in text:
            raise InvalidInputError(f"{root!r} is no path of a folder")
        # A URI takes no "..".
        self._root = Path(text).resolve() if ".." in Path(text).parts else Path(text).absolute()
        self._hidden = HiddenFolder(self._root, clock or SystemClock(), durable, lock_wait_seconds)
        self._records = Records(self._hidden)
        self._reading = LocalReading(self._hidden, self._records)
        self._writing = LocalWriting(self._hidden, self._records, self._reading)

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
        return folder_uri(self._root)

    @property
    def bucket_name(self) -> str:
        return LOCAL_BUCKET

    def in_bucket(self, bucket_name: str) -> ObjectStore:
        if bucket_name != LOCAL_BUCKET:
            raise InvalidInputError(
                f"{self.uri!r} has one bucket, {LOCAL_BUCKET!r}; there is no {bucket_name!r}: "
                "unset the temporary bucket, or use gs://"
            )
        return self

    def locate(self, uri: str) -> tuple[str, str]:
        """Takes `file:///root/object`, percent-encoded as usual; refuses `gs://`: no folder stands for it."""
        return LOCAL_BUCKET, located(self._root, uri)

    def uri_of(self, name: str) -> str:
        return object_uri(self._root, name)

    # -- reading

    def stat(self, name: str, *, generation: int | None = None) -> ObjectStat | None:
        return self._reading.stat(name, generation)

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        with self._reading.open(name, generation) as reader:
            payload = reader.read()
            rules.check_crc32c(self.uri_of(name), checksum(payload), reader.record.crc32c)
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
        return LocalWriter(self._writing, name, precondition, rules.check_metadata(metadata))

    # -- compose, copy, delete

    @translate_os_errors
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
        uri, pairs = self.uri_of(target), rules.check_metadata(metadata)
        temporary = self._hidden.temporary_file()
        try:
            pinned = self._copy_bytes(sources, temporary)
            rules.check_crc32c(uri, temporary.crc32c, crc32c)
            temporary.sync()
            names = [source.name for source in pinned]
            going = [name for name in names if delete_sources and name != target]
            with self._hidden.locked([target, *going], shared=names) as held:
                # The bytes were read without locks. That the sources are there still, now that no process can
                # take them, makes this one step: a late compose never brings back what was published
                # and cleaned up.
                for source in pinned:
                    live = self._reading.live_record(source.name)
                    if live is None or live.generation != source.generation:
                        raise rules.missing(self.uri_of(source.name), source.generation)
                made = self._writing.publish(target, held, temporary, precondition, pairs)
                for name in going:
                    self._writing.remove(name)
                return made
        finally:
            temporary.close()

    def _copy_bytes(self, sources: Sequence[Source], temporary: TemporaryFile) -> Sequence[Source]:
        """Returns the generations that were copied."""
        pinned = []
        for source in sources:
            with self._reading.open(source.name, source.generation) as reader:
                crc = EMPTY_CRC32C
                while payload := reader.read(_COPY_BYTES):
                    crc = extend(crc, payload)
                    temporary.write(payload)
                rules.check_crc32c(self.uri_of(source.name), crc, reader.record.crc32c)
                pinned.append(Source(source.name, reader.record.generation))
        return pinned

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
        return self.compose([source], target, precondition=precondition, metadata=metadata)

    @translate_os_errors
    def delete(self, name: str, *, precondition: Precondition) -> bool:
        rules.check_delete(name, precondition)
        if status_of(object_path(self._root, name)) is None:
            return False
        with self._hidden.locked([name]):
            current = self._reading.live_record(name)
            if current is None:
                return False
            rules.check_precondition(self.uri_of(name), current.generation, precondition)
            self._writing.remove(name)
            return True

    def forget_taken(self, *, dry_run: bool = False) -> Iterator[str]:
        """Remove the records of objects whose files were moved or removed by others; yields their names.

        A file restored later counts as one from outside the store: another generation, no metadata. Safe
        beside writers. A damaged record stays: a read of its object reports it.
        """
        with translate_os_errors:
            for name in self._records.names():
                # A record that cannot be decided, or is locked for long, waits for the next call.
                with contextlib.suppress(DstlError, OSError):
                    path = object_path(self._root, name)
                    if status_of(path) is not None:
                        continue
                    if not dry_run:
                        # Under the name's lock, as a writer that records and places a file.
                        with self._hidden.locked([name]):
                            if status_of(path) is not None:
                                continue
                            self._records.remove(name)
                    yield name


def open_local(uri: str) -> LocalObjectStore:
    """The store of `file:///absolute/folder`. Raises: InvalidInputError."""
    return LocalObjectStore(path_of_uri(uri))
