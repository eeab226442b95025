"""What the strict server refuses: preconditions, checksums, limits, and what is not built. Owns no state."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import google_crc32c

if TYPE_CHECKING:
    from dstl_dagster.testing.gcs_server.model import StoredObject

__all__ = [
    "ApiError",
    "Preconditions",
    "check_built_listing",
    "check_built_settings",
    "check_content_type",
    "check_hashes",
    "check_name",
    "condition_not_met",
    "crc32c_text",
    "no_such_object",
    "not_built",
]


class ApiError(Exception):
    """An answer that is an error, as the service words it."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message


def not_built(what: str) -> ApiError:
    """Better than a success for what was not done."""
    return ApiError(501, "notImplemented", f"This server has no {what}.")


_UNBUILT_SETTINGS: Mapping[str, Callable[[Any], object]] = {
    "versioning": lambda setting: setting.get("enabled"),
    "softDeletePolicy": lambda setting: int(setting.get("retentionDurationSeconds") or 0),
    "retentionPolicy": lambda setting: setting.get("retentionPeriod"),
    "hierarchicalNamespace": lambda setting: setting.get("enabled"),
    "lifecycle": lambda setting: setting.get("rule"),
    "defaultEventBasedHold": bool,
}
"""Each setting of a bucket that would change what it does, and whether its value switches it on."""


def check_built_settings(resource: Mapping[str, Any]) -> None:
    """Raises: ApiError 501 for a bucket that would be another than it says."""
    for setting, is_on in _UNBUILT_SETTINGS.items():
        if resource.get(setting) and is_on(resource[setting]):
            raise not_built(setting)


def check_built_listing(query: Mapping[str, str]) -> None:
    """Raises: ApiError 501 for a listing that would show something else."""
    if query.get("matchGlob"):
        raise not_built("matchGlob")
    for parameter in ("versions", "softDeleted"):
        if query.get(parameter, "false").lower() != "false":
            raise not_built(parameter)


def check_name(name: object) -> None:
    """Raises: ApiError 400 for what is no object name."""
    if not isinstance(name, str):
        raise ApiError(400, "invalid", "An object name is text")
    size = len(name.encode())
    if not 1 <= size <= 1024 or set(name) & {"\r", "\n", "\0"} or name in (".", ".."):
        raise ApiError(400, "invalid", f"Disallowed object name of {size} bytes")


def check_content_type(content_type: object) -> None:
    """Raises: ApiError 400 for what no header can carry."""
    if not isinstance(content_type, str) or not content_type.isascii() or not content_type.isprintable():
        raise ApiError(400, "invalid", f"Invalid content type {content_type!r}")


def condition_not_met() -> ApiError:
    """A precondition failed."""
    return ApiError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


def no_such_object(bucket: str, name: str) -> ApiError:
    """There is no live generation of that name."""
    return ApiError(404, "notFound", f"No such object: {bucket}/{name}")


def crc32c_text(payload: bytes) -> str:
    """As in object resources and `X-Goog-Hash`."""
    return base64.b64encode(int(google_crc32c.value(payload)).to_bytes(4, "big")).decode()


def check_hashes(payload: bytes, resource: Mapping[str, Any]) -> None:
    """Raises: ApiError 400 for bytes that are not those that were sent."""
    wanted = resource.get("crc32c")
    if wanted and wanted != crc32c_text(payload):
        raise ApiError(400, "invalid", f"Provided CRC32C {wanted!r} doesn't match calculated CRC32C.")
    wanted = resource.get("md5Hash")
    if wanted and wanted != base64.b64encode(hashlib.md5(payload).digest()).decode():  # noqa: S324 (the service's checksum, no secret)
        raise ApiError(400, "invalid", f"Provided MD5 hash {wanted!r} doesn't match calculated MD5 hash.")


@dataclass(frozen=True)
class Preconditions:
    """The four conditions of a request; None is not asked for."""

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
