"""Looking up components that are known only by id.

Owns these requests, one per component. Does not own what a caller does with the answer.
"""

from __future__ import annotations

import uuid

from dstl_dagster.errors import NotFoundError
from dstl_dagster.recoverable.identifiers import GSBlobIdentifier, temporary_blob_identifier
from dstl_dagster.recoverable.recoverables import Component
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ObjectStat, ObjectStore

__all__ = ["component_of", "look_up_component"]


def look_up_component(
    store: ObjectStore, final: GSBlobIdentifier, object_id: uuid.UUID, options: GSFileSystemOptions
) -> Component:
    """The component as it is now, at the name these options give it. Raises: NotFoundError."""
    blob = temporary_blob_identifier(final, object_id, options)
    bucket = store.in_bucket(blob.bucket_name)
    stat = bucket.stat(blob.object_name)
    if stat is None:
        raise NotFoundError(
            f"component {bucket.uri_of(blob.object_name)!r} is gone: it was committed or deleted"
        )
    return component_of(blob.bucket_name, stat)


def component_of(bucket_name: str, stat: ObjectStat) -> Component:
    """The stat of an object of this bucket as a component."""
    return Component(bucket_name, stat.name, stat.generation, stat.size, stat.crc32c)
