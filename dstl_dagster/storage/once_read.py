"""A store that fetches nothing twice while it remembers it, for readers that need the same objects.

Owns what is kept in memory, for the life of one operation or of the process. Does not own the choice of what
to read, nor copies on disk (`changelog.ChangelogFileCache`).
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dstl_dagster.storage.base import ObjectStore
from dstl_dagster.storage.wrapper import WrapperStore

__all__ = ["OnceRead", "ReadMemory", "forget_reads", "shared_reads"]

_MOST_BYTES = 64 << 20
_SMALL_BYTES = 8 << 20
_Object = tuple[str, int | None]
_Request = tuple[_Object, int, int | None]


@dataclass(frozen=True)
class _Kept:
    """Bytes of an object from `start` on; `last` if it ends there."""

    octets: memoryview
    start: int
    last: bool

    def part(self, start: int, length: int | None) -> memoryview | None:
        first = start - self.start
        held = self.last or (length is not None and first + length <= len(self.octets))
        if first < 0 or not held:
            return None
        return self.octets[first:] if length is None else self.octets[first : first + length]


@dataclass
class _Flight:
    """A request that is being made, and how many wait for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0


class ReadMemory:
    """What `OnceRead`s keep: pieces of up to 8 MiB, the longest unused dropped first. Any thread.

    Args:
        most_bytes: kept at most.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self.clear()

    def clear(self) -> None:
        """Forget everything, and who waits for what: for a forked child."""
        self._lock = threading.Lock()
        self._kept: dict[_Object, dict[int, _Kept]] = {}
        self._by_use: OrderedDict[tuple[_Object, int], None] = OrderedDict()
        self._flights: dict[_Request, _Flight] = {}
        self._bytes = 0

    def find(self, key: _Object, start: int, length: int | None) -> memoryview | None:
        """These bytes of an object, if they are kept; `length`: `None` for all that follow."""
        with self._lock:
            for piece in self._kept.get(key, {}).values():
                found = piece.part(start, length)
                if found is not None:
                    self._by_use.move_to_end((key, piece.start))
                    return found
            return None

    def holds(self, key: _Object) -> bool:
        """Whether any piece of the object is kept."""
        with self._lock:
            return key in self._kept

    def keep(self, key: _Object, kept: _Kept) -> None:
        """Keep a piece, unless it is long."""
        if len(kept.octets) > _SMALL_BYTES:
            return
        with self._lock:
            before = self._kept.get(key, {}).get(kept.start)
            if before is not None and len(before.octets) > len(kept.octets):
                return
            if before is not None:
                self._drop(key, kept.start)
            self._kept.setdefault(key, {})[kept.start] = kept
            self._by_use[key, kept.start] = None
            self._bytes += len(kept.octets)
            while self._bytes > self._most_bytes:
                self._drop(*next(iter(self._by_use)))

    def _drop(self, key: _Object, start: int) -> None:
        pieces = self._kept[key]
        self._bytes -= len(pieces.pop(start).octets)
        if not pieces:
            del self._kept[key]
        del self._by_use[key, start]

    def forget(self, key: _Object) -> None:
        """Drop all pieces of the object."""
        with self._lock:
            for start in list(self._kept.get(key, ())):
                self._drop(key, start)

    @contextmanager
    def one_at_a_time(self, request: _Request) -> Iterator[None]:
        """Whoever makes the same request waits: the first one's answer may be kept."""
        with self._lock:
            flight = self._flights.setdefault(request, _Flight())
            flight.users += 1
        try:
            with flight.lock:
                yield
        finally:
            with self._lock:
                flight.users -= 1
                if flight.users == 0 and self._flights.get(request) is flight:
                    del self._flights[request]


class OnceRead(WrapperStore):
    """Keeps what was read. Any thread.

    An object read without a generation stays as it was read first. Use it for one operation, then drop it.

    Args:
        memory: where it is kept; by default its own. With `pinned` only what is read of a given generation is
            kept, which never changes: such a memory may outlive the operation.
        service: tells stores of the same URI apart that share a memory.
    """

    def __init__(
        self,
        inner: ObjectStore,
        memory: ReadMemory | None = None,
        *,
        pinned: bool = False,
        service: str = "",
    ) -> None:
        super().__init__(inner)
        self._memory = memory or ReadMemory()
        self._pinned = pinned
        self._service = service

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        if self._pinned and generation is None:
            return self._inner.get(name)
        key = self._key(name, generation)
        with self._memory.one_at_a_time((key, 0, None)):
            kept = self._memory.find(key, 0, None)
            if kept is not None:
                return bytes(kept)
            payload = self._inner.get(name, generation=generation)
            self._memory.keep(key, _Kept(memoryview(payload), 0, last=True))
            return payload

    def get_range(
        self, name: str, start: int, length: int, *, generation: int | None = None
    ) -> bytes | memoryview:
        if self._pinned and generation is None:
            return self._inner.get_range(name, start, length)
        key = self._key(name, generation)
        with self._memory.one_at_a_time((key, start, length)):
            kept = self._memory.find(key, start, length)
            if kept is not None:
                return kept
            found = self._inner.get_range(name, start, length, generation=generation)
            if found:
                self._memory.keep(key, _Kept(memoryview(found), start, last=len(found) < length))
            return found

    def holds(self, name: str, generation: int | None) -> bool:
        """Whether this generation, or a part of it, is kept at the moment: it was there."""
        return self._memory.holds(self._key(name, generation))

    def forget(self, name: str, generation: int | None) -> None:
        """Ask for it again the next time: what was read of it is damaged."""
        self._memory.forget(self._key(name, generation))

    def _key(self, name: str, generation: int | None) -> _Object:
        return (f"{self._service} {self.uri_of(name)}", generation)


def forget_reads(store: ObjectStore, name: str, generation: int | None) -> None:
    """Let no store around `store` answer from memory for this object: its bytes do not match their checksums.

    A part of an object cannot be checked where it is kept, so whoever checks it calls this, and asks again.
    """
    while isinstance(store, WrapperStore):
        if isinstance(store, OnceRead):
            store.forget(name, generation)
        store = store.inner


_process_memory = ReadMemory()
os.register_at_fork(after_in_child=_process_memory.clear)


def shared_reads(store: ObjectStore, service: str = "") -> ObjectStore:
    """The store, with what any user of this function in this process has read of it lately; up to 64 MiB.

    For readers that follow each other in one process and know nothing of each other. A store on this machine
    is returned as it is. `service`: the endpoint, where it is not the usual one.
    """
    if store.capabilities.is_local:
        return store
    return OnceRead(store, _process_memory, pinned=True, service=service)
