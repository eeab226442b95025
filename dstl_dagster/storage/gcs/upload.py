"""One resumable upload, request by request: bounded memory, and no doubt about its end.

Owns the session's protocol, and the writer over it. Does not own the transport, credentials or the client
(`gcs.transport`).

The session is what makes this safe: it creates at most one object, and answers at any time whether it did. So
after a lost answer it is asked. A stream that is dropped sends no end, and its session creates nothing.

Source: the service's documentation of resumable uploads in the JSON API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dstl_dagster.errors import FormatError, InternalError, UnavailableError
from dstl_dagster.format.crc32c import EMPTY_CRC32C, extend, to_base64
from dstl_dagster.storage import rules
from dstl_dagster.storage.base import Buffer, ObjectStat
from dstl_dagster.storage.gcs.errors import refusal
from dstl_dagster.storage.policy.retry import Retries, RetryAttempt

DEFAULT_CHUNK_SIZE_BYTES = 8 * 1024 * 1024
_RESUME_INCOMPLETE = 308


@dataclass(frozen=True)
class Reply:
    """Status, headers (any case), JSON document if there is one, and text: of an error its message."""

    status: int
    headers: Mapping[str, str]
    document: Mapping[str, Any] | None
    text: str


class Send(Protocol):
    """One HTTP request. UnavailableError where there was no answer. `body` is only valid during the call."""

    def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: Buffer, attempt: RetryAttempt
    ) -> Reply: ...


class ResumableUpload:
    """Buffers up to one chunk and sends it. One thread at a time.

    Args:
        uri: of the object, for messages.
        start: opens a session, with retries of its own, and returns its URL; called when the first chunk is
            full, or at the end.
        send: the transport.
        retries: around every other request.
        chunk_size: bytes, a multiple of 256 KiB.
    """

    def __init__(
        self,
        uri: str,
        start: Callable[[], str],
        send: Send,
        retries: Retries,
        chunk_size: int,
    ) -> None:
        self._uri = uri
        self._start = start
        self._send = send
        self._retries = retries
        self._chunk_size = chunk_size
        self._url = ""
        # One buffer for all chunks: new memory for each would cost more than the bytes in it. It is never
        # made larger once a chunk was sent, so a view that a failed request still holds does no harm.
        self._buffer = bytearray()
        self._filled = 0  # bytes at its start that are not yet sent
        self._sent = 0  # bytes that the service holds; those in the buffer follow them
        self._resource: Mapping[str, Any] | None = None
        self.crc32c = EMPTY_CRC32C

    @property
    def began(self) -> bool:
        """True once a session is open."""
        return bool(self._url)

    @property
    def buffered(self) -> bytes:
        return bytes(self._unsent())

    def write(self, payload: Buffer, crc32c: int | None = None) -> int:
        """Take all of it, sending chunks as they fill. Raises: as the transport, and `refusal`.

        `crc32c`: of everything up to the end of `payload`, if it is known.
        """
        octets = memoryview(payload).cast("B")
        self.crc32c = extend(self.crc32c, octets) if crc32c is None else crc32c
        position = 0
        while position < len(octets):
            # The last chunk stays back until more comes: an end must not be an empty chunk of its own.
            if self._filled == self._chunk_size:
                self._begin()
                self._retries.run(self._send_chunk)
            part = octets[position : position + self._chunk_size - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            position += len(part)
        return len(octets)

    def finish(self) -> Mapping[str, Any]:
        """End the upload: the object's resource. May be called again after an exception."""
        if self._resource is None:
            self._begin()
            self._resource = self._retries.run(self._send_end)
            self._drop_buffer()
        return self._resource

    def cancel(self) -> None:
        """Cancel the session, as far as the service can be reached. Never raises."""
        self._drop_buffer()
        if self._url and self._resource is None:
            try:
                self._send("DELETE", self._url, {"Content-Length": "0"}, b"", RetryAttempt(1, None))
            except UnavailableError:
                return  # it expires by itself after a week, and creates nothing

    # -- the buffer

    def _unsent(self) -> memoryview:
        return memoryview(self._buffer)[: self._filled]

    def _drop_buffer(self) -> None:
        # A new one in its place: the old may still be seen through a failed request's view.
        self._buffer = bytearray()
        self._filled = 0

    # -- steps

    def _begin(self) -> None:
        """Outside of the retries of what follows: it has its own."""
        if not self._url:
            self._url = self._start()

    def _send_chunk(self, attempt: RetryAttempt) -> None:
        if attempt.in_doubt:
            self._ask("bytes */*", attempt)
        chunk = self._unsent()
        if not chunk:
            return  # the service has had it all
        first = self._sent
        span = f"bytes {first}-{first + len(chunk) - 1}/*"
        reply = self._send("PUT", self._url, {"Content-Range": span}, chunk, attempt)
        if reply.status != _RESUME_INCOMPLETE:
            raise self._refusal(reply)
        self._forget_sent(reply)
        if self._filled:
            # It took a part. The rest is no multiple of 256 KiB only if the service says so itself.
            raise UnavailableError(f"the service took only a part of a chunk of {self._uri!r}")

    def _send_end(self, attempt: RetryAttempt) -> Mapping[str, Any]:
        total = self._sent + self._filled
        if attempt.in_doubt:
            resource = self._ask(f"bytes */{total}", attempt)
            if resource is not None:
                return resource
        rest: Buffer = self._unsent() if self._filled else b""
        span = f"bytes {self._sent}-{total - 1}/{total}" if rest else f"bytes */{total}"
        headers = {"Content-Range": span, "X-Goog-Hash": f"crc32c={to_base64(self.crc32c)}"}
        reply = self._send("PUT", self._url, headers, rest, attempt)
        if reply.status in (200, 201) and reply.document is not None:
            return reply.document
        if reply.status == _RESUME_INCOMPLETE:
            self._forget_sent(reply)
            raise UnavailableError(f"the service took only a part of the end of {self._uri!r}")
        raise self._refusal(reply)

    def _ask(self, span: str, attempt: RetryAttempt) -> Mapping[str, Any] | None:
        """The session's object if it is finished; otherwise drops from the buffer what the service holds."""
        reply = self._send("PUT", self._url, {"Content-Range": span}, b"", attempt)
        if reply.status in (200, 201) and reply.document is not None:
            return reply.document
        if reply.status != _RESUME_INCOMPLETE:
            raise self._refusal(reply)
        self._forget_sent(reply)
        return None

    def _forget_sent(self, reply: Reply) -> None:
        span = next((value for key, value in reply.headers.items() if key.lower() == "range"), None)
        try:
            held = int(span.rpartition("-")[2]) + 1 if span else 0
        except ValueError as error:
            raise UnavailableError(
                f"{span!r} does not say how much of {self._uri!r} the service holds"
            ) from error
        if not self._sent <= held <= self._sent + self._filled:
            raise InternalError(
                f"the upload session of {self._uri!r} holds {held} bytes, which were dropped or never sent"
            )
        kept = bytes(self._unsent()[held - self._sent :])
        self._buffer[: len(kept)] = kept
        self._filled = len(kept)
        self._sent = held

    def _refusal(self, reply: Reply) -> Exception:
        if reply.status in (404, 410):
            return rules.lost_upload(self._uri)
        error = refusal(reply.status, reply.text, self._uri)
        return rules.damaged_upload(self._uri) if isinstance(error, FormatError) else error


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

    def write(self, payload: Buffer, crc32c: int | None = None) -> int:
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
                made = self._stat_of(self._upload.finish())
                rules.check_crc32c(self._uri, made.crc32c, self._upload.crc32c)
            else:
                made = self._put(self._upload.buffered)
            self._made = made
            self._over = True
        return self._made

    def abort(self) -> None:
        if not self._over:
            self._over = True
            self._upload.cancel()

    def _check_open(self) -> None:
        if self._over:
            raise rules.closed_writer(self._uri)
