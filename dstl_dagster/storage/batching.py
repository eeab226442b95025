"""Many deletions with few requests, in batches.

Owns when that is worth while. Does not own what may be deleted, or how a batch is sent
(`ObjectStore.delete_all`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

from dstl_dagster.concurrency import in_order
from dstl_dagster.errors import ConflictError
from dstl_dagster.storage.base import MAX_BATCH_DELETES, ObjectStore, Precondition, each_deleted


def delete_each(
    store: ObjectStore, objects: Sequence[tuple[str, Precondition]], *, threads: int
) -> Iterator[bool | ConflictError]:
    """Delete each of them, while it is iterated; one answer each, in their order.

    `True`: this call deleted it; `False`: it was not there; a conflict is returned, not raised. `threads`:
    requests under way together, at most. Raises: as `ObjectStore.delete`.
    """
    size = MAX_BATCH_DELETES if store.capabilities.batch_deletes else 1
    parts = [objects[at : at + size] for at in range(0, len(objects), size)]

    def delete_part(part: Sequence[tuple[str, Precondition]]) -> Sequence[bool | ConflictError]:
        # One alone needs no envelope.
        if store.capabilities.batch_deletes and len(part) > 1:
            return store.delete_all(part)
        return each_deleted(store, part)

    with closing(in_order([partial(delete_part, part) for part in parts], threads, "dstl-delete")) as results:
        for answers in results:
            yield from answers
