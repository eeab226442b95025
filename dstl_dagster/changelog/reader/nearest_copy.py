"""One changelog file that is being read, from the nearest copy that verifies.

Owns the choice between the copies, and the error that names file and offset. Does not own the copies
(`stored_file`, `read_cache`), nor what of the file is needed (`read_plan`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dstl_dagster.changelog.reader.read_plan import FileRead
from dstl_dagster.changelog.reader.stored_file import StoredFile
from dstl_dagster.concurrency import Submit
from dstl_dagster.errors import DstlError, ErrorKind, FormatError, NotFoundError
from dstl_dagster.format.changelog_file.change_set_codec import DecodedChangeSet
from dstl_dagster.format.changelog_file.reader import ChangelogFileReader, ReadFooter
from dstl_dagster.format.key_group_ranges import KeyGroupRange
from dstl_dagster.storage import RangeReader

_logger = logging.getLogger(__name__)


class OpenedFile:
    """Opened by `begin` in any thread, then read by one.

    Args:
        wanted: the needed parts of it; its change sets are read in this order.
        sources: ways to open it, the nearest first; the last one is the durable file.
        again: reads the durable file once more, even if it was cached.
        footer: the known parts of it, and filled; `None`: nothing is.
    """

    def __init__(
        self,
        wanted: FileRead,
        sources: list[Callable[[], RangeReader]],
        footer: ReadFooter | None = None,
        *,
        again: Callable[[], RangeReader] | None = None,
    ) -> None:
        self.wanted = wanted
        self._sources = sources
        self._again = again
        self.footer = footer
        self._source: RangeReader | None = None
        self._reader: ChangelogFileReader | None = None
        self._failure: DstlError | OSError | None = None

    def begin_ahead(self) -> OpenedFile:
        """`begin`, in another thread than the reader's: the first read meets its error."""
        try:
            self.begin()
        except (DstlError, OSError) as error:
            self._failure = error
        return self

    def begin(self) -> None:
        """Open the nearest copy, fetch what is needed first. Raises: as `change_set`, but names no place."""
        source = self._source = self._sources[0]()
        # A handle that knows how long its file is comes from this package's writer, which ends each
        # file with a footer: without one the file was cut.
        stored_bytes = self.wanted.stream.stored_bytes
        if stored_bytes is not None and source.size_bytes() != stored_bytes:
            raise FormatError(f"the file has {source.size_bytes()} bytes, not {stored_bytes}")
        footer = self.footer if len(self._sources) == 1 else None  # a copy may be another file
        reader = ChangelogFileReader(
            source,
            footer_required=stored_bytes is not None,
            known=footer,
            wanted_keys=self.wanted.wanted_keys,
            slices=self.wanted.slices,
        )
        if isinstance(source, StoredFile):
            begin_remote(source, reader, [offset for offset, _ in self.wanted.sets], self.wanted.key_groups)
        self._reader = reader

    def run_ahead(self, submit: Submit) -> None:
        """From now on this file is read: other threads may fetch what comes."""
        if isinstance(self._source, StoredFile):
            self._source.run_ahead(submit)

    def change_set(self, offset: int) -> DecodedChangeSet | None:
        """The change set at this offset; `None` if it has nothing that is needed.

        Raises: NotFoundError, FormatError (names file and offset), UnavailableError.
        """
        while True:
            try:
                return self._read(offset)
            except (DstlError, OSError) as error:
                place = self._source.place if self._source is not None else self.wanted.stream.name
                self.close()
                self._sources.pop(0)
                if not self._sources and self._again is not None and _may_pass(error):
                    self._sources.append(self._again)
                    self._again = None
                if not self._sources:
                    raise _placed(error, place, offset) from error
                # A copy is only a shortcut; the durable file decides.
                _logger.warning("changelog copy %s is passed over: %s", place, error)

    def _read(self, offset: int) -> DecodedChangeSet | None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._reader is None:
            self.begin()
        reader, source = self._reader, self._source
        assert reader is not None
        assert source is not None
        change_set = reader.change_set_of(offset, self.wanted.key_groups)
        if isinstance(source, StoredFile):
            source.proven()
        return change_set

    def close(self) -> None:
        """Release the file; `begin` must be over, or never run. May be called again."""
        self._reader = None
        source, self._source = self._source, None
        if source is not None:
            source.close()


def _may_pass(error: DstlError | OSError) -> bool:
    """Whether it may be right the next time: damaged on its way here, or as cached on this machine."""
    return isinstance(error, FormatError) or not isinstance(error, DstlError)


def begin_remote(
    source: StoredFile,
    reader: ChangelogFileReader,
    offsets: Sequence[int] | None = None,
    key_groups: Sequence[KeyGroupRange] | None = None,
) -> None:
    """Fetch what is needed first of these change sets, which will be read in ascending order; `None`: of all.

    Args:
        source: new.
        reader: of the same source.
        key_groups: that are needed; `None`: all.

    Raises: NotFoundError, FormatError, UnavailableError.
    """
    if not (reader.knows_footer and source.is_large):
        source.begin()
    index = None if source.in_place else reader.index()
    if source.in_place or (source.holds_all and (index is None or offsets is None)):
        return
    if offsets is None:
        offsets = [] if index is None else [entry.offset for entry in index.entries]
    if source.holds_all:
        source.need(sum(length for _, length in reader.body_ranges(offsets)))
        return
    source.fetch(reader.layout_ranges(offsets))
    source.expect(reader.stored_ranges((offset, key_groups) for offset in offsets))


def _placed(error: DstlError | OSError, place: str, offset: int) -> BaseException:
    if isinstance(error, FormatError):
        is_named = place.removeprefix("file://") in error.message
        what = error.message if is_named else f"changelog file {place}, offset {offset}: {error.message}"
        return FormatError(
            f"{what}. Restore another checkpoint, or the file from a copy; it was left as it is",
            ErrorKind(error.kind),
        )
    if not isinstance(error, DstlError):
        return NotFoundError(f"changelog file {place} cannot be read: {error}")
    return error
