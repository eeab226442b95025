"""Our names, stats and preconditions in the words of the JSON API, and back.

Owns the mapping. Makes no request itself; a stat that came without a checksum asks through its caller.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from dstl_dagster.errors import UnavailableError
from dstl_dagster.format.crc32c import from_base64
from dstl_dagster.storage import rules
from dstl_dagster.storage.base import Absent, Generation, ObjectStat, Precondition
from dstl_dagster.storage.gcs.errors import cleaned

if TYPE_CHECKING:
    from google.cloud import storage

AskCRC32C = Callable[[str, int], int]
"""The checksum of an object of this name and generation, by a request. Raises: NotFoundError."""

_CONTENT_TYPES: Final = {
    ".jsonl": "application/x-ndjson",
    ".json": "application/json",
    ".csv": "text/csv",
    ".txt": "text/plain; charset=utf-8",
    ".parquet": "application/vnd.apache.parquet",
    ".arrow": "application/vnd.apache.arrow.file",
    ".gz": "application/gzip",
    ".zst": "application/zstd",
}


def content_type_of(name: str) -> str:
    """The content type of an object of this name, for browsers."""
    extension = name[name.rfind(".") :] if "." in name else ""
    return _CONTENT_TYPES.get(extension, "application/octet-stream")


class GCSNames:
    """The names of one store: below `prefix` in `bucket`. Any thread."""

    def __init__(self, bucket: storage.Bucket, prefix: str) -> None:
        self.bucket = bucket
        self.prefix = rules.check_prefix(prefix)

    @property
    def uri(self) -> str:
        return f"gs://{self.bucket.name}/{self.prefix}".rstrip("/")

    def uri_of(self, name: str) -> str:
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
            blob.content_type = content_type_of(name)
        return blob


def generation_match(precondition: Precondition) -> int | None:
    """The value of `ifGenerationMatch`; `None` sends none."""
    match precondition:
        case Absent():
            return 0
        case Generation(generation):
            return generation
        case _:
            return None


def stat_of_resource(name: str, resource: Mapping[str, Any], ask_crc32c: AskCRC32C) -> ObjectStat:
    """An object resource of the JSON API, under the store's name for it.

    Raises: UnavailableError if it is not such a resource: what the request did is unknown.
    """
    try:
        generation = int(resource["generation"])
        # A server may omit a size of zero, and no other; the checksum of no bytes is zero, too.
        size = int(resource.get("size", 0))
        updated = datetime.fromisoformat(resource["updated"])
        metadata = MappingProxyType(dict(resource.get("metadata") or {}))
        if "crc32c" not in resource:
            return _UnsummedStat(name, generation, size, updated, metadata, ask_crc32c)
        crc32c = from_base64(resource["crc32c"])
        if "size" not in resource and crc32c:
            raise KeyError("size")
        return ObjectStat(name, generation, size, crc32c, updated, metadata)
    except (KeyError, TypeError, ValueError) as error:
        raise UnavailableError(
            f"the response for {name!r} is not an object resource: {cleaned(repr(error))}"
        ) from None


class _UnsummedStat(ObjectStat):
    """A stat that came without a checksum: the first read of `crc32c` asks for it.

    Listings of objects under a customer-managed key omit it, and most callers never need it. Reading
    `crc32c` may therefore raise the errors of a request, and NotFoundError once the generation is gone.
    """

    def __init__(
        self,
        name: str,
        generation: int,
        size: int,
        updated: datetime,
        metadata: Mapping[str, str],
        ask_crc32c: AskCRC32C,
    ) -> None:
        fields = {"name": name, "generation": generation, "size": size, "updated": updated}
        vars(self).update(fields, metadata=metadata, _ask_crc32c=ask_crc32c)

    @functools.cached_property
    def crc32c(self) -> int:
        return cast("int", vars(self)["_ask_crc32c"](self.name, self.generation))

    def _whole(self) -> ObjectStat:
        return ObjectStat(self.name, self.generation, self.size, self.crc32c, self.updated, self.metadata)

    def __eq__(self, other: object) -> bool:
        return self._whole() == (other._whole() if isinstance(other, _UnsummedStat) else other)

    def __hash__(self) -> int:
        return hash((self.name, self.generation))
