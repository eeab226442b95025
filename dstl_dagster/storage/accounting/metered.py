"""Counting the requests of any store: `metered` is the one way to do it.

Owns how the calls of a store that makes no requests of its own (a folder, memory) are counted: as what they
would be on a bucket. Does not own what a request is billed as (`accounting.cost`), nor the counting of a
store that does make them (`ObjectStore.counted_by`): only that one sees its retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from dstl_dagster.errors import ConflictError, DstlError, InvalidInputError, NotFoundError
from dstl_dagster.storage.accounting.cost import Cost, CostMeter, Operation
from dstl_dagster.storage.base import (
    Buffer,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    Precondition,
    RangeReader,
    Source,
)
from dstl_dagster.storage.wrapper import WrapperRanges, WrapperReader, WrapperStore, WrapperWriter

_T = TypeVar("_T")
_PAGE_OBJECTS = 1000
_REFUSALS = (ConflictError, InvalidInputError, NotFoundError)
"""Answers that change nothing: on a bucket they are 4xx."""


def metered(store: ObjectStore, meter: CostMeter) -> ObjectStore:
    """The same objects. Requests through the result count in `meter`, and wherever those of `store` do."""
    return store.counted_by(meter) or _MeteredStore(store, meter)


class _MeteredStore(WrapperStore):
    """Each call is a request, but for streams: a write counts when it is closed, a read when it is opened."""

    def __init__(self, inner: ObjectStore, meter: CostMeter) -> None:
        super().__init__(inner)
        self._meter = meter

    def put(self, name: str, payload: Buffer, **options: Any) -> ObjectStat:
        up = memoryview(payload).nbytes
        return _counted(
            self._meter, Operation.INSERT, lambda: self._inner.put(name, payload, **options), bytes_up=up
        )

    def open_write(self, name: str, **options: Any) -> ObjectWriter:
        return _MeteredWriter(self._inner.open_write(name, **options), self._meter)

    def stat(self, name: str, **options: Any) -> ObjectStat | None:
        try:
            found = self._inner.stat(name, **options)
        except DstlError as error:
            self._meter.add(Cost.of(Operation.STAT, refused=isinstance(error, _REFUSALS)))
            raise
        self._meter.add(Cost.of(Operation.STAT, refused=found is None))
        return found

    def get(self, name: str, **options: Any) -> bytes:
        return _read(self._meter, lambda: self._inner.get(name, **options))

    def get_range(self, name: str, start: int, length: int, **options: Any) -> bytes | memoryview:
        return _read(self._meter, lambda: self._inner.get_range(name, start, length, **options))

    def open_ranges(self, name: str, **options: Any) -> RangeReader | None:
        inner = super().open_ranges(name, **options)
        return None if inner is None else _MeteredRanges(inner, self._meter)

    def open_read(self, name: str, **options: Any) -> ObjectReader:
        inner = _counted(self._meter, Operation.READ, lambda: self._inner.open_read(name, **options))
        return _MeteredReader(inner, self._meter)

    def list(self, prefix: str = "", **options: Any) -> Iterator[ObjectStat]:
        page = Cost.of(Operation.LIST)
        self._meter.add(page)
        for count, each in enumerate(self._inner.list(prefix, **options)):
            if count and count % _PAGE_OBJECTS == 0:
                self._meter.add(page)
            yield each

    def list_first(self, prefix: str, count: int, **options: Any) -> Sequence[ObjectStat]:
        forward = super().list_first
        return _counted(self._meter, Operation.LIST, lambda: forward(prefix, count, **options))

    def compose(self, sources: Sequence[Source], target: str, **options: Any) -> ObjectStat:
        return _counted(
            self._meter, Operation.COMPOSE, lambda: self._inner.compose(sources, target, **options)
        )

    def copy(self, source: Source, target: str, **options: Any) -> ObjectStat:
        forward = super().copy
        return _counted(self._meter, Operation.REWRITE, lambda: forward(source, target, **options))

    def delete(self, name: str, **options: Any) -> bool:
        return _counted(self._meter, Operation.DELETE, lambda: self._inner.delete(name, **options))

    def delete_all(self, objects: Sequence[tuple[str, Precondition]]) -> Sequence[bool | ConflictError]:
        forward = super().delete_all
        return _counted(self._meter, Operation.DELETE, lambda: forward(objects), number=len(objects))


class _MeteredWriter(WrapperWriter):
    """One upload, counted when it ends: like a bucket's, it makes one object or none."""

    def __init__(self, inner: ObjectWriter, meter: CostMeter) -> None:
        super().__init__(inner)
        self._meter = meter
        self._bytes = 0
        self._ended = False

    def write(self, payload: Buffer, crc32c: int | None = None) -> int:
        written = self._inner.write(payload, crc32c)
        self._bytes += written
        return written

    def close(self) -> ObjectStat:
        if self._ended:
            return self._inner.close()
        stat = _counted(self._meter, Operation.INSERT, self._inner.close, bytes_up=self._bytes)
        self._ended = True
        return stat


class _MeteredReader(WrapperReader):
    def __init__(self, inner: ObjectReader, meter: CostMeter) -> None:
        super().__init__(inner)
        self._meter = meter

    def read(self, size: int = -1) -> bytes:
        payload = self._inner.read(size)
        self._meter.add(Cost(bytes_down=len(payload)))
        return payload


class _MeteredRanges(WrapperRanges):
    """Each range is a request, as it is on a bucket, which keeps nothing open."""

    def __init__(self, inner: RangeReader, meter: CostMeter) -> None:
        super().__init__(inner)
        self._meter = meter

    def read_range(self, start: int, length: int) -> bytes | memoryview:
        return _read(self._meter, lambda: self._inner.read_range(start, length))


def _counted(
    meter: CostMeter, operation: Operation, call: Callable[[], _T], *, number: int = 1, bytes_up: int = 0
) -> _T:
    try:
        answer = call()
    except DstlError as error:
        refused = isinstance(error, _REFUSALS)
        meter.add(Cost.of(operation, number=number, refused=refused, bytes_up=bytes_up))
        raise
    meter.add(Cost.of(operation, number=number, bytes_up=bytes_up))
    return answer


_Octets = TypeVar("_Octets", bound=bytes | memoryview)


def _read(meter: CostMeter, call: Callable[[], _Octets]) -> _Octets:
    payload = _counted(meter, Operation.READ, call)
    meter.add(Cost(bytes_down=len(payload)))
    return payload
