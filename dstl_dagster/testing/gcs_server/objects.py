"""Stored objects and the checks a request must pass, as pure values and functions.

Owns object resources, preconditions, checksums, naming rules and the wording of errors. Does not own the
buckets or the effect of a request (`model`). Shares no code with the stores that are tested against it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import google_crc32c

__all__ = [
    "ApiError",
    "Preconditions",
    "StoredObject",
    "check_content_type",
    "check_hashes",
    "check_name",
    "condition_not_met",
    "crc32c_text",
    "md5_text",
    "no_such_object",
]


class ApiError(Exception):
    """An error response, as the service words it."""

    def __init__(self, code: int, reason: str, message: str, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.code = code
        self.reason = reason
        self.message = message


def crc32c_text(payload: bytes) -> str:
    """As in object resources and `X-Goog-Hash`."""
    return base64.b64encode(int(google_crc32c.value(payload)).to_bytes(4, "big")).decode()


def md5_text(payload: bytes) -> str:
    """As in object resources."""
    return base64.b64encode(hashlib.md5(payload).digest()).decode()  # noqa: S324 (the service's checksum, not a secret)


@dataclass(frozen=True)
class StoredObject:
    """One live generation."""

    bucket: str
    name: str
    payload: bytes
    generation: int
    metageneration: int
    created: str
    updated: str
    crc32c: str
    md5: str | None
    content_type: str
    metadata: Mapping[str, str]
    component_count: int | None = None

    def resource(self) -> dict[str, Any]:
        resource: dict[str, Any] = {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "contentType": self.content_type,
            "storageClass": "STANDARD",
            "size": str(len(self.payload)),
            "crc32c": self.crc32c,
            "etag": base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode(),
            "timeCreated": self.created,
            "updated": self.updated,
            "timeStorageClassUpdated": self.created,
        }
        if self.md5 is not None:
            resource["md5Hash"] = self.md5
        if self.metadata:
            resource["metadata"] = dict(self.metadata)
        if self.component_count is not None:
            resource["componentCount"] = self.component_count
        return resource


@dataclass(frozen=True)
class Preconditions:
    """The four preconditions of a request; None: not set."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    def check(self, live: StoredObject | None, *, reading: bool = False) -> None:
        """Raises: ApiError 412, or 304 for a read whose not-match condition fails."""
        generation = live.generation if live else 0
        if self.generation_match is not None and self.generation_match != generation:
            raise condition_not_met()
        if self.generation_not_match is not None and self.generation_not_match == generation:
            raise ApiError(304, "notModified", "Not Modified") if reading else condition_not_met()
        metageneration = live.metageneration if live else None
        if self.metageneration_match is not None and self.metageneration_match != metageneration:
            raise condition_not_met()
        if self.metageneration_not_match is not None and self.metageneration_not_match == metageneration:
            raise ApiError(304, "notModified", "Not Modified") if reading else condition_not_met()


def check_name(name: object) -> None:
    """Raises: ApiError 400 for a name that the service does not allow."""
    if not isinstance(name, str):
        raise ApiError(400, "invalid", "An object name is text")
    size = len(name.encode())
    if not 1 <= size <= 1024 or set(name) & {"\r", "\n", "\0"} or name in (".", ".."):
        raise ApiError(400, "invalid", f"Disallowed object name of {size} bytes")


def check_content_type(content_type: object) -> None:
    """Raises: ApiError 400 for a content type that no header can carry."""
    if not isinstance(content_type, str) or not content_type.isascii() or not content_type.isprintable():
        raise ApiError(400, "invalid", f"Invalid content type {content_type!r}")


def check_hashes(payload: bytes, resource: Mapping[str, Any]) -> None:
    """Raises: ApiError 400 if the resource has a checksum that the payload does not."""
    wanted = resource.get("crc32c")
    if wanted and wanted != crc32c_text(payload):
        raise ApiError(400, "invalid", f"Provided CRC32C {wanted!r} doesn't match calculated CRC32C.")
    wanted = resource.get("md5Hash")
    if wanted and wanted != md5_text(payload):
        raise ApiError(400, "invalid", f"Provided MD5 hash {wanted!r} doesn't match calculated MD5 hash.")


def condition_not_met() -> ApiError:
    """412, as the service words it."""
    return ApiError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


def no_such_object(bucket: str, name: str) -> ApiError:
    """404, as the service words it."""
    return ApiError(404, "notFound", f"No such object: {bucket}/{name}")
