"""A store around a store: everything is forwarded, and a subclass overrides what it is about.

Owns the forwarding, so that a wrapper never loses a method or a declared capability.
Does not own any behaviour of its own.

A wrapper that changes what its inner store declares (a simulated network, say) overrides `capabilities`. One
that overrides `get_range` or `open_write` for the sake of every byte overrides `open_ranges` as well.
Keywords are passed on as they come: the contract is in `base`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from dstl_dagster.errors import ConflictError
from dstl_dagster.storage.base import (
    Buffer,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    Precondition,
    RangeReader,
    Source,
    StoreCapabilities,
)

if TYPE_CHECKING:
    from dstl_dagster.storage.accounting.cost import CostMeter


def unwrapped(store: ObjectStore) -> ObjectStore:
    """The store beneath all wrappers."""
    while isinstance(store, WrapperStore):
        store = store.inner
    return store


class WrapperStore:
    """An `ObjectStore` that forwards to another. Any thread."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    @property
    def inner(self) -> ObjectStore:
        """The store that does the work."""
        return self._inner

    def _around(self, inner: ObjectStore) -> Self:
        """The same wrapper, with all it holds, around another store."""
        other = copy.copy(self)
        other._inner = inner
        return other

    @property
    def capabilities(self) -> StoreCapabilities:
        return self._inner.capabilities

    @property
    def uri(self) -> str:
        return self._inner.uri

    @property
    def bucket_name(self) -> str:
        return self._inner.bucket_name

    @property
    def prefix(self) -> str:
        return self._inner.prefix

    def in_bucket(self, bucket_name: str) -> ObjectStore:
        return self._around(self._inner.in_bucket(bucket_name))

    def locate(self, uri: str) -> tuple[str, str]:
        return self._inner.locate(uri)

    def uri_of(self, name: str) -> str:
        return self._inner.uri_of(name)

    def put(self, name: str, payload: Buffer, **options: Any) -> ObjectStat:
        return self._inner.put(name, payload, **options)

    def open_write(self, name: str, **options: Any) -> ObjectWriter:
        return self._inner.open_write(name, **options)

    def stat(self, name: str, **options: Any) -> ObjectStat | None:
        return self._inner.stat(name, **options)

    def get(self, name: str, **options: Any) -> bytes:
        return self._inner.get(name, **options)

    def get_range(self, name: str, start: int, length: int, **options: Any) -> bytes | memoryview:
        return self._inner.get_range(name, start, length, **options)

    def open_ranges(self, name: str, **options: Any) -> RangeReader | None:
        return self._inner.open_ranges(name, **options)

    def open_read(self, name: str, **options: Any) -> ObjectReader:
        return self._inner.open_read(name, **options)

    def list(self, prefix: str = "", **options: Any) -> Iterator[ObjectStat]:
        return self._inner.list(prefix, **options)

    def list_first(self, prefix: str, count: int, **options: Any) -> Sequence[ObjectStat]:
        return self._inner.list_first(prefix, count, **options)

    def compose(self, sources: Sequence[Source], target: str, **options: Any) -> ObjectStat:
        return self._inner.compose(sources, target, **options)

    def copy(
        self, source: Source, target: str, *, to: ObjectStore | None = None, **options: Any
    ) -> ObjectStat:
        # Stores of one kind know each other only without their wrappers.
        return self._inner.copy(source, target, to=None if to is None else unwrapped(to), **options)

    def delete(self, name: str, **options: Any) -> bool:
        return self._inner.delete(name, **options)

    def delete_all(self, objects: Sequence[tuple[str, Precondition]]) -> Sequence[bool | ConflictError]:
        return self._inner.delete_all(objects)

    def counted_by(self, meter: CostMeter) -> ObjectStore | None:
        counted = self._inner.counted_by(meter)
        return None if counted is None else self._around(counted)

    def server_time(self) -> datetime | None:
        return self._inner.server_time()

    def bucket_resource(self) -> Mapping[str, Any] | None:
        return self._inner.bucket_resource()

    def missing_permissions(self, wanted: Sequence[str]) -> Sequence[str]:
        return self._inner.missing_permissions(wanted)

    def close(self) -> None:
        self._inner.close()


class WrapperWriter:
    """An `ObjectWriter` that forwards."""

    def __init__(self, inner: ObjectWriter) -> None:
        self._inner = inner

    def write(self, payload: Buffer, crc32c: int | None = None) -> int:
        return self._inner.write(payload, crc32c)

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> ObjectStat:
        return self._inner.close()

    def abort(self) -> None:
        self._inner.abort()


class WrapperReader:
    """An `ObjectReader` that forwards."""

    def __init__(self, inner: ObjectReader) -> None:
        self._inner = inner

    def read(self, size: int = -1) -> bytes:
        return self._inner.read(size)

    def close(self) -> None:
        self._inner.close()


class WrapperRanges:
    """A `RangeReader` that forwards."""

    def __init__(self, inner: RangeReader) -> None:
        self._inner = inner

    @property
    def place(self) -> str:
        return self._inner.place

    def size_bytes(self) -> int:
        return self._inner.size_bytes()

    def read_range(self, start: int, length: int) -> bytes | memoryview:
        return self._inner.read_range(start, length)

    def close(self) -> None:
        self._inner.close()
