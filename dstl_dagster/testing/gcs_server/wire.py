"""The grammar of requests and responses: parameters, bodies, checksums.

Owns no state. Does not own what a request does (`model`).
"""

from __future__ import annotations

import email.parser
import json as json_text
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from io import BufferedIOBase
from typing import Any

from dstl_dagster.testing.gcs_server.objects import ApiError, Preconditions, StoredObject

__all__ = [
    "Answer",
    "bucket_name",
    "conditions",
    "error_answer",
    "hashes",
    "json_object",
    "multipart",
    "number",
    "object_answer",
    "read_body",
    "without_empty_sizes",
]


_MAX_LINE_BYTES = 1 << 16


@dataclass(frozen=True)
class Answer:
    """Status, JSON document or bytes, and headers."""

    status: int
    document: Any = None
    body: bytes | None = None
    headers: Mapping[str, str] | None = None


def error_answer(error: ApiError) -> Answer:
    """The response to a refused request."""
    document = {
        "error": {
            "code": error.code,
            "message": error.message,
            "errors": [{"message": error.message, "domain": "global", "reason": error.reason}],
        }
    }
    headers = None if error.retry_after is None else {"Retry-After": error.retry_after}
    return Answer(error.code, None if error.code == 304 else document, headers=headers)


def object_answer(stored: StoredObject) -> Answer:
    """An object's resource."""
    return Answer(200, stored.resource())


def without_empty_sizes(document: Any) -> Any:
    """The document without any object size of zero."""
    if isinstance(document, list):
        return [without_empty_sizes(each) for each in document]
    if not isinstance(document, dict):
        return document
    return {
        key: without_empty_sizes(value) for key, value in document.items() if (key, value) != ("size", "0")
    }


def multipart(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """(resource, payload) of a multipart upload. Raises: ApiError 400."""
    head = f"Content-Type: {content_type}\r\nMIME-Version: 1.0\r\n\r\n".encode()
    boundary = email.parser.BytesHeaderParser().parsebytes(head).get_boundary()
    if boundary is None:
        raise ApiError(400, "badRequest", "A multipart body needs a boundary.")
    # The payload may be any bytes: it is delimited by the boundary and never decoded.
    mark = b"--" + boundary.encode()
    sections = body.split(mark, 2)
    if len(sections) != 3:
        raise ApiError(400, "badRequest", "A multipart body has two parts.")
    first = sections[1].split(b"\r\n\r\n", 1)
    second = sections[2].split(b"\r\n\r\n", 1)
    if len(first) != 2 or len(second) != 2:
        raise ApiError(400, "badRequest", "A part of a multipart body has headers, then its bytes.")
    payload, found, _ = second[1].rpartition(b"\r\n" + mark + b"--")
    if not found:
        raise ApiError(400, "badRequest", "A multipart body ends in its boundary.")
    resource = json_object(first[1].strip())
    for line in second[0].splitlines():
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-type":
            resource.setdefault("contentType", value.strip().decode())
    return resource, payload


def read_body(headers: Message, stream: BufferedIOBase) -> bytes | None:
    """A request's whole body; None if the client died midway. Raises: ApiError 400, 501."""
    encoding = headers.get("Transfer-Encoding")
    if encoding is None:
        text = headers.get("Content-Length") or "0"
        if not (text.isascii() and text.isdigit()):
            raise ApiError(400, "badRequest", f"Invalid Content-Length {text!r}")
        body = stream.read(int(text))
        return body if len(body) == int(text) else None
    if encoding.strip().lower() != "chunked":
        raise ApiError(501, "notImplemented", f"This server does not read {encoding!r}")
    parts = []
    while True:
        line = stream.readline(_MAX_LINE_BYTES)
        text = line.decode("latin-1").partition(";")[0].strip()
        if not re.fullmatch("[0-9a-fA-F]{1,15}", text):
            raise ApiError(400, "badRequest", f"{text!r} is not a chunk size")
        if int(text, 16) == 0:
            break
        part = stream.read(int(text, 16))
        if len(part) < int(text, 16):
            return None
        if stream.readline(_MAX_LINE_BYTES) != b"\r\n":
            raise ApiError(400, "badRequest", "A chunk is longer than its size")
        parts.append(part)
    while stream.readline(_MAX_LINE_BYTES) not in (b"\r\n", b""):
        pass  # trailers, which have no meaning here
    return b"".join(parts)


def bucket_name(document: Mapping[str, Any]) -> str:
    """The name of a bucket to create. Raises: ApiError 400."""
    name = document.get("name")
    if not isinstance(name, str) or not name:
        raise ApiError(400, "invalid", f"Invalid bucket name: {name!r}")
    return name


def json_object(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises: ApiError 400."""
    if not body:
        return {}
    try:
        document = json_text.loads(body)
    except ValueError:
        raise ApiError(400, "parseError", "This API does not support parsing form-encoded input.") from None
    if not isinstance(document, dict):
        raise ApiError(400, "parseError", "A JSON object was expected.")
    return document


def conditions(query: Mapping[str, str]) -> Preconditions:
    """The preconditions in the query. Raises: ApiError 400."""
    return Preconditions(
        number(query, "ifGenerationMatch"),
        number(query, "ifGenerationNotMatch"),
        number(query, "ifMetagenerationMatch"),
        number(query, "ifMetagenerationNotMatch"),
    )


def number(query: Mapping[str, str], key: str) -> int | None:
    """An integer in the query; None if it is not set. Raises: ApiError 400."""
    if key not in query:
        return None
    try:
        return int(query[key])
    except ValueError:
        raise ApiError(400, "invalid", f"Invalid value for {key}: {query[key]!r}") from None


def hashes(header: str | None) -> dict[str, str]:
    """The checksums of an `X-Goog-Hash` header, under the keys of an object resource."""
    hashes: dict[str, str] = {}
    for part in (header or "").split(","):
        key, _, value = part.strip().partition("=")
        if key in ("crc32c", "md5") and value:
            hashes["crc32c" if key == "crc32c" else "md5Hash"] = value
    return hashes
