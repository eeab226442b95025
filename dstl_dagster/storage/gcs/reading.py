"""Reading Google Cloud Storage: stats, bytes of one generation, and pages of names.

Owns the requests that change nothing, the repeat of a read that was damaged in transit, and a stream's
read-ahead. Does not own writing (`gcs.store`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from dstl_dagster.errors import FormatError, NotFoundError
from dstl_dagster.format.crc32c import EMPTY_CRC32C, extend
from dstl_dagster.storage import rules
from dstl_dagster.storage.accounting.cost import Cost, Operation
from dstl_dagster.storage.base import ObjectReader, ObjectStat
from dstl_dagster.storage.gcs.errors import RangeNotSatisfiableError
from dstl_dagster.storage.gcs.json_api import GCSNames, stat_of_resource
from dstl_dagster.storage.gcs.transport import GCSTransport
from dstl_dagster.storage.policy.retry import RetryAttempt

if TYPE_CHECKING:
    from google.cloud import storage

_LIST_PAGE_OBJECTS: Final = 1000
_CORRUPT_READS: Final = 3
_READ_AHEAD_BYTES: Final = 4 * 1024 * 1024


class GCSReading:
    """The read side of one store. Any thread."""

    _transport: GCSTransport
    _names: GCSNames

    def stat(self, name: str, *, generation: int | None = None) -> ObjectStat | None:
        def reload(attempt: RetryAttempt) -> ObjectStat:
            blob = self._names.blob(name, generation)
            blob.reload(**self._transport.once(attempt))
            if "crc32c" not in blob._properties:
                raise FormatError(
                    f"the service returns no checksum of {self._names.uri_of(name)!r}, which is not "
                    "trusted without one; encrypt the bucket with Google's or a Cloud KMS key, not with "
                    "keys in requests"
                )
            return self._stat_of(blob)

        try:
            uri = self._names.uri_of(name)
            return self._transport.ask(uri, Operation.STAT, reload)
        except NotFoundError:
            self._transport.require_bucket()
            return None

    def _stat_of(self, blob: storage.Blob) -> ObjectStat:
        """The stat of a handle that a response has filled."""
        return stat_of_resource(blob.name[len(self._names.prefix) :], blob._properties, self._ask_crc32c)

    def _ask_crc32c(self, name: str, generation: int) -> int:
        """As `json_api.AskCRC32C`."""
        found = self.stat(name, generation=generation)
        if found is None:
            raise rules.missing(self._names.uri_of(name), generation)
        return found.crc32c

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        uri = self._names.uri_of(name)
        for reads_left in range(_CORRUPT_READS - 1, -1, -1):
            try:
                return self._download(uri, name, generation, checksum="crc32c")
            except FormatError:
                # Bytes damaged in transit are right the next time; bytes that are stored wrong stay wrong.
                if reads_left == 0:
                    raise
                self._transport.count(Cost(retries=1))
        raise AssertionError("unreachable")

    def get_range(self, name: str, start: int, length: int, *, generation: int | None = None) -> bytes:
        rules.check_range(name, start, length)
        uri = self._names.uri_of(name)
        if length == 0:
            if self.stat(name, generation=generation) is None:
                raise rules.missing(uri, generation)
            return b""
        try:
            last = start + length - 1
            return self._download(uri, name, generation, start=start, end=last, checksum=None)
        except RangeNotSatisfiableError:
            return b""

    def _download(self, uri: str, name: str, generation: int | None, **span: Any) -> bytes:
        def download(attempt: RetryAttempt) -> bytes:
            payload = self._names.blob(name, generation).download_as_bytes(
                raw_download=True, **self._transport.once(attempt), **span
            )
            self._transport.count(Cost(bytes_down=len(payload)))
            return bytes(payload)

        return self._transport.ask(uri, Operation.READ, download)

    def open_read(self, name: str, *, start: int = 0, generation: int | None = None) -> ObjectReader:
        rules.check_range(name, start)
        found = self.stat(name, generation=generation)
        if found is None:
            raise rules.missing(self._names.uri_of(name), generation)
        # Every part is read of the generation that was found, so that no two are ever mixed.
        return GCSReader(
            self._names.uri_of(name),
            found,
            start,
            lambda first, length: self.get_range(name, first, length, generation=found.generation),
        )

    def list(self, prefix: str = "", *, start_offset: str | None = None) -> Iterator[ObjectStat]:
        offset = None if start_offset is None else self._names.prefix + start_offset
        token: str | None = None
        while True:
            page, token = self._page(self._names.prefix + prefix, offset, token)
            yield from page
            if token is None:
                return

    def list_first(self, prefix: str, count: int, *, start_offset: str | None = None) -> Sequence[ObjectStat]:
        offset = None if start_offset is None else self._names.prefix + start_offset
        page, token = self._page(self._names.prefix + prefix, offset, None, count)
        if len(page) < count and token is not None:
            # A service may return less than asked.
            return [*islice(self.list(prefix, start_offset=start_offset), count)]
        return page

    def _page(
        self, full_prefix: str, offset: str | None, token: str | None, count: int = _LIST_PAGE_OBJECTS
    ) -> tuple[Sequence[ObjectStat], str | None]:
        def fetch(attempt: RetryAttempt) -> tuple[Sequence[ObjectStat], str | None]:
            walk = self._transport.client.list_blobs(
                self._transport.bucket,
                prefix=full_prefix or None,
                start_offset=offset,
                page_token=token,
                page_size=count,
                **self._transport.once(attempt),
            )
            page = next(walk.pages, ())
            return [self._stat_of(blob) for blob in page], walk.next_page_token

        return self._transport.ask(self._names.uri, Operation.LIST, fetch)


class GCSReader:
    """Reads ahead in ranges. A read of the whole object is verified against its checksum."""

    def __init__(
        self, uri: str, found: ObjectStat, start: int, read_range: Callable[[int, int], bytes]
    ) -> None:
        self._uri = uri
        self._found = found
        self._position = start
        self._read_range = read_range
        self._ahead = b""
        self._closed = False
        self._crc: int | None = EMPTY_CRC32C if start == 0 else None

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes. Raises: NotFoundError (the generation is gone), FormatError at the end."""
        if self._closed:
            raise rules.closed_writer(self._uri)
        left = max(0, self._found.size - self._position)
        wanted = left if size < 0 else min(size, left)
        parts: list[bytes] = []
        while wanted > 0:
            if not self._ahead:
                length = min(left, max(wanted, _READ_AHEAD_BYTES))
                self._ahead = self._read_range(self._position, length)
                if not self._ahead:
                    raise rules.missing(self._uri, self._found.generation)
            part, self._ahead = self._ahead[:wanted], self._ahead[wanted:]
            parts.append(part)
            self._position += len(part)
            wanted -= len(part)
            left -= len(part)
            self._check(part)
        return b"".join(parts)

    def close(self) -> None:
        self._closed = True
        self._ahead = b""

    def _check(self, part: bytes) -> None:
        if self._crc is not None:
            self._crc = extend(self._crc, part)
            if self._position == self._found.size:
                rules.check_crc32c(self._uri, self._crc, self._found.crc32c)
