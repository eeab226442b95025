"""Looking up the components of a file: one by one, or by one listing where there are many in a folder.

Owns the choice. Does not own what is expected of the objects (`checkpoint.steps.record`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile

from dstl_dagster.storage.base import ObjectStat, ObjectStore

__all__ = ["Check", "component_lookups"]

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
