"""Our names, stats and preconditions in the words of the JSON API, and back.

Owns the mapping. Makes no request.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from dstl_dagster.format.crc32c import from_base64
from dstl_dagster.storage import rules
from dstl_dagster.storage.base import Absent, Generation, ObjectStat, Precondition

if TYPE_CHECKING:
    from google.cloud import storage

__all__ = ["CONTENT_TYPE", "GCSNames", "generation_match", "stat_of_resource"]

CONTENT_TYPE: Final = "application/octet-stream"


class GCSNames:
    """The names of one store: below `prefix` in `bucket`. Any thread."""

    def __init__(self, bucket: storage.Bucket, prefix: str) -> None:
        self.bucket = bucket
        self.prefix = rules.check_prefix(prefix)

    @property
    def uri(self) -> str:
        """As `ObjectStore.uri`."""
        return f"gs://{self.bucket.name}/{self.prefix}".rstrip("/")

    def uri_of(self, name: str) -> str:
        """As `ObjectStore.uri_of`."""
        return f"gs://{self.bucket.name}/{self.full_name(name)}"

    def full_name(self, name: str) -> str:
        """The name in the bucket. Raises: InvalidInputError."""
        rules.check_name(name)
        return rules.check_name(self.prefix + name)

    def blob(
        self, name: str, generation: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> storage.Blob:
        """The client's handle of an object, with the metadata to write if it is to be written."""
        blob = self.bucket.blob(self.full_name(name), generation=generation)
        if metadata is not None:
            blob.metadata = dict(metadata)
            blob.content_type = CONTENT_TYPE
        return blob

    def stat_of(self, blob: storage.Blob) -> ObjectStat:
        """The stat of a handle that an answer has filled."""
        return stat_of_resource(blob.name[len(self.prefix) :], blob._properties)


def generation_match(precondition: Precondition) -> int | None:
    """The value of `ifGenerationMatch`; `None` sends none."""
    match precondition:
        case Absent():
            return 0
        case Generation(generation):
            return generation
        case _:
            return None


def stat_of_resource(name: str, resource: Mapping[str, Any]) -> ObjectStat:
    """An object resource of the JSON API, under the store's name for it."""
    return ObjectStat(
        name=name,
        generation=int(resource["generation"]),
        size=int(resource["size"]),
        crc32c=from_base64(resource["crc32c"]),
        updated=datetime.fromisoformat(resource["updated"]),
        metadata=MappingProxyType(dict(resource.get("metadata") or {})),
    )
