"""The state from which any process can resume a write, or commit it.

Owns the values. Does not own their bytes (`serializers`), the stream or the commit.

Source: Flink's `GSCommitRecoverable` and `GSResumeRecoverable`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dstl_dagster.errors import FormatError, InvalidInputError
from dstl_dagster.recoverable.blob_names import GSBlobIdentifier, temporary_blob_identifier
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ObjectStat

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
class Component:
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

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Component:
        """The inverse of `to_json`. Raises: FormatError."""
        try:
            numbers = [document[key] for key in ("generation", "size", "crc32c")]
            texts = [document[key] for key in ("bucket_name", "object_name")]
        except (KeyError, TypeError) as error:
            raise FormatError(f"{document!r} is not a component: {error} is missing") from error
        if not all(isinstance(text, str) and text for text in texts):
            raise FormatError(f"{document!r} is not a component: it names no object")
        if not all(isinstance(number, int) and number >= 0 for number in numbers) or numbers[2] >= 1 << 32:
            raise FormatError(f"{document!r} is not a component: a number is out of range")
        return cls(*texts, *numbers)
