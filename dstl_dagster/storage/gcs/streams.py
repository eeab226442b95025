"""The streams of the Google store: a writer over an upload session, a reader over one generation.

Owns read-ahead and the checksum of a whole read. Does not own requests (`gcs`, `gcs.upload`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dstl_dagster.format.crc32c import EMPTY_CRC32C, extend
from dstl_dagster.storage import rules
from dstl_dagster.storage.base import Buffer, ObjectStat
from dstl_dagster.storage.gcs.upload import ResumableUpload

_READ_AHEAD_BYTES = 4 * 1024 * 1024


class GCSWriter:
    """At most one chunk in memory. Dropped without `close`, it never ends its session: nothing is created."""

    def __init__(
        self,
        uri: str,
        upload: ResumableUpload,
        *,
        put: Callable[[bytes], ObjectStat],
        stat_of: Callable[[Mapping[str, Any]], ObjectStat],
    ) -> None:
        self._uri = uri
        self._upload = upload
        self._put = put
        self._stat_of = stat_of
        self._made: ObjectStat | None = None
        self._over = False

    def write(self, payload: Buffer) -> int:
        return self._take(payload, None)

    def write_summed(self, payload: Buffer, crc32c: int) -> int:
        return self._take(payload, crc32c)

    def _take(self, payload: Buffer, crc32c: int | None) -> int:
        self._check_open()
        try:
            return self._upload.write(payload, crc32c)
        except BaseException:
            self.abort()  # how much was buffered is unknown: the contract ends the upload here
            raise

    def flush(self) -> None:
        """Nothing to do: a session takes whole chunks only, which are sent as they fill."""
        self._check_open()

    def close(self) -> ObjectStat:
        if self._made is None:
            self._check_open()
            if self._upload.began:
                self._made = self._stat_of(self._upload.finish())
                rules.check_crc32c(self._uri, self._made.crc32c, self._upload.crc32c)
            else:
                self._made = self._put(self._upload.buffered)
            self._over = True
        return self._made

    def abort(self) -> None:
        if not self._over:
            self._over = True
            self._upload.cancel()

    def _check_open(self) -> None:
        if self._over:
            raise rules.closed_writer(self._uri)


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
        """Free what was read ahead."""
        self._closed = True
        self._ahead = b""

    def _check(self, part: bytes) -> None:
        if self._crc is not None:
            self._crc = extend(self._crc, part)
            if self._position == self._found.size:
                rules.check_crc32c(self._uri, self._crc, self._found.crc32c)
