"""Resumable uploads of the strict server: sessions, chunks, status, cancel.

Owns bytes that are not an object yet. Does not own objects (`model`).
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dstl_dagster.testing.gcs_server.model import Model
from dstl_dagster.testing.gcs_server.objects import ApiError, Preconditions, StoredObject

__all__ = ["Session", "Sessions", "parse_content_range"]

_CHUNK_UNIT_BYTES = 256 * 1024
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


@dataclass
class Session:
    """One upload. `made` is set once it is finished, `cancelled` once the client cancels it."""

    bucket: str
    name: str
    resource: dict[str, Any]
    conditions: Preconditions
    received: bytearray = field(default_factory=bytearray)
    made: StoredObject | None = None
    cancelled: bool = False


@dataclass(frozen=True)
class ContentRange:
    """`first` is None for a status query; `total` is None while unknown."""

    first: int | None
    last: int | None
    total: int | None


def parse_content_range(text: str | None, length: int) -> ContentRange:
    """Raises: ApiError 400 if the text is not a range, or does not match the body's length."""
    if text is None:
        return ContentRange(0, length - 1, length)
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ApiError(400, "badRequest", f"Failed to parse Content-Range header {text!r}.")
    total = None if match.group(3) == "*" else int(match.group(3))
    if match.group(1) is None:
        return ContentRange(None, None, total)
    first, last = int(match.group(1)), int(match.group(2))
    if last - first + 1 != length or (total is not None and last >= total):
        raise ApiError(400, "badRequest", f"Content-Range {text!r} does not fit a body of {length} bytes.")
    return ContentRange(first, last, total)


class Sessions:
    """All uploads in progress on one server. A killed server loses them, as the service may."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}

    def start(self, bucket: str, name: str, resource: Mapping[str, Any], conditions: Preconditions) -> str:
        """The id of a new session. 404 if the bucket does not exist."""
        self._model.bucket_resource(bucket)
        session_id = uuid.uuid4().hex
        with self._lock:
            self._sessions[session_id] = Session(bucket, name, dict(resource), conditions)
        return session_id

    def find(self, session_id: str) -> Session:
        """404 for an unknown one, 499 for a cancelled one."""
        with self._lock:
            session = self._sessions.get(session_id)
        if session is None:
            raise ApiError(404, "notFound", "No such upload session")
        if session.cancelled:
            raise ApiError(499, "clientClosedRequest", "The upload was cancelled")
        return session

    def cancel(self, session_id: str) -> None:
        """Cancel it and drop its bytes."""
        session = self.find(session_id)
        with self._lock:
            session.cancelled = session.made is None
            session.received.clear()

    def receive(
        self, session: Session, span: ContentRange, body: bytes, hashes: Mapping[str, str]
    ) -> StoredObject | None:
        """Accept a chunk or a status query. Returns the object once the upload has ended, None before.

        A chunk that does not end the upload must be a multiple of 256 KiB. One that starts before the end of
        the received bytes overlaps, and only its new bytes count; one that starts after it is refused.
        """
        with self._model.lock:
            if session.made is not None:
                return session.made
            received = session.received
            if span.first is not None:
                if span.first > len(received):
                    raise ApiError(
                        400, "badRequest", f"Chunk at {span.first}, but the end is {len(received)}."
                    )
                last = span.last if span.last is not None else -1
                ends = span.total is not None and last + 1 == span.total
                if not ends and len(body) % _CHUNK_UNIT_BYTES != 0:
                    raise ApiError(400, "badRequest", f"{len(body)} bytes are not a multiple of 256 KiB")
                received += body[len(received) - span.first :]
            if span.total is None or len(received) != span.total:
                return None
            resource = {**session.resource, **hashes}
            session.made = self._model.insert(
                session.bucket, session.name, bytes(received), resource, session.conditions
            )
            received.clear()
            return session.made
