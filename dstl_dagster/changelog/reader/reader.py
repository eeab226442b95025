"""Reading changes back from a handle, in the order in which they were made durable.

Owns the walk over the handles, and where a file's copies are looked for. Does not own which requests that
takes (`read_plan`), what a change means, nor the right to delete a file.

Source: Flink's `StateChangelogHandleStreamHandleReader`, which verifies nothing and filters nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from dstl_dagster.changelog.reader.nearest_copy import OpenedFile
from dstl_dagster.changelog.reader.read_cache import ReadCache
from dstl_dagster.changelog.reader.read_plan import (
    THREADS,
    FileRead,
    HandleRead,
    SetUse,
    files_of,
    opening_bytes,
)
from dstl_dagster.changelog.reader.stored_file import StoredFile
from dstl_dagster.concurrency import ReadAhead
from dstl_dagster.errors import FormatError, InvalidInputError, NotFoundError
from dstl_dagster.format.changelog_file.change_set_codec import DecodedChangeSet
from dstl_dagster.format.changelog_file.change_set_parts import is_within
from dstl_dagster.format.changes import META_KEY_GROUP, StateChange
from dstl_dagster.format.handles import (
    STORAGE_IDENTIFIER,
    ChangelogStateHandle,
    LocalStateHandle,
    StreamStateHandle,
)
from dstl_dagster.format.key_group_ranges import KeyGroupRange
from dstl_dagster.storage import FileRanges, ObjectStore, RangeReader

_MAX_BATCH_BYTES: Final = 1 << 30
_ROWS_AT_A_TIME: Final = 4096

_KeyGroups = tuple[KeyGroupRange, ...] | None
"""Those wanted, beside the metadata; `None`: all."""


class ChangelogReader:
    """Reads handles. Any thread; each iterator belongs to the thread that walks it.

    A file is opened once, however many change sets and handles of one call need it. From a store behind a
    network, files are fetched ahead by other threads (`read_plan` says how far). A local copy is read instead
    of the durable file where there is one; if it proves bad, the durable file is.

    Args:
        store: where the files are.
        local_directory: where local copies are.
        cache: what was read before of a store behind a network; it is not closed. `None`: nothing is cached.
        threads: requests in flight, at most.

    Errors while walking: NotFoundError (a file was deleted), FormatError (bytes that are not what they
    claim to be; names file and offset), UnavailableError.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        local_directory: Path | None = None,
        cache: ReadCache | None = None,
        threads: int = THREADS,
    ) -> None:
        self._store = store
        self._threads = threads
        self._local_directory = local_directory
        self._cache = cache

    def read(
        self, handle: ChangelogStateHandle, *, key_group_range: KeyGroupRange | None = None
    ) -> Iterator[StateChange]:
        """Every change, one by one. With a range: metadata, and the key groups in it."""
        self._check(handle)
        return self._read(handle, _one(key_group_range))

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
        return self._read_batches(handle, _one(key_group_range), views=views)

    def read_all(self, reads: Sequence[HandleRead]) -> list[list[pa.RecordBatch]]:
        """The batches of each read, as `read_batches` yields them. Opens each file once for all of them.

        All of it is in memory on return.
        """
        for each in reads:
            self._check(each.handle)
        found: list[dict[int, list[pa.RecordBatch]]] = [{} for _ in reads]
        with closing(self._walk(reads)) as change_sets:
            for uses, change_set in change_sets:
                if change_set is None:
                    continue
                for use in uses:
                    read = reads[use.read]
                    batches = list(_batches(change_set, read.key_groups, views=read.views))
                    found[use.read][use.place] = batches
        return [[batch for place in sorted(each) for batch in each[place]] for each in found]

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

    def _read(self, handle: ChangelogStateHandle, key_groups: _KeyGroups) -> Iterator[StateChange]:
        with closing(self._change_sets(handle, key_groups)) as change_sets:
            for change_set in change_sets:
                of_rows = change_set.row_key_groups().tolist()
                for start, stop in _row_ranges(change_set, key_groups):
                    for at in range(start, stop, _ROWS_AT_A_TIME):
                        end = min(at + _ROWS_AT_A_TIME, stop)
                        rows = zip(of_rows[at:end], change_set.changes(at, end), strict=True)
                        yield from map(StateChange._make, rows)

    def _read_batches(
        self, handle: ChangelogStateHandle, key_groups: _KeyGroups, *, views: bool
    ) -> Iterator[pa.RecordBatch]:
        with closing(self._change_sets(handle, key_groups)) as change_sets:
            for change_set in change_sets:
                yield from _batches(change_set, key_groups, views=views)

    def _change_sets(
        self, handle: ChangelogStateHandle, key_groups: _KeyGroups
    ) -> Generator[DecodedChangeSet, None, None]:
        """Those with changes in the range, as far as the footer says, in the handle's order."""
        found: dict[int, DecodedChangeSet | None] = {}
        following = 0
        with closing(self._walk([HandleRead(handle, key_groups)])) as change_sets:
            for uses, change_set in change_sets:
                found.update((use.place, change_set) for use in uses)
                # Almost always the one just read: a log's files follow each other.
                while following in found:
                    change_set = found.pop(following)
                    following += 1
                    if change_set is not None:
                        yield change_set

    def _walk(
        self, reads: Sequence[HandleRead]
    ) -> Generator[tuple[tuple[SetUse, ...], DecodedChangeSet | None], None, None]:
        """Every change set once, file by file, with its users."""
        files = [self._file(each) for each in files_of(reads)]
        with closing(self._opened(files)) as opened:
            for file in opened:
                for offset, uses in file.wanted.sets:
                    yield uses, file.change_set(offset)
                if self._cache is not None and file.footer is not None:
                    self._cache.keep_footer(self._store, file.wanted.stream, file.footer)

    def _opened(self, files: Sequence[OpenedFile]) -> Generator[OpenedFile, None, None]:
        """Each file in its order, to be read before the next is asked for; then it is closed."""
        threads = self._store.capabilities.lookup_threads(self._threads)
        with ExitStack() as stack:
            # After the threads have ended: none of them opens a file that is never closed.
            for each in files:
                stack.callback(each.close)
            sizes = (opening_bytes(each.wanted.stream.stored_bytes) for each in files)
            ahead = ReadAhead(zip(sizes, (each.begin_ahead for each in files), strict=True))
            pool = None
            if threads > 1 and _worth_threads(files):
                pool = stack.enter_context(ThreadPoolExecutor(threads, thread_name_prefix="dstl-read"))
                stack.callback(ahead.close)
                ahead.run(pool.submit)
            while ahead:
                file = ahead.take()
                if pool is not None:
                    file.run_ahead(pool.submit)
                yield file
                file.close()

    def _file(self, wanted: FileRead) -> OpenedFile:
        stream = wanted.stream
        if isinstance(stream, LocalStateHandle):
            return OpenedFile(wanted, self._sources(stream))
        footer = None if self._cache is None else self._cache.footer(self._store, stream)
        again = partial(StoredFile, self._store, stream)
        return OpenedFile(wanted, self._sources(stream), footer, again=again)

    def _sources(self, handle: StreamStateHandle) -> list[Callable[[], RangeReader]]:
        """Ways to open the file, the nearest first."""
        if isinstance(handle, LocalStateHandle):
            return [lambda: _open_local(Path(handle.name))]
        sources: list[Callable[[], RangeReader]] = []
        if self._local_directory is not None:
            copy = self._local_directory / handle.name.rpartition("/")[2]
            if copy.is_file():
                sources.append(lambda: FileRanges(copy))
        return [*sources, partial(self._durable, handle)]

    def _durable(self, handle: StreamStateHandle) -> RangeReader:
        if self._cache is None:
            return StoredFile(self._store, handle)
        kept = self._cache.open(self._store, handle)
        return kept or StoredFile(self._store, handle, self._cache.ranges(self._store, handle))


