"""Deleting many objects: in batches where the store takes them, concurrently in either case.

Owns the shape of the requests. Does not own which objects go, or in which order groups of them do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from dstl_dagster.errors import ConflictError
from dstl_dagster.storage.base import MAX_BATCH_DELETES, BatchDeletingStore, ObjectStore, Precondition
from dstl_dagster.storage.rules import each_deleted

__all__ = ["delete_many"]


def delete_many(
    home: ObjectStore, objects: Sequence[tuple[str, Precondition]], threads: int, threads_name: str
) -> Iterator[bool | ConflictError]:
    """One answer for each object, in their order: whether it was there, or why it was left.

    Not atomic: if it is killed or raises, any of them may be gone. Raises: as `ObjectStore.delete`.
    """
    size = MAX_BATCH_DELETES if home.capabilities.batch_deletes else 1
    parts = [objects[at : at + size] for at in range(0, len(objects), size)]

    def delete_part(part: Sequence[tuple[str, Precondition]]) -> Sequence[bool | ConflictError]:
        if home.capabilities.batch_deletes:
            return cast("BatchDeletingStore", home).delete_all(part)
        return each_deleted(lambda name, wanted: home.delete(name, precondition=wanted), part)

    if threads == 1 or len(parts) < 2:
        for part in parts:
            yield from delete_part(part)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix=threads_name) as pool:
        for answers in pool.map(delete_part, parts):
            yield from answers
