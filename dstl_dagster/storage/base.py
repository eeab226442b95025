"""The contract of an object store: what every other layer may rely on, and nothing of how it is kept.

Owns the vocabulary (`ObjectStat`, `Precondition`, `Source`, `ObjectStore`). Does not own retries
(`retrying`), what to believe after a lost answer (`readback`), or the names of our objects
(`format.names`).

The model is Google Cloud Storage's: an object is immutable bytes under a name; writing the name again
makes a new *generation*; reads after a write see it; a write, compose or copy becomes visible whole or
not at all; listing is strongly consistent and in the order of the names' UTF-8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Protocol, cast, runtime_checkable

from dstl_dagster.format.ranges import RangeReader
from dstl_dagster.storage.capabilities import RequestCost, StoreCapabilities

__all__ = [
    "ABSENT",
    "ANY",
    "MAX_COMPOSE_SOURCES",
    "Absent",
    "AnyGeneration",
    "Generation",
    "ObjectReader",
    "ObjectStat",
    "ObjectStore",
    "ObjectWriter",
    "OpeningStore",
    "Precondition",
    "RangeReader",
    "RequestCost",
    "Source",
    "StoreCapabilities",
    "SummedWriter",
    "open_ranges",
    "summed_write",
]

MAX_COMPOSE_SOURCES = 32
"""The most sources one compose takes (GCS's limit, kept by every store)."""

Buffer = bytes | bytearray | memoryview
"""Bytes to store. A memoryview may have any item format, but must be contiguous."""


@dataclass(frozen=True)
class Absent:
    """Succeed only where no live object has the name (GCS: `ifGenerationMatch=0`)."""


@dataclass(frozen=True)
class Generation:
    """Succeed only on exactly this generation of the object."""

    generation: int


@dataclass(frozen=True)
class AnyGeneration:
    """No precondition. Only for a hint that nobody trusts, and in tests."""


Precondition = Absent | Generation | AnyGeneration
ABSENT = Absent()
ANY = AnyGeneration()


@dataclass(frozen=True)
class ObjectStat:
    """What the store says of one generation of one object.

    Attributes:
        name: the object's name, relative to the store it was asked of.
        generation: above 0; a later write of the same name has a higher one.
        size: bytes.
        crc32c: CRC-32C (Castagnoli) of the bytes, unsigned 32 bits.
        updated: when this generation was made, by the server's clock, in UTC.
        metadata: the writer's own text pairs, as given.

    """

    name: str
    generation: int
    size: int
    crc32c: int
    updated: datetime
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Source:
    """One source of a compose or copy; with a generation, only that generation will do."""

    name: str
    generation: int | None = None


class ObjectWriter(Protocol):
    """A streaming upload of one object. One thread at a time.

    Nothing is visible before `close()` returns; after an exception from `write` or `close`, or after
    `abort()`, nothing becomes visible unless the answer of a finished upload was lost
    (`UnavailableError` from `close`: read back). Dropped without `close()`, it must commit nothing.
    """

    def write(self, payload: Buffer) -> int:
        """Take all of `payload`; the number of bytes taken is returned."""
        ...

    def flush(self) -> None:
        """Send what is buffered as far as the protocol allows; makes nothing visible or durable."""
        ...

    def close(self) -> ObjectStat:
        """Make the object visible and durable. Called again, returns the same stat.

        After an exception it may be called again: the same upload is finished, or fails again.

        Raises: ConflictError (precondition), UnavailableError (outcome unknown).
        """
        ...

    def abort(self) -> None:
        """Give up and free what was buffered. Never raises; no effect after `close()`."""
        ...


class SummedWriter(ObjectWriter, Protocol):
    """The writer of a store that declares `write_summed`: it takes the caller's checksum for its own."""

    def write_summed(self, payload: Buffer, crc32c: int) -> int:
        """As `write`. `crc32c`: of everything written up to the end of `payload`.

        With a wrong one the object is refused, when it is closed or when it is read.
        """
        ...


def summed_write(store: ObjectStore, writer: ObjectWriter) -> Callable[[Buffer, int], int]:
    """`SummedWriter.write_summed` of a writer of `store`, or the same call without use for the checksum."""
    if store.capabilities.write_summed:
        return cast("SummedWriter", writer).write_summed
    return lambda payload, _: writer.write(payload)


class ObjectReader(Protocol):
    """A forward read of one generation. One thread at a time."""

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes (all that is left when negative); `b""` at the end."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class ObjectStore(Protocol):
    """One bucket, or one folder standing for a bucket, below an optional prefix.

    Names are non-empty text of at most 1,024 UTF-8 bytes, without NUL, CR or LF; `/` separates
    levels by custom only. All methods may be called from any thread, and a store may be pickled to
    another process only through its `uri`.

    Errors: NotFoundError, ConflictError (kind `precondition_failed`), InvalidInputError (a name or
    argument the store cannot take), UnavailableError (may be repeated; for a mutation the outcome is
    unknown), FormatError (bytes that do not have the checksum the store recorded for them).
    """

    @property
    def capabilities(self) -> StoreCapabilities:
        """What callers choose by; the same value each time.

        A store that does not say derives from this class and inherits the default: a bucket behind a
        network, without optional abilities.
        """
        return StoreCapabilities()

    @property
    def uri(self) -> str:
        """`open_store(uri)` in another process gives a store on the same objects. Holds no secret."""
        ...

    @property
    def bucket_name(self) -> str:
        """The bucket's name. A local store has one bucket, `local`; its root stands for it."""
        ...

    @property
    def prefix(self) -> str:
        """What stands before every name in the bucket: empty, or ending in `/`."""
        ...

    def in_bucket(self, bucket_name: str) -> ObjectStore:
        """The whole bucket of that name (no prefix) with the same credentials.

        InvalidInputError where the store has only one bucket and this is another name.
        """
        ...

    def locate(self, uri: str) -> tuple[str, str]:
        """The (bucket, object name in the bucket) that an absolute URI names.

        InvalidInputError for another scheme, a missing bucket or object, or a place outside the store.
        """
        ...

    def uri_of(self, name: str) -> str:
        """The absolute URI of a name of this store; `locate` takes it back."""
        ...

    def put(
        self,
        name: str,
        payload: Buffer,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectStat:
        """Create one object at once; durable when it returns."""
        ...

    def open_write(
        self,
        name: str,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int | None = None,
    ) -> ObjectWriter:
        """Create one object as a stream. `chunk_size`: bytes sent at a time, a multiple of 256 KiB."""
        ...

    def stat(self, name: str, *, generation: int | None = None) -> ObjectStat | None:
        """The live object, or `None` where there is none (or it is not of that generation)."""
        ...

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        """All bytes, checked against the recorded CRC-32C."""
        ...

    def get_range(
        self, name: str, start: int, length: int, *, generation: int | None = None
    ) -> bytes | memoryview:
        """Bytes `[start, start+length)`, shorter where the object ends; a view where that is quicker.

        A part has no checksum: the caller verifies it by its own.
        """
        ...

    def open_read(self, name: str, *, start: int = 0, generation: int | None = None) -> ObjectReader:
        """A stream from `start`; later reads stay on the generation that was opened, or fail."""
        ...

    def list(self, prefix: str = "", *, start_offset: str | None = None) -> Iterator[ObjectStat]:
        """Live objects whose names begin with `prefix`, ascending, from `start_offset` (inclusive) on.

        Lazy: pages are fetched while it is walked, so its memory does not grow with the bucket. An
        object that lives through the whole walk is listed once; others may be or not.
        """
        ...

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
        """Concatenate 1 to 32 objects of this store into one, without moving bytes through here.

        With `delete_sources` the sources are gone when it returns. NotFoundError where a source, or
        the wanted generation of it, is missing; then nothing has changed. With `crc32c` the result must
        have that checksum, or it is FormatError; the store compares before any source goes.
        """
        ...

    def copy(
        self,
        source: Source,
        target: str,
        *,
        to: ObjectStore | None = None,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectStat:
        """Copy one object, to another bucket's store of the same kind if `to` is given."""
        ...

    def delete(self, name: str, *, precondition: Precondition) -> bool:
        """Delete the live object. False where there is none. ConflictError: of another generation.

        `Absent` is no sensible precondition here: InvalidInputError.
        """
        ...

    def close(self) -> None:
        """Free connections and threads. May be called again."""
        ...


class OpeningStore(ObjectStore, Protocol):
    """A store that declares `open_ranges`: finding an object costs about what reading a range of it does."""

    def open_ranges(self, name: str, *, generation: int | None = None) -> RangeReader:
        """The generation that is live now, kept open. Raises: as `ObjectStore.get_range`."""
        ...


def open_ranges(store: ObjectStore, name: str, *, generation: int | None = None) -> RangeReader | None:
    """`OpeningStore.open_ranges`; `None` where the store keeps no object open."""
    if not store.capabilities.open_ranges:
        return None
    return cast("OpeningStore", store).open_ranges(name, generation=generation)
