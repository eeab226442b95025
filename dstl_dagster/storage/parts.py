"""All bytes of one object, from its beginning to its end, for readers that need them once.

Owns how large a request is, and that the next one is made while the last part is used. Does not own ranges of
an object (`OpeningStore`, `changelog`), nor what the bytes are compared with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Final

from dstl_dagster.storage.base import ObjectStore

__all__ = ["PART_BYTES", "read_parts"]

PART_BYTES: Final = 8 << 20
"""Of one request."""
_REQUESTS: Final = 2
"""In flight, or waiting to be used: twice this length is held."""
_STEP_BYTES: Final = 1 << 20


def read_parts(
    store: ObjectStore, name: str, size_bytes: int, generation: int | None
) -> Generator[bytes | memoryview, None, None]:
    """The object of this size, in parts; nothing else is asked about it, nor is a checksum compared.

    Without a generation, or from a store on this machine, it is a stream: then it may also be longer.

    Raises: as `ObjectStore.get_range`.
    """
    if generation is None or store.capabilities.is_local:
        return _stream(store, name, generation)
    parts = [(start, min(PART_BYTES, size_bytes - start)) for start in range(0, size_bytes, PART_BYTES)]
    if len(parts) < 2 or store.capabilities.useful_threads(_REQUESTS) < _REQUESTS:
        return (store.get_range(name, *part, generation=generation) for part in parts)
    return _ahead(store, name, generation, parts)


def _ahead(
    store: ObjectStore, name: str, generation: int, parts: list[tuple[int, int]]
) -> Generator[bytes | memoryview, None, None]:
    waiting, coming = deque(parts), deque[Future[bytes | memoryview]]()
    with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="dstl-parts") as pool:
        try:
            while waiting or coming:
                while waiting and len(coming) < _REQUESTS:
                    coming.append(
                        pool.submit(store.get_range, name, *waiting.popleft(), generation=generation)
                    )
                yield coming.popleft().result()
        finally:
            for each in coming:
                each.cancel()


def _stream(store: ObjectStore, name: str, generation: int | None) -> Generator[bytes, None, None]:
    with closing(store.open_read(name, generation=generation)) as reader:
        while piece := reader.read(_STEP_BYTES):
            yield piece
