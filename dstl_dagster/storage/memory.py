"""Objects in this process's memory, with the semantics of a real bucket.

Owns `MemoryObjectStore`, its streams, and the accounts of buckets, whose lock makes each request one step.
Nothing outlives the process.
"""

from __future__ import annotations

import bisect
import io
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from weakref import WeakValueDictionary

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import ConflictError, InvalidInputError, NotFoundError
from dstl_dagster.format.crc32c import crc32c as checksum
from dstl_dagster.storage import rules
from dstl_dagster.storage.base import (
    Buffer,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    Precondition,
    Source,
    StoreCapabilities,
    each_deleted,
)

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
        """The text before the bucket in a URI: empty for the account that the process shares."""
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
_SHARED: Final = MemoryAccount("", SystemClock())
"""The account of every `memory://bucket` in this process."""
_private: WeakValueDictionary[str, MemoryAccount] = WeakValueDictionary()
"""By identity. Each lives as long as a store on it."""


# It stands for a bucket: what runs over it takes the same ways as in production.
_CAPABILITIES = StoreCapabilities(batch_deletes=True)


class MemoryObjectStore(ObjectStore):
    """A bucket in memory. Alone it is private; its `uri` opens it again while any store on it lives.

    Args:
        bucket_name: the bucket; `in_bucket` gives the others of the same private account.
        clock: stamps `ObjectStat.updated`.
    """

    def __init__(self, bucket_name: str = "memory", *, clock: Clock | None = None) -> None:
        account = MemoryAccount(f"private-{next(_numbers)}", clock or SystemClock())
        _private[account.identity] = account
        self._attach(account, bucket_name, "")

    @classmethod
    def _of(cls, account: MemoryAccount, bucket_name: str, prefix: str) -> MemoryObjectStore:
        store = cls.__new__(cls)
        store._attach(account, bucket_name, prefix)
        return store

    def _attach(self, account: MemoryAccount, bucket_name: str, prefix: str) -> None:
        self._account = account
        self._bucket_name = rules.check_bucket_name(bucket_name)
        self._prefix = rules.check_prefix(prefix)

    def __repr__(self) -> str:
        return f"MemoryObjectStore({self.uri!r})"

    # -- where objects are

    @property
    def capabilities(self) -> StoreCapabilities:
        return _CAPABILITIES

    @property
    def uri(self) -> str:
        return f"memory://{self._account.owner}{self._bucket_name}/{self._prefix}".rstrip("/")

    @property
    def bucket_name(self) -> str:
        return self._bucket_name

    @property
    def prefix(self) -> str:
        return self._prefix

    def in_bucket(self, bucket_name: str) -> ObjectStore:
        return MemoryObjectStore._of(self._account, bucket_name, "")

    def locate(self, uri: str) -> tuple[str, str]:
        """Takes `memory://bucket/object`, with or without the private account, and `gs://bucket/object`."""
        scheme = "gs" if isinstance(uri, str) and uri.startswith("gs://") else "memory"
        authority, name = rules.split_object_uri(uri, scheme)
        owner, at, bucket_name = authority.rpartition("@")
        if at and owner != self._account.identity:
            raise InvalidInputError(f"{uri!r} lies in another memory account than {self.uri!r}")
        return rules.check_bucket_name(bucket_name), name

    def uri_of(self, name: str) -> str:
        return f"memory://{self._account.owner}{self._bucket_name}/{self._full(name)}"

    def _full(self, name: str) -> str:
        rules.check_name(name)
        return rules.check_name(self._prefix + name) if self._prefix else name

    def _relative(self, found: MemoryObject) -> ObjectStat:
        # Without a prefix, as most stores are, it is the object's own: a copy costs more than the look-up.
        return replace(found.stat, name=found.stat.name[len(self._prefix) :]) if self._prefix else found.stat

    def _check(self, full_name: str, current: MemoryObject | None, precondition: Precondition) -> None:
        live_generation = None if current is None else current.stat.generation
        rules.check_precondition(f"memory://{self._bucket_name}/{full_name}", live_generation, precondition)

    # -- writing

    def put(
        self,
        name: str,
        payload: Buffer,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectStat:
        pairs = rules.check_metadata(metadata)
        full_name = self._full(name)
        with self._account.lock:
            return self._create(full_name, bytes(payload), precondition, pairs)

    def open_write(
        self,
        name: str,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int | None = None,
    ) -> ObjectWriter:
        self._full(name)
        rules.check_chunk_size(chunk_size)
        return _MemoryWriter(self, name, precondition, rules.check_metadata(metadata))

    def _create(
        self, full_name: str, payload: bytes, precondition: Precondition, metadata: Mapping[str, str]
    ) -> ObjectStat:
        bucket = self._account.bucket(self._bucket_name)
        current = bucket.objects.get(full_name)
        self._check(full_name, current, precondition)
        stat = ObjectStat(
            name=full_name,
            generation=self._account.next_generation(),
            size=len(payload),
            crc32c=checksum(payload),
            updated=self._account.clock.now(),
            metadata=metadata,
        )
        made = MemoryObject(payload, stat)
        bucket.place(made)
        return self._relative(made)

    # -- reading

    def _find(self, name: str, generation: int | None) -> MemoryObject | None:
        full_name = self._full(name)
        with self._account.lock:
            found = self._account.bucket(self._bucket_name).objects.get(full_name)
        if found is None or generation not in (None, found.stat.generation):
            return None
        return found

    def _need(self, name: str, generation: int | None) -> MemoryObject:
        found = self._find(name, generation)
        if found is None:
            raise rules.missing(self.uri_of(name), generation)
        return found

    def stat(self, name: str, *, generation: int | None = None) -> ObjectStat | None:
        found = self._find(name, generation)
        return None if found is None else self._relative(found)

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        found = self._need(name, generation)
        rules.check_crc32c(self.uri_of(name), checksum(found.payload), found.stat.crc32c)
        return found.payload

    def get_range(self, name: str, start: int, length: int, *, generation: int | None = None) -> bytes:
        rules.check_range(name, start, length)
        return self._need(name, generation).payload[start : start + length]

    def open_read(self, name: str, *, start: int = 0, generation: int | None = None) -> ObjectReader:
        rules.check_range(name, start)
        reader = io.BytesIO(self._need(name, generation).payload)
        reader.seek(start)
        return reader

    def list(self, prefix: str = "", *, start_offset: str | None = None) -> Iterator[ObjectStat]:
        full_prefix = (self._prefix + prefix).encode()
        position = max(full_prefix, (self._prefix + (start_offset or "")).encode())
        while True:
            with self._account.lock:
                page = self._account.bucket(self._bucket_name).page(full_prefix, position)
            yield from (self._relative(found) for found in page)
            if len(page) < PAGE_OBJECTS:
                return
            # The least name above the last one listed.
            position = page[-1].stat.name.encode() + b"\0"

    # -- compose, copy, delete

    def compose(
        self,
        sources: Sequence[Source],
        target: str,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
        delete_sources: bool = False,
        crc32c: int | None = None,
    ) -> ObjectStat:
        rules.check_compose(sources, target)
        pairs = rules.check_metadata(metadata)
        full_target = self._full(target)
        with self._account.lock:
            bucket = self._account.bucket(self._bucket_name)
            self._check(full_target, bucket.objects.get(full_target), precondition)
            payload = b"".join(self._need(source.name, source.generation).payload for source in sources)
            rules.check_crc32c(self.uri_of(target), checksum(payload), crc32c)
            made = self._create(full_target, payload, precondition, pairs)
            if delete_sources:
                for full_name in {self._full(source.name) for source in sources} - {full_target}:
                    self._remove(full_name)
            return made

    def copy(
        self,
        source: Source,
        target: str,
        *,
        to: ObjectStore | None = None,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectStat:
        destination = self if to is None else to
        if not isinstance(destination, MemoryObjectStore) or destination._account is not self._account:
            raise InvalidInputError(f"cannot copy from {self.uri!r} to another kind of store, {to!r}")
        pairs = rules.check_metadata(metadata)
        full_target = destination._full(target)
        with self._account.lock:
            payload = self._need(source.name, source.generation).payload
            return destination._create(full_target, payload, precondition, pairs)

    def delete(self, name: str, *, precondition: Precondition) -> bool:
        rules.check_delete(name, precondition)
        full_name = self._full(name)
        with self._account.lock:
            current = self._account.bucket(self._bucket_name).objects.get(full_name)
            if current is None:
                return False
            self._check(full_name, current, precondition)
            self._remove(full_name)
            return True

    def delete_all(self, objects: Sequence[tuple[str, Precondition]]) -> Sequence[bool | ConflictError]:
        rules.check_delete_all(objects)
        return each_deleted(self, objects)

    def server_time(self) -> datetime:
        return self._account.clock.now()

    def _remove(self, full_name: str) -> None:
        self._account.bucket(self._bucket_name).remove(full_name)


class _MemoryWriter:
    """Collects the parts; the account's lock makes `close` atomic."""

    def __init__(
        self,
        store: MemoryObjectStore,
        name: str,
        precondition: Precondition,
        metadata: Mapping[str, str],
    ) -> None:
        self._store = store
        self._name = name
        self._precondition = precondition
        self._metadata = metadata
        self._parts: list[bytes] = []
        self._expected_crc: int | None = None
        self._made: ObjectStat | None = None
        self._aborted = False

    def write(self, payload: Buffer, crc32c: int | None = None) -> int:
        self._check_open()
        part = bytes(payload)
        self._parts.append(part)
        self._expected_crc = crc32c
        return len(part)

    def flush(self) -> None:
        self._check_open()

    def close(self) -> ObjectStat:
        if self._made is None:
            self._check_open()
            payload = b"".join(self._parts)
            rules.check_crc32c(self._store.uri_of(self._name), checksum(payload), self._expected_crc)
            self._made = self._store.put(
                self._name,
                payload,
                precondition=self._precondition,
                metadata=self._metadata,
            )
            self._parts.clear()
        return self._made

    def abort(self) -> None:
        self._aborted = self._made is None
        self._parts.clear()

    def _check_open(self) -> None:
        if self._aborted or self._made is not None:
            raise rules.closed_writer(self._name)


def open_memory(uri: str) -> MemoryObjectStore:
    """The store of `memory://bucket[/prefix]`: process-wide, so that opening it twice shares its objects.

    Raises: InvalidInputError; NotFoundError for a private account that no store holds any more.
    """
    authority, prefix = rules.split_bucket_uri(uri, "memory")
    owner, at, bucket_name = authority.rpartition("@")
    account = _private.get(owner) if at else _SHARED
    if account is None:
        raise NotFoundError(f"{uri!r}: nothing in this process holds the private memory account {owner!r}")
    return MemoryObjectStore._of(account, bucket_name, prefix)