def _worth_threads(files: Sequence[OpenedFile]) -> bool:
    """One small file is one request, which the reader's own thread may as well make."""
    sizes = [each.wanted.stream.stored_bytes for each in files]
    return len(sizes) > 1 or any(size is None or size > opening_bytes(size) for size in sizes)


def _open_local(path: Path) -> FileRanges:
    try:
        return FileRanges(path)
    except FileNotFoundError as error:
        raise NotFoundError(f"local changelog copy {path} is not there: read the durable handle") from error


def _one(key_group_range: KeyGroupRange | None) -> _KeyGroups:
    return None if key_group_range is None else (key_group_range,)


def _batches(change_set: DecodedChangeSet, wanted: _KeyGroups, *, views: bool) -> Iterator[pa.RecordBatch]:
    key_groups = change_set.row_key_groups()
    for start, stop in _row_ranges(change_set, wanted):
        # A view of little would keep much in memory.
        as_views = views and 2 * (stop - start) >= len(key_groups)
        for at, end in _size_ranges(change_set, start, stop):
            changes = change_set.view_column(at, end) if as_views else change_set.binary_column(at, end)
            yield pa.RecordBatch.from_arrays(
                [pa.array(key_groups[at:end]), changes], names=["key_group", "change"]
            )


def _row_ranges(change_set: DecodedChangeSet, wanted: _KeyGroups) -> Iterator[tuple[int, int]]:
    """Rows [start, stop) of the wanted key groups, neighbours joined. Metadata is always wanted."""
    counts, key_groups = change_set.layout.counts, change_set.layout.key_groups
    if wanted is None:
        rows = int(counts.sum())
        if rows:
            yield 0, rows
        return
    ends = np.append(0, counts.cumsum())
    taken = is_within(key_groups, wanted) | (key_groups == META_KEY_GROUP)
    # Where what is taken begins and ends, in groups.
    edges = np.flatnonzero(np.diff(taken, prepend=False, append=False))
    for first, last in ends[edges].reshape(-1, 2).tolist():
        if last > first:
            yield first, last


def _size_ranges(change_set: DecodedChangeSet, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Rows [start, stop) in pieces that fit one Arrow array with 32-bit offsets."""
    starts = change_set.starts
    while start < stop:
        limit = int(starts[start]) + _MAX_BATCH_BYTES
        end = start + int((starts[start:stop] < limit).sum()) if int(starts[stop - 1]) >= limit else stop
        yield start, max(end, start + 1)
        start = max(end, start + 1)
