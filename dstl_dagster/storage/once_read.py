"""A store that fetches each small object once, for readers that need the same ones.

Owns what is kept, for the life of one operation. Does not own the choice of what to read, nor copies that
outlive the operation (`changelog.ChangelogFileCache`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from dstl_dagster.storage.base import ObjectStore
from dstl_dagster.storage.wrapper import WrapperStore

__all__ = ["OnceRead"]

_SMALL_BYTES = 8 << 20
_Key = tuple[str, str, int | None]


@dataclass(frozen=True)
class _Kept:
    """The first bytes of an object, or all of them."""

    octets: memoryview
    whole: bool


class OnceRead(WrapperStore):
    """Keeps what was read of objects up to 8 MiB, oldest dropped first. Any thread.

    An object read without a generation stays as it was read first. Use it for one operation, then drop it.

    Args:
        most_bytes: kept at most.
    """

    def __init__(self, inner: ObjectStore, most_bytes: int = 64 << 20) -> None:
        super().__init__(inner)
        self._memory = _Memory(most_bytes)

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        key = (self.bucket_name, self.prefix + name, generation)
        kept = self._memory.find(key)
        if kept is not None and kept.whole:
            return bytes(kept.octets)
        payload = self._inner.get(name, generation=generation)
        self._memory.keep(key, _Kept(memoryview(payload), whole=True))
        return payload

    def get_range(
        self, name: str, start: int, length: int, *, generation: int | None = None
    ) -> bytes | memoryview:
        key = (self.bucket_name, self.prefix + name, generation)
        kept = self._memory.find(key)
        if kept is not None and (kept.whole or start + length <= len(kept.octets)):
            return kept.octets[start : start + length]
        found = self._inner.get_range(name, start, length, generation=generation)
        if start == 0 and found:
            self._memory.keep(key, _Kept(memoryview(found), whole=False))
        return found

    def holds(self, name: str, generation: int | None) -> bool:
        """Whether this generation, or a part of it, is kept at the moment: it was there."""
        return self._memory.find((self.bucket_name, self.prefix + name, generation)) is not None


class _Memory:
    """What all buckets of one `OnceRead` share."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._bytes = 0

    def find(self, key: _Key) -> _Kept | None:
        with self._lock:
            return self._kept.get(key)

    def keep(self, key: _Key, kept: _Kept) -> None:
        if len(kept.octets) > _SMALL_BYTES:
            return
        with self._lock:
            before = self._kept.pop(key, None)
            self._kept[key] = kept
            self._bytes += len(kept.octets) - (0 if before is None else len(before.octets))
            while self._bytes > self._most_bytes:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= len(oldest.octets)
