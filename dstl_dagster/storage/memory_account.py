"""Buckets in this process's memory: which objects are live, in which order, and under which lock.

Owns the account, whose lock makes each request of `memory` one step. Does not own the contract's rules.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.storage.base import ObjectStat

PAGE_OBJECTS: Final = 1000


@dataclass(frozen=True)
class MemoryObject:
    """One live generation. The name in its stat is the full name in the bucket."""

    payload: bytes
    stat: ObjectStat


class MemoryBucket:
    """The live objects of one bucket. Only under the account's lock."""

    def __init__(self) -> None:
        self.objects: dict[str, MemoryObject] = {}
        self.ordered_names: list[bytes] = []

    def place(self, made: MemoryObject) -> None:
        """Make it live, in place of another of its name."""
        full_name = made.stat.name
        if full_name not in self.objects:
            bisect.insort(self.ordered_names, full_name.encode())
        self.objects[full_name] = made

    def remove(self, full_name: str) -> None:
        """Delete a live object."""
        del self.objects[full_name]
        del self.ordered_names[bisect.bisect_left(self.ordered_names, full_name.encode())]

    def page(self, full_prefix: bytes, position: bytes) -> Sequence[MemoryObject]:
        """Up to `PAGE_OBJECTS` objects from `position` (inclusive) on; fewer only at the end."""
        first = bisect.bisect_left(self.ordered_names, position)
        window = self.ordered_names[first : first + PAGE_OBJECTS]
        return [self.objects[key.decode()] for key in window if key.startswith(full_prefix)]


class MemoryAccount:
    """All buckets of one address space. Every access holds `lock`, so each request is atomic."""

    def __init__(self, identity: str, clock: Clock) -> None:
        self.identity = identity
        self.clock = clock
        self.lock = threading.RLock()
        self.buckets: dict[str, MemoryBucket] = {}
        self._last_generation = 0

    @property
    def owner(self) -> str:
        """What stands before the bucket in a URI: empty for the account that the process shares."""
        return f"{self.identity}@" if self.identity else ""

    def bucket(self, bucket_name: str) -> MemoryBucket:
        """The bucket, made where it is not there yet."""
        found = self.buckets.get(bucket_name)  # as a rule: making one to throw away took longer than the rest
        return self.buckets.setdefault(bucket_name, MemoryBucket()) if found is None else found

    def next_generation(self) -> int:
        """Above every earlier one of the account, so that a name deleted and made again gets a higher one."""
        self._last_generation += 1
        return self._last_generation


_numbers = itertools.count(1)
_private: WeakValueDictionary[str, MemoryAccount] = WeakValueDictionary()
SHARED_ACCOUNT: Final = MemoryAccount("", SystemClock())
"""The account of every `memory://bucket` in this process."""


def new_account(clock: Clock) -> MemoryAccount:
    """A private account, which lives as long as a store on it."""
    account = MemoryAccount(f"private-{next(_numbers)}", clock)
    _private[account.identity] = account
    return account


def private_account(identity: str) -> MemoryAccount | None:
    """The private account of this identity; `None` where no store on it lives any more."""
    return _private.get(identity)
