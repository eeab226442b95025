"""All bytes of one object, from its beginning to its end, for readers that need them once.

Owns how large a request is, and that the next one is made while the last part is used. Does not own ranges of
an object (`ObjectStore.open_ranges`, `changelog`), nor what the bytes are compared with.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from functools import partial
from typing import Final

from dstl_dagster.concurrency import read_ahead
from dstl_dagster.storage.base import ObjectStore

PART_BYTES: Final = 8 << 20
"""Of one request."""
_REQUESTS: Final = 2
"""In flight, or waiting to be used, beside the part that is: three times this length is held."""
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
    requests = [partial(store.get_range, name, *part, generation=generation) for part in parts]
    return read_ahead(requests, _REQUESTS, "dstl-parts")


def _stream(store: ObjectStore, name: str, generation: int | None) -> Generator[bytes, None, None]:
    with closing(store.open_read(name, generation=generation)) as reader:
        while piece := reader.read(_STEP_BYTES):
            yield piece
