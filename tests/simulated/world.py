"""The world of a simulation: objects in memory and a clock, which can be reset to an earlier moment.

Owns saving and loading the whole state, and notifying a watcher of every object created or removed. Does not
own the actors, or what is right.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dstl_dagster.storage import MemoryObjectStore, ObjectStat, ObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock

BUCKET = "memory"


class BrokenPromiseError(AssertionError):
    """Something that must always hold did not."""


class Watcher(Protocol):
    """Notified of every change of the storage, in order, right after it."""

    def created(self, bucket_name: str, name: str) -> None:
        """The object now exists."""
        ...

    def removed(self, bucket_name: str, name: str, stat: ObjectStat) -> None:
        """The object with this stat is gone."""
        ...


class _NoWatcher:
    def created(self, bucket_name: str, name: str) -> None:
        """Ignored."""

    def removed(self, bucket_name: str, name: str, stat: ObjectStat) -> None:
        """Ignored."""


@dataclass(frozen=True)
class Saved:
    """A moment's objects and time. Payloads are shared, never changed."""

    buckets: Mapping[str, tuple[Mapping[str, Any], tuple[bytes, ...]]]
    last_generation: int
    elapsed_seconds: float


class _WatchedStore(MemoryObjectStore):
    """Memory that reports its changes. All buckets of one world share its watcher."""

    _world: World

    def in_bucket(self, bucket_name: str) -> ObjectStore:
        view = _WatchedStore._of(self._account, bucket_name, "")
        assert isinstance(view, _WatchedStore)
        view._world = self._world
        return view

    def _create(self, full_name: str, *rest: Any) -> ObjectStat:
        made = super()._create(full_name, *rest)
        self._world.watcher.created(self.bucket_name, full_name)
        return made

    def _remove(self, full_name: str) -> None:
        gone = self._account.bucket(self.bucket_name).objects[full_name]
        super()._remove(full_name)
        self._world.watcher.removed(self.bucket_name, full_name, gone.stat)


class _Clock(VirtualClock):
    def put_back(self, elapsed_seconds: float) -> None:
        with self._lock:
            self._elapsed_seconds = elapsed_seconds


@dataclass
class World:
    """One storage account and one clock. Used by one thread at a time, or by actors that take turns."""

    clock: _Clock = field(default_factory=_Clock)
    watcher: Watcher = field(default_factory=_NoWatcher)

    def __post_init__(self) -> None:
        self.store: MemoryObjectStore = _WatchedStore(BUCKET, clock=self.clock)
        self.store._world = self

    def save(self) -> Saved:
        """The state now."""
        account = self.store._account
        return Saved(
            {
                name: (dict(bucket.objects), tuple(bucket.ordered_names))
                for name, bucket in account.buckets.items()
            },
            account._last_generation,
            self.clock.monotonic_seconds(),
        )

    def load(self, saved: Saved) -> None:
        """Reset everything in place: existing stores see it too. The watcher is not notified."""
        account = self.store._account
        account.buckets.clear()
        for name, (objects, ordered_names) in saved.buckets.items():
            bucket = account.bucket(name)
            bucket.objects.update(objects)
            bucket.ordered_names.extend(ordered_names)
        account._last_generation = saved.last_generation
        self.clock.put_back(saved.elapsed_seconds)

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Do not notify the watcher inside this context."""
        watcher, self.watcher = self.watcher, _NoWatcher()
        try:
            yield
        finally:
            self.watcher = watcher

    def objects(self) -> Iterator[tuple[str, str, bytes, ObjectStat]]:
        """Bucket, name, bytes and stat of every object, straight from the account."""
        for bucket_name, bucket in self.store._account.buckets.items():
            for name, found in bucket.objects.items():
                yield bucket_name, name, found.payload, found.stat

    def payload(self, name: str, bucket_name: str = BUCKET) -> bytes | None:
        """The bytes of one object, straight from the account."""
        found = self.store._account.bucket(bucket_name).objects.get(name)
        return None if found is None else found.payload

    def names(self, prefix: str, bucket_name: str = BUCKET) -> list[str]:
        """Names by prefix, ascending, straight from the account."""
        return sorted(
            name for name in self.store._account.bucket(bucket_name).objects if name.startswith(prefix)
        )


def fingerprint(saved: Saved) -> int:
    """Equal for equal moments: names, generations, bytes, times. Within one process only."""
    return hash(
        (
            saved.last_generation,
            saved.elapsed_seconds,
            *(
                (bucket_name, name, found.stat.generation, found.payload, found.stat.updated)
                for bucket_name, (objects, _ordered_names) in sorted(saved.buckets.items())
                for name, found in sorted(objects.items())
            ),
        )
    )


def ids_of(seed: str) -> Callable[[], uuid.UUID]:
    """UUIDs derived from the seed: the same in each replay, and different from any other seed's."""
    numbers = itertools.count()
    return lambda: uuid.UUID(
        bytes=hashlib.blake2b(f"{seed}/{next(numbers)}".encode(), digest_size=16).digest(), version=4
    )
