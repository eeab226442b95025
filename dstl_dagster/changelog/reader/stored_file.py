"""A changelog file in the store, read in ranges.

Owns what is in memory of one file. Does not own which ranges are one request (`read_plan`), a file on this
machine (`storage.FileRanges`), nor what the bytes mean (`format.changelog_file`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from dstl_dagster.changelog.reader.read_plan import END_BYTES, REQUEST_BYTES, Span, joined, opening
from dstl_dagster.concurrency import ReadAhead, Submit
from dstl_dagster.errors import FormatError, NotFoundError
from dstl_dagster.format.handles import StreamStateHandle
from dstl_dagster.storage import ObjectStore, RangeReader, generation_of_copy

Octets = bytes | memoryview
_T = TypeVar("_T")


class Ranges(Protocol):
    """Ranges of one file that were read before, each with the start and length that it was cached with."""

    def find(self, start: int, length: int) -> Octets | None: ...

    def keep(self, start: int, octets: Octets) -> None: ...


class StoredFile:
    """An object of the store, of the handle's generation where it names one, or in a copied store its bytes.

    It is opened (`begin`), learns what will be read (`expect`), and is read in ascending order. Anything else
    is read as well, by a request each. One thread at a time.

    A store that keeps an object open (`open_ranges`) is read in place, and nothing is held here.

    Args:
        ranges: where ranges that others have read are looked for, and those that were `proven` are cached.
    """

    def __init__(self, store: ObjectStore, handle: StreamStateHandle, ranges: Ranges | None = None) -> None:
        self._store = store
        self._handle = handle
        self._ranges_kept = ranges
        self._expected: dict[tuple[int, int], Octets | None] = {}
        self._unproven: list[tuple[int, Octets]] = []
        self._size_bytes = handle.stored_bytes
        self._opened: RangeReader | None = None
        self._held: list[tuple[Span, Octets]] = []
        self._coming: deque[Span] = deque()
        self._ahead: ReadAhead[Octets] = ReadAhead()
        self._forward = False

    @property
    def place(self) -> str:
        return self._store.uri_of(self._handle.name)

    @property
    def in_place(self) -> bool:
        """Whether ranges are read where they are: nothing is gained by expecting them."""
        return self._store.capabilities.is_local

    def size_bytes(self) -> int:
        if self._size_bytes is None:
            stat = self._store.stat(self._handle.name, generation=self._handle.generation)
            if stat is None:
                raise NotFoundError(
                    f"changelog file {self.place} is not there: it was deleted, "
                    "or its checkpoint was subsumed"
                )
            self._size_bytes = stat.size
        return self._size_bytes

    @property
    def is_large(self) -> bool:
        """Whether it is not fetched whole: `begin` fetches its end, for the footer."""
        return opening(self.size_bytes()).start > 0

    def begin(self) -> None:
        """Fetch the file, or its end if it is large; of one that is read in place, only if it is small."""
        first = opening(self.size_bytes())
        if self.in_place and first.length > END_BYTES:
            return  # whole, it may be a hundred times what is needed of it
        if first.start == 0:
            octets = self._fetch_whole()
            if len(octets) != self._size_bytes:
                raise FormatError(f"{self.place} has {len(octets)} bytes, its handle says {self._size_bytes}")
            self._held = [(first, octets)]
        elif not self.in_place:
            self._held = [(first, self._fetch(first))]

    @property
    def holds_all(self) -> bool:
        """Whether the whole file is in memory: nothing has to be fetched or expected."""
        return bool(self._held) and self._held[0][0].length == self._size_bytes

    def need(self, needed_bytes: int) -> None:
        """How many bytes of a file that is held will be asked for."""
        whole, octets = self._held[0]
        self._held = [(whole._replace(needed=needed_bytes), octets)]

    def fetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Hold these (start, length) as well: fetch now what is not."""
        missing = [each for each in ranges if not any(_within(*each, span) for span, _ in self._held)]
        self._held += [(span, self._fetch(span)) for span in joined(missing)]

    def expect(self, ranges: Iterable[tuple[int, int]] | None) -> None:
        """From now on exactly these (start, length) are read, in ascending order; the first are fetched now.

        `None`: the file is read forward, from anywhere.
        """
        wanted = list(ranges or ())
        if self._ranges_kept is not None:
            self._expected = {each: self._ranges_kept.find(*each) for each in wanted}
            wanted = [each for each in wanted if self._expected[each] is None]
        spans = joined(wanted)
        self._forward = ranges is None
        self._coming = deque(spans)
        self._ahead = ReadAhead([(span.length, partial(self._fetch, span)) for span in spans])
        self._held = []
        if spans:
            self._take()

    def run_ahead(self, submit: Submit) -> None:
        """Let other threads fetch what is expected."""
        self._ahead.run(submit)

    def read_range(self, start: int, length: int) -> bytes | memoryview:
        length = max(0, min(length, self.size_bytes() - start))
        if length == 0:
            return b""
        known = self._expected.get((start, length))
        if known is not None:
            return known
        found = self._found(start, length)
        if (start, length) in self._expected:
            self._unproven.append((start, found))
        return found

    def proven(self) -> None:
        """The expected ranges that were read match the checksums of the change sets in it."""
        if self._ranges_kept is not None:
            for each in self._unproven:
                self._ranges_kept.keep(*each)
        self._unproven.clear()

    def _found(self, start: int, length: int) -> Octets:
        while True:
            for span, octets in self._held:
                if _within(start, length, span):
                    found = memoryview(octets)[start - span.start : start - span.start + length]
                    # A view keeps all of the span: not for less than half of it.
                    return found if 2 * span.needed >= span.length else bytes(found)
            if not self._next_span(start):
                return self._read(start, length)

    def _next_span(self, start: int) -> bool:
        """Replace what is held by the next expected span, if it can be the one from `start` on."""
        if not self._coming or self._coming[0].start > start:
            return False
        self._held = []
        self._take()
        return True

    def _take(self) -> None:
        span = self._coming.popleft()
        self._held = [(span, self._ahead.take())]

    def _read(self, start: int, length: int) -> Octets:
        opened = self._ranges() if self.in_place else None
        if opened is not None:
            return opened.read_range(start, length)
        if self._forward and length < REQUEST_BYTES:
            room = min(REQUEST_BYTES, self.size_bytes() - start)
            span = Span(start, room, room)
            octets = self._fetch(span)
            self._held = [(span, octets)]
            return memoryview(octets)[:length]
        return self._fetch(Span(start, length, length))

    def _ranges(self) -> RangeReader | None:
        """The object held open, where the store does that."""
        if self._opened is None:
            self._opened = self._of_generation(partial(self._store.open_ranges, self._handle.name))
        return self._opened

    def _fetch(self, span: Span) -> Octets:
        return self._of_generation(partial(self._store.get_range, self._handle.name, span.start, span.length))

    def _fetch_whole(self) -> Octets:
        if self._handle.stored_bytes is None:
            return self._of_generation(partial(self._store.get, self._handle.name))
        # This package's files prove each of their parts: the store need not checksum the whole as well.
        # And nothing is read after it: held open, the object would cost one request more.
        return self._fetch(opening(self.size_bytes()))

    def _of_generation(self, read: Callable[..., _T]) -> _T:
        """`read` of the handle's generation, or of the same bytes in a copied store."""
        handle = self._handle
        try:
            return read(generation=handle.generation)
        except NotFoundError:
            self._handle = bound_again(self._store, handle)
            if self._handle is handle:
                raise
        return read(generation=self._handle.generation)

    def close(self) -> None:
        self._held, self._coming = [], deque()
        self._unproven.clear()
        self._ahead.close()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


def bound_again(store: ObjectStore, handle: StreamStateHandle) -> StreamStateHandle:
    """The handle with the live generation if that is another one, of a copy of the file; else itself."""
    generation = generation_of_copy(store, handle.name, handle.stored_bytes, handle.crc32c)
    return handle if generation in (None, handle.generation) else replace(handle, generation=generation)


def _within(start: int, length: int, span: Span) -> bool:
    return span.start <= start and start + length <= span.end
