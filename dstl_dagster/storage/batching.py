"""Many look-ups or deletions with few requests: by one listing of a folder, or in batches.

Owns when either is worth while. Does not own what is expected of the objects (`checkpoint.steps.record`),
what may be deleted, or how a batch is sent (`BatchDeletingStore`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import takewhile
from typing import cast

from dstl_dagster.concurrency import in_order
from dstl_dagster.errors import ConflictError
from dstl_dagster.storage.base import (
    MAX_BATCH_DELETES,
    BatchDeletingStore,
    ObjectStat,
    ObjectStore,
    Precondition,
)
from dstl_dagster.storage.rules import each_deleted

Check = Callable[[], None]
_LISTED_COMPONENTS = 16
"""A file with so many components or more is looked up by a listing of their folder."""


def component_lookups(
    store: ObjectStore, places: Sequence[tuple[str, str]]
) -> Sequence[Callable[[], ObjectStat | None]]:
    """How to look up each of these components of one file (bucket, name): singly, or all by one listing.

    The components of a file share a folder, and those of one attempt follow each other in it.
    """
    folders = {(bucket, name.rpartition("/")[0]) for bucket, name in places}
    if len(places) < _LISTED_COMPONENTS or len(folders) > 1:
        return [partial(_stat, store, *place) for place in places]
    ((bucket, folder),) = folders
    listing = _Listing(store.in_bucket(bucket), f"{folder}/", {name for _, name in places})
    return [partial(listing.stat, name) for _, name in places]


def _stat(store: ObjectStore, bucket_name: str, name: str) -> ObjectStat | None:
    return store.in_bucket(bucket_name).stat(name)


class _Listing:
    """Lists once, when the first of `names` is asked for. Thread-safe."""

    def __init__(self, home: ObjectStore, prefix: str, names: set[str]) -> None:
        self._home = home
        self._prefix = prefix
        self._names = names
        self._lock = threading.Lock()
        self._stats: dict[str, ObjectStat] | None = None

    def stat(self, name: str) -> ObjectStat | None:
        with self._lock:
            if self._stats is None:
                last = max(self._names)
                listed = self._home.list(self._prefix, start_offset=min(self._names))
                self._stats = {each.name: each for each in takewhile(lambda each: each.name <= last, listed)}
        return self._stats.get(name)


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
            return cast("BatchDeletingStore", store).delete_all(part)
        return each_deleted(lambda name, wanted: store.delete(name, precondition=wanted), part)

    with closing(in_order([partial(delete_part, part) for part in parts], threads, "dstl-delete")) as results:
        for answers in results:
            yield from answers
