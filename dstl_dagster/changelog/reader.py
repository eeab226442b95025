"""Reading changes back from a handle, in the order in which they were made durable.

Owns the walk over the handle, the verification of each change set, and which copy of a file is read.
Does not own what a change means, nor who may still delete a file.

Source: Flink's `StateChangelogHandleStreamHandleReader`, which verifies nothing and filters nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from dstl_dagster.changelog.cache import ChangelogFileCache
from dstl_dagster.changelog.sources import StoreSource
from dstl_dagster.errors import DstlError, ErrorKind, FormatError, InvalidInputError, NotFoundError
from dstl_dagster.format.change_set_codec import DecodedChangeSet
from dstl_dagster.format.changelog_file import ChangelogFileReader
from dstl_dagster.format.changes import META_KEY_GROUP, StateChange
from dstl_dagster.format.handles import (
    STORAGE_IDENTIFIER,
    ChangelogStateHandle,
    LocalStateHandle,
    StreamStateHandle,
)
from dstl_dagster.format.key_groups import KeyGroupRange
from dstl_dagster.storage import FileRanges, ObjectStore, RangeReader

__all__ = ["ChangelogReader"]

_logger = logging.getLogger(__name__)

_MAX_BATCH_BYTES: Final = 1 << 30
_ROWS_AT_A_TIME: Final = 4096


class ChangelogReader:
    """Reads handles. Any thread; each iterator belongs to the thread that walks it.

    A file is opened at its first change set and closed after its last. A local copy is read
    instead of the durable file where there is one; if it proves bad, the durable file is.

    Errors while walking: NotFoundError (a file was deleted), FormatError (bytes that are not what they
    claim to be; names file and offset), UnavailableError.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        local_directory: Path | None = None,
        cache: ChangelogFileCache | None = None,
    ) -> None:
        self._store = store
        self._local_directory = local_directory
        self._cache = cache

    def read(
        self, handle: ChangelogStateHandle, *, key_group_range: KeyGroupRange | None = None
    ) -> Iterator[StateChange]:
        """Every change, one by one. With a range: metadata, and the key groups in it."""
        self._check(handle)
        return self._read(handle, key_group_range)

    def read_batches(
        self,
        handle: ChangelogStateHandle,
        *,
        key_group_range: KeyGroupRange | None = None,
        views: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Every change, as batches of `key_group: int32` (-1: metadata) and `change: binary`.

        With `views`, where most of a change set is wanted, the second is `binary_view` and points into the
        bytes that were read: nothing is copied, and a batch keeps all bytes of its change set alive. One
        batch per change set, or more where it is above 1 GiB or the range splits it.
        """
        self._check(handle)
        return self._read_batches(handle, key_group_range, views=views)

    def close(self) -> None:
        """Close this reader's cache; iterators in progress go on."""
        if self._cache is not None:
            self._cache.close()

    def _check(self, handle: object) -> None:
        if not isinstance(handle, ChangelogStateHandle):
            raise InvalidInputError(
                f"a reader takes a ChangelogStateHandle, not a {type(handle).__name__}: a persist's "
                "result has it as job_manager_owned_snapshot; ChangelogStateHandle.from_json takes JSON"
            )
        if handle.storage_identifier != STORAGE_IDENTIFIER:
            raise FormatError(
                f"the handle is of storage {handle.storage_identifier!r}, which is not known here"
            )

    def _read(
        self, handle: ChangelogStateHandle, key_group_range: KeyGroupRange | None
    ) -> Iterator[StateChange]:
        for change_set in self._change_sets(handle, key_group_range):
            key_groups = change_set.row_key_groups().tolist()
            for start, stop in _row_ranges(change_set, key_group_range):
                for at in range(start, stop, _ROWS_AT_A_TIME):
                    end = min(at + _ROWS_AT_A_TIME, stop)
                    rows = zip(key_groups[at:end], change_set.changes(at, end), strict=True)
                    yield from map(StateChange._make, rows)

    def _read_batches(
        self, handle: ChangelogStateHandle, key_group_range: KeyGroupRange | None, *, views: bool
    ) -> Iterator[pa.RecordBatch]:
        for change_set in self._change_sets(handle, key_group_range):
            key_groups = change_set.row_key_groups()
            for start, stop in _row_ranges(change_set, key_group_range):
                # A view of little would keep much in memory.
                as_views = views and 2 * (stop - start) >= len(key_groups)
                for at, end in _size_ranges(change_set, start, stop):
                    changes = (
                        change_set.view_column(at, end) if as_views else change_set.binary_column(at, end)
                    )
                    yield pa.RecordBatch.from_arrays(
                        [pa.array(key_groups[at:end]), changes], names=["key_group", "change"]
                    )

    def _change_sets(
        self, handle: ChangelogStateHandle, key_group_range: KeyGroupRange | None
    ) -> Iterator[DecodedChangeSet]:
        """Those with changes in the range, as far as the footer tells."""
        opened: _OpenedFile | None = None
        try:
            for stream_handle, offset in handle.handles_and_offsets:
                if opened is None or opened.handle != stream_handle:
                    if opened is not None:
                        opened.close()
                    opened = _OpenedFile(stream_handle, self._sources(stream_handle))
                found = opened.change_set(offset, key_group_range)
                if found is not None:
                    yield found
        finally:
            if opened is not None:
                opened.close()

    def _sources(self, handle: StreamStateHandle) -> list[Callable[[], RangeReader]]:
        """Ways to open the file, the nearest first."""
        if isinstance(handle, LocalStateHandle):
            return [lambda: _open_local(Path(handle.name))]
        sources: list[Callable[[], RangeReader]] = []
        if self._local_directory is not None:
            copy = self._local_directory / handle.name.rpartition("/")[2]
            if copy.is_file():
                sources.append(lambda: FileRanges(copy))
        cache = self._cache
        if cache is not None:
            sources.append(lambda: cache.open(self._store, handle) or StoreSource(self._store, handle))
        sources.append(lambda: StoreSource(self._store, handle))
        return sources


def _open_local(path: Path) -> FileRanges:
    try:
        return FileRanges(path)
    except FileNotFoundError as error:
        raise NotFoundError(f"local changelog copy {path} is not there: read the durable handle") from error


class _OpenedFile:
    """One file of a handle, read from the nearest copy that verifies."""

    def __init__(self, handle: StreamStateHandle, sources: list[Callable[[], RangeReader]]) -> None:
        self.handle = handle
        self._sources = sources
        self._source: RangeReader | None = None
        self._reader: ChangelogFileReader | None = None

    def change_set(self, offset: int, key_groups: KeyGroupRange | None) -> DecodedChangeSet | None:
        while True:
            try:
                return self._read(offset, key_groups)
            except (DstlError, OSError) as error:
                place = self._source.place if self._source is not None else self.handle.name
                self.close()
                self._sources.pop(0)
                if not self._sources:
                    raise _placed(error, place, offset) from error
                # A copy is only a shortcut; the durable file decides.
                _logger.warning("changelog copy %s is passed over: %s", place, error)

    def _read(self, offset: int, key_groups: KeyGroupRange | None) -> DecodedChangeSet | None:
        if self._reader is None:
            self._source = self._sources[0]()
            # A handle that knows how long its file is comes from this package's writer, which ends each
            # file with a footer: without one the file was cut.
            footer_required = self.handle.stored_bytes is not None
            if footer_required and self._source.size_bytes() != self.handle.stored_bytes:
                raise FormatError(
                    f"the file has {self._source.size_bytes()} bytes, not {self.handle.stored_bytes}"
                )
            self._reader = ChangelogFileReader(self._source, footer_required=footer_required)
        return self._reader.change_set_of(offset, key_groups)

    def close(self) -> None:
        self._reader = None
        if self._source is not None:
            self._source.close()
            self._source = None


def _placed(error: DstlError | OSError, place: str, offset: int) -> BaseException:
    if isinstance(error, FormatError):
        return FormatError(
            f"changelog file {place}, offset {offset}: {error.message}. Restore another checkpoint, or "
            "the file from a copy; it was left as it is",
            ErrorKind(error.kind),
        )
    if isinstance(error, OSError):
        return NotFoundError(f"changelog file {place} cannot be read: {error}")
    return error


def _row_ranges(
    change_set: DecodedChangeSet, key_group_range: KeyGroupRange | None
) -> Iterator[tuple[int, int]]:
    """Rows [start, stop) of the wanted key groups, neighbours joined. Metadata is always wanted."""
    counts = change_set.layout.counts.tolist()
    if key_group_range is None:
        if sum(counts):
            yield 0, sum(counts)
        return
    start = row = 0
    for key_group, count in zip(change_set.layout.key_groups.tolist(), counts, strict=True):
        if key_group != META_KEY_GROUP and not key_group_range.contains(key_group):
            if row > start:
                yield start, row
            start = row + count
        row += count
    if row > start:
        yield start, row


def _size_ranges(change_set: DecodedChangeSet, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Rows [start, stop) in pieces that fit one Arrow array with 32-bit offsets."""
    starts = change_set.starts
    while start < stop:
        limit = int(starts[start]) + _MAX_BATCH_BYTES
        end = start + int((starts[start:stop] < limit).sum()) if int(starts[stop - 1]) >= limit else stop
        yield start, max(end, start + 1)
        start = max(end, start + 1)
