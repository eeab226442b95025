"""The state from which any process can resume a write, or commit it; the names of its objects.

Owns the values, and the patterns of temporary names. Does not own their bytes (`serializers`), the stream or
the commit.

Source: Flink's `GSCommitRecoverable`, `GSResumeRecoverable`, `GSBlobIdentifier` and `BlobUtils`; the names
are the same byte for byte.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format.names import attempt_half
from dstl_dagster.format.stored import Stored
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ObjectStat

TEMPORARY_OBJECT_PREFIX = ".inprogress"

_VARIANT = 0b10 << 62  # RFC 4122's, in the upper two bits of the lower half
_RANDOM_HALF = (1 << 62) - 1


@dataclass(frozen=True, order=True)
class GSBlobIdentifier:
    """One object: its bucket, and its name in the bucket. Compares by value."""

    bucket_name: str
    object_name: str

    def __post_init__(self) -> None:
        if not isinstance(self.bucket_name, str) or not isinstance(self.object_name, str):
            raise InvalidInputError(
                f"bucket and object name must be strings, not {self.bucket_name!r} and {self.object_name!r}"
            )

    def __str__(self) -> str:
        return f"GSBlobIdentifier{{bucketName='{self.bucket_name}', objectName='{self.object_name}'}}"


def temporary_bucket_name(final: GSBlobIdentifier, options: GSFileSystemOptions) -> str:
    """The configured temporary bucket, or the final object's own."""
    return options.writer_temporary_bucket_name or final.bucket_name


def temporary_object_partial_name(final: GSBlobIdentifier) -> str:
    """The prefix shared by the temporary names of one final object: `.inprogress/<bucket>/<object>/`."""
    return f"{TEMPORARY_OBJECT_PREFIX}/{final.bucket_name}/{final.object_name}/"


def temporary_object_name(final: GSBlobIdentifier, object_id: uuid.UUID) -> str:
    """`.inprogress/<bucket>/<object>/<uuid>`."""
    return f"{temporary_object_partial_name(final)}{object_id}"


def temporary_object_name_with_entropy(final: GSBlobIdentifier, object_id: uuid.UUID) -> str:
    """`<uuid>.inprogress/<bucket>/<object>/<uuid>`: a random prefix spreads the load over the bucket."""
    return f"{object_id}{temporary_object_partial_name(final)}{object_id}"


def temporary_blob_identifier(
    final: GSBlobIdentifier, object_id: uuid.UUID, options: GSFileSystemOptions
) -> GSBlobIdentifier:
    """Bucket and name of a temporary object under these options."""
    name = temporary_object_name_with_entropy if options.filesink_entropy_enabled else temporary_object_name
    return GSBlobIdentifier(temporary_bucket_name(final, options), name(final, object_id))


def new_component_id(attempt: uuid.UUID, random_62_bits: int) -> uuid.UUID:
    """A component's UUID: the attempt's upper 64 bits, then the variant and 62 random bits."""
    return uuid.UUID(int=attempt_half(attempt) << 64 | _VARIANT | (random_62_bits & _RANDOM_HALF))


def attempt_of(object_id: uuid.UUID) -> int:
    """The upper 64 bits of the attempt's UUID, which a temporary object's id carries."""
    return attempt_half(object_id)


_LONG_MAX = 2**63 - 1


@dataclass(frozen=True)
class GSCommitRecoverable:
    """All a commit needs: the final object, and its components in byte order.

    `component_object_ids` takes any iterable of UUIDs and is stored as a tuple.

    Raises: InvalidInputError for other types.
    """

    final_blob_identifier: GSBlobIdentifier
    component_object_ids: Sequence[uuid.UUID]

    def __post_init__(self) -> None:
        if not isinstance(self.final_blob_identifier, GSBlobIdentifier):
            raise InvalidInputError(f"{self.final_blob_identifier!r} is not a GSBlobIdentifier")
        if not isinstance(self.component_object_ids, Iterable):
            raise InvalidInputError(f"{self.component_object_ids!r} is not a list of component ids")
        object_ids = tuple(self.component_object_ids)
        for object_id in object_ids:
            if not isinstance(object_id, uuid.UUID):
                raise InvalidInputError(f"a component id must be a UUID, not {object_id!r}")
        object.__setattr__(self, "component_object_ids", object_ids)

    def component_blob_ids(self, options: GSFileSystemOptions) -> list[GSBlobIdentifier]:
        """Where the components are under these options, which must be the writer's."""
        return [
            temporary_blob_identifier(self.final_blob_identifier, object_id, options)
            for object_id in self.component_object_ids
        ]


@dataclass(frozen=True)
class GSResumeRecoverable(GSCommitRecoverable):
    """All that is needed to resume writing. It can also be committed as it is.

    `position`: bytes written so far, 0 or more. `closed`: whether the stream was closed to writes.
    """

    position: int
    closed: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.position, int) or not 0 <= self.position <= _LONG_MAX:
            raise InvalidInputError(f"a position must be 0 or more bytes, not {self.position!r}")
        object.__setattr__(self, "closed", bool(self.closed))


@dataclass(frozen=True)
class Component(Stored):
    """One temporary object as written: a commit takes exactly this generation.

    Attributes: `size` in bytes; `crc32c` unsigned, of the bytes.
    """

    bucket_name: str
    object_name: str
    generation: int
    size: int
    crc32c: int

    @classmethod
    def of(cls, bucket_name: str, stat: ObjectStat) -> Component:
        return cls(bucket_name, stat.name, stat.generation, stat.size, stat.crc32c)
