"""Any store, retried while it is unavailable: over a `FaultStore` it acts as a client behind a network.

Owns which calls are retried. Does not own the retry loop (`storage.policy.retry`) or the rules after a lost
answer (`storage.readback`). In production each store retries by itself, since only it knows its requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dstl_dagster.errors import ConflictError
from dstl_dagster.format.crc32c import crc32c
from dstl_dagster.storage import (
    WRITER_ID_KEY,
    Buffer,
    Expected,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    Precondition,
    RangeReader,
    Source,
    WrapperRanges,
    WrapperReader,
    WrapperStore,
    WrapperWriter,
)
from dstl_dagster.storage.policy.retry import Retries, RetryAttempt


class RetryingStore(WrapperStore):
    """Streams are retried only on close, never midway.

    If a write that carries a writer id (`readback.WRITER_ID_KEY` in its metadata) fails its precondition
    after a lost answer, the object is read back: if it is the write's own, the write has succeeded.
    """

    def __init__(self, inner: ObjectStore, retries: Retries | None = None) -> None:
        super().__init__(inner)
        self._retries = retries or Retries()

    def put(self, name: str, payload: Buffer, **options: Any) -> ObjectStat:
        def once(attempt: RetryAttempt) -> ObjectStat:
            try:
                return self._inner.put(name, payload, **options)
            except ConflictError:
                if not attempt.in_doubt:
                    raise
                octets = bytes(payload)
                expected = Expected(_stamp(options.get("metadata")), len(octets), crc32c(octets))
                stat = self._inner.stat(name)
                if stat is None or not expected.matches(stat):
                    raise
                return stat

        return self._retries.run(once)

    def open_write(self, name: str, **options: Any) -> ObjectWriter:
        upload = self._retries.run(lambda _: self._inner.open_write(name, **options))
        return _RetryingWriter(upload, self._retries)

    def stat(self, name: str, **options: Any) -> ObjectStat | None:
        return self._retries.run(lambda _: self._inner.stat(name, **options))

    def get(self, name: str, **options: Any) -> bytes:
        return self._retries.run(lambda _: self._inner.get(name, **options))

    def get_range(self, name: str, start: int, length: int, **options: Any) -> bytes | memoryview:
        return self._retries.run(lambda _: self._inner.get_range(name, start, length, **options))

    def open_ranges(self, name: str, **options: Any) -> RangeReader | None:
        forward = super().open_ranges
        inner = self._retries.run(lambda _: forward(name, **options))
        return None if inner is None else _RetryingRanges(inner, self._retries)

    def open_read(self, name: str, **options: Any) -> ObjectReader:
        reader = self._retries.run(lambda _: self._inner.open_read(name, **options))
        return _RetryingReader(reader, self._retries)

    def list(
        self, prefix: str = "", *, start_offset: str | None = None, **options: Any
    ) -> Iterator[ObjectStat]:
        last_name: str | None = None
        walk = self._inner.list(prefix, start_offset=start_offset, **options)

        def following(attempt: RetryAttempt) -> ObjectStat | None:
            nonlocal walk
            if attempt.in_doubt:
                # A failed walk is over: start another after the last name listed.
                offset = start_offset if last_name is None else last_name + "\u0001"
                walk = self._inner.list(prefix, start_offset=offset, **options)
            return next(walk, None)

        while (stat := self._retries.run(following)) is not None:
            last_name = stat.name
            yield stat

    def list_first(self, prefix: str, count: int, **options: Any) -> Sequence[ObjectStat]:
        forward = super().list_first
        return self._retries.run(lambda _: forward(prefix, count, **options))

    def compose(self, sources: Sequence[Source], target: str, **options: Any) -> ObjectStat:
        return self._retries.run(lambda _: self._inner.compose(sources, target, **options))

    def copy(self, source: Source, target: str, **options: Any) -> ObjectStat:
        forward = super().copy
        return self._retries.run(lambda _: forward(source, target, **options))

    def delete(self, name: str, **options: Any) -> bool:
        return self._retries.run(lambda _: self._inner.delete(name, **options))

    def delete_all(self, objects: Sequence[tuple[str, Precondition]]) -> Sequence[bool | ConflictError]:
        forward = super().delete_all
        return self._retries.run(lambda _: forward(objects))


class _RetryingWriter(WrapperWriter):
    def __init__(self, upload: ObjectWriter, retries: Retries) -> None:
        super().__init__(upload)
        self._retries = retries

    def close(self) -> ObjectStat:
        return self._retries.run(lambda _: self._inner.close())


class _RetryingReader(WrapperReader):
    def __init__(self, reader: ObjectReader, retries: Retries) -> None:
        super().__init__(reader)
        self._retries = retries

    def read(self, size: int = -1) -> bytes:
        return self._retries.run(lambda _: self._inner.read(size))


class _RetryingRanges(WrapperRanges):
    def __init__(self, ranges: RangeReader, retries: Retries) -> None:
        super().__init__(ranges)
        self._retries = retries

    def read_range(self, start: int, length: int) -> bytes | memoryview:
        return self._retries.run(lambda _: self._inner.read_range(start, length))


def _stamp(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    writer_id = (metadata or {}).get(WRITER_ID_KEY)
    return {} if writer_id is None else {WRITER_ID_KEY: writer_id}
