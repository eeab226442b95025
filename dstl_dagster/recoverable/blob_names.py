"""How final and temporary objects of the recoverable writer are named.

Owns `GSBlobIdentifier` and the patterns of temporary names. Does not own the objects (`commit`, `sweep`).

Source: Flink's `GSBlobIdentifier` and `BlobUtils`; the names are the same byte for byte.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format.names import attempt_half
from dstl_dagster.settings.gs import GSFileSystemOptions

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
