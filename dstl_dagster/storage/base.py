"""The contract of an object store: the promises to the layers above, and nothing of how they are met.

Owns the vocabulary (`ObjectStat`, `Precondition`, `Source`, `ObjectStore`), and what a store declares:
callers choose by that, and by no store's type, URI or pace. Does not own retries (`policy.retry`), what to
believe after a lost answer (`readback`), or the names of our objects (`format.names`).

The model is Google Cloud Storage's: an object is immutable bytes under a name; writing the name again
makes a new *generation*; a read that follows a write sees it; a write, compose or copy becomes visible whole
or not at all; listing is strongly consistent, in the order of the names' UTF-8 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dstl_dagster.errors import ConflictError, DstlError, InvalidInputError

if TYPE_CHECKING:
    from dstl_dagster.storage.accounting.cost import CostMeter


@dataclass(frozen=True, kw_only=True)
class StoreCapabilities:
    """Frozen, and the same for the life of a store, but for `batch_deletes`.

    The defaults hold for any bucket behind a network.

    Attributes:
        is_local: a request is a system call of this machine: make it where you are, cache nothing, list no
            more than you need. Else there is a network in between: batch, cache, and keep several in flight.
        max_useful_threads: so many requests in flight at once, and no more, are faster than one after the
            other; `None`: as many as the caller can afford.
        nested_names: a name cannot be an object and a folder of others at once, as in a file system; `out`
            and `out/part-1` exclude each other.
        batch_deletes: `delete_all` is one request. False once the service has refused one.
        seconds_between_updates: a change or deletion of an object sooner than this after its last change may
            be refused for the moment (`UnavailableError`); 0: no such limit is known.
    """

    is_local: bool = False
    max_useful_threads: int | None = None
    nested_names: bool = False
    batch_deletes: bool = False
    seconds_between_updates: float = 0.0

    def __post_init__(self) -> None:
        if self.max_useful_threads is not None and self.max_useful_threads < 1:
            raise InvalidInputError(f"max_useful_threads must be 1 or more, not {self.max_useful_threads}")
        if self.seconds_between_updates < 0:
            raise InvalidInputError(
                f"seconds_between_updates must be 0 or more, not {self.seconds_between_updates}"
            )

    def useful_threads(self, wanted: int) -> int:
        """How many of `wanted` threads are worth starting; at least one."""
        return max(1, wanted if self.max_useful_threads is None else min(wanted, self.max_useful_threads))

    def lookup_threads(self, wanted: int) -> int:
        """As `useful_threads`, of requests that move next to nothing: one where this machine answers.

        Such an answer is there before another thread has woken up, and the rest is the interpreter's work.
        """
        return 1 if self.is_local else self.useful_threads(wanted)


MAX_COMPOSE_SOURCES = 32
"""The most sources of one compose: GCS's limit, which every store enforces."""

MAX_BATCH_DELETES = 100
"""The most objects of one `delete_all`: GCS's limit for a batch request, which every store enforces."""

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
    """No precondition. Only for hints, which are not trusted, and for tests."""


Precondition = Absent | Generation | AnyGeneration
ABSENT = Absent()
ANY = AnyGeneration()


@dataclass(frozen=True)
class ObjectStat:
    """The metadata of one generation of one object.

    Attributes:
        name: the object's name, relative to the store that returned it.
        generation: above 0; a later write of the same name has a higher one.
        size: bytes.
        crc32c: CRC-32C (Castagnoli) of the bytes, unsigned 32 bits. If the service omits it from its
            listings, the first read costs a request, and raises NotFoundError if the object is gone.
        updated: when this generation was created, by the server's clock, in UTC.
        metadata: the writer's own key-value pairs, as passed.

    """

    name: str
    generation: int
    size: int
    crc32c: int
    updated: datetime
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Source:
    """One source of a compose or copy: this generation, or the live one."""

    name: str
    generation: int | None = None


class ObjectWriter(Protocol):
    """A streaming upload of one object. One thread at a time.

    Nothing is visible before `close()`. After an exception from `write` or `close`, or after
    `abort()`, nothing becomes visible, unless the answer to a finished upload was lost
    (`UnavailableError` from `close`: read back). A writer dropped without `close()` commits nothing.
    """

    def write(self, payload: Buffer, crc32c: int | None = None) -> int:
        """Accept all of `payload`. Returns the number of bytes accepted.

        `crc32c`: of everything written so far, `payload` included, from a caller that knows it anyway: a
        store may spare a pass over the bytes. A wrong one is found when the object is closed, or read.
        """
        ...

    def flush(self) -> None:
        """Send what is buffered, as far as the protocol allows. Makes nothing visible or durable."""
        ...

    def close(self) -> ObjectStat:
        """Make the object visible and durable. A second call returns the same stat.

        After an exception it may be called again: it finishes the same upload, or fails again.

        Raises: ConflictError (precondition), UnavailableError (outcome unknown), NotFoundError (kind
        `upload_lost`: it created no object and never will).
        """
        ...

    def abort(self) -> None:
        """Discard the upload and its buffer. Never raises; no effect after `close()`."""
        ...


class RangeReader(Protocol):
    """Ranges of an immutable file: an open object, a local file, memory. One thread at a time."""

    @property
    def place(self) -> str:
        """The file's name for an error message."""
        ...

    def size_bytes(self) -> int:
        """The length of the file."""
        ...

    def read_range(self, start: int, length: int) -> bytes | memoryview:
        """Bytes `[start, start+length)`; fewer only at the end of the file."""
        ...

    def close(self) -> None:
        """Release the file. May be called again."""
        ...


class ObjectReader(Protocol):
    """A sequential read of one generation. One thread at a time."""

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes (all that is left when negative); `b""` at the end."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class ObjectStore(Protocol):
    """One bucket, or a folder in its place, below an optional prefix.

    Names are non-empty text of at most 1,024 UTF-8 bytes, without NUL, CR or LF; `/` separates
    levels by convention only. All methods may be called from any thread. A store is not pickled: another
    process opens its `uri`. A store that derives from this class inherits the methods with a body.

    Errors: NotFoundError, ConflictError, InvalidInputError (a name or
    argument the store cannot take), UnavailableError (may be repeated; the outcome of a change is
    unknown), FormatError (bytes that do not match the checksum the store recorded for them).
    """

    @property
    def capabilities(self) -> StoreCapabilities:
        """What callers choose by; the same value each time, but for `batch_deletes`. By default a bucket
        behind a network.
        """
        return StoreCapabilities()

    @property
    def uri(self) -> str:
        """`open_store(uri)`, in another process too, opens the same objects. Holds no secret."""
        ...

    @property
    def bucket_name(self) -> str:
        """The bucket's name. A local store has one bucket, `local`: its root."""
        ...

    @property
    def prefix(self) -> str:
        """The prefix of every name in the bucket: empty, or ending in `/`."""
        return ""

    def in_bucket(self, bucket_name: str) -> ObjectStore:
        """That bucket as a whole (no prefix), with the same credentials.

        InvalidInputError where the store has a single bucket of another name.
        """
        ...

    def locate(self, uri: str) -> tuple[str, str]:
        """The (bucket, object name in the bucket) of an absolute URI.

        InvalidInputError for another scheme, a missing bucket or object, or a place outside the store.
        """
        ...

    def uri_of(self, name: str) -> str:
        """The absolute URI of an object of this store; the inverse of `locate`."""
        ...

    def put(
        self,
        name: str,
        payload: Buffer,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectStat:
        """Create one object in one call. It is durable on return."""
        writer = self.open_write(name, precondition=precondition, metadata=metadata)
        try:
            writer.write(payload)
            return writer.close()
        finally:
            writer.abort()

    def open_write(
        self,
        name: str,
        *,
        precondition: Precondition,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int | None = None,
    ) -> ObjectWriter:
        """Create one object from a stream. `chunk_size`: bytes per request, a multiple of 256 KiB."""
        ...

    def stat(self, name: str, *, generation: int | None = None) -> ObjectStat | None:
        """The live object; `None` where there is none, or none of that generation."""
        ...

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        """All bytes, verified against the recorded CRC-32C."""
        ...

    def get_range(
        self, name: str, start: int, length: int, *, generation: int | None = None
    ) -> bytes | memoryview:
        """Bytes `[start, start+length)`, fewer where the object ends; a view where that saves a copy.

        A part has no recorded checksum: the caller verifies it by its own.
        """
        ...

    def open_read(self, name: str, *, start: int = 0, generation: int | None = None) -> ObjectReader:
        """A stream from `start`. Later reads stay on the generation that was opened, or fail."""
        ...

    def open_ranges(self, name: str, *, generation: int | None = None) -> RangeReader | None:
        """The generation that is live now, held open, so that each range need not find it again; `None` where
        the store holds no object open. Raises: as `get_range`.
        """
        del name, generation
        return None

    def list(self, prefix: str = "", *, start_offset: str | None = None) -> Iterator[ObjectStat]:
        """Live objects whose names begin with `prefix`, ascending, from `start_offset` (inclusive) on.

        Lazy: pages are fetched as they are consumed, so memory does not grow with the bucket. An object
        that is live throughout is listed exactly once; one created or deleted meanwhile, at most once.
        """
        ...

    def list_first(self, prefix: str, count: int, *, start_offset: str | None = None) -> Sequence[ObjectStat]:
        """The first `count` objects of `list` (1 to 1,000), fewer only if there are no more. One request."""
        return [*islice(self.list(prefix, start_offset=start_offset), count)]

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
        """Concatenate 1 to 32 objects of this store into one, on the server's side.

        With `delete_sources` the sources are gone on return. NotFoundError where a source, or the
        requested generation of it, is missing; then nothing has changed. With `crc32c` the result must
        have that checksum, else FormatError; the store compares before it deletes any source.
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
        """Copy one object, to `to`, a store of the same kind on another bucket, if it is set."""
        ...

    def delete(self, name: str, *, precondition: Precondition) -> bool:
        """Delete the live object. False where there was none. ConflictError: it is another generation.

        Where an answer was lost and the object is gone when asked again, it counts as deleted.

        InvalidInputError for `Absent`, which makes no sense here.
        """
        ...

    def delete_all(self, objects: Sequence[tuple[str, Precondition]]) -> Sequence[bool | ConflictError]:
        """`delete` of each of at most 100 objects; one answer each, in their order.

        Each part succeeds or fails by itself, and a `ConflictError` is returned instead of raised. Not
        atomic: if it is killed or raises, any of the objects may be gone.

        Raises: as `delete`, once every other part has been carried out.
        """
        return each_deleted(self, objects)

    def server_time(self) -> datetime | None:
        """The clock behind `ObjectStat.updated`, as of the newest answer: never ahead of it. No request.

        `None` before the first answer, and where the store does not say.
        """
        return None

    def bucket_resource(self) -> Mapping[str, Any] | None:
        """The bucket's settings, as GCS's JSON API words them; `None` where there are none to be seen. Needs
        the permission storage.buckets.get.
        """
        return None

    def missing_permissions(self, wanted: Sequence[str]) -> Sequence[str]:
        """Those of `wanted` that the credentials do not have here. Needs no permission itself."""
        del wanted
        return ()

    def counted_by(self, meter: CostMeter) -> ObjectStore | None:
        """A store on the same objects whose requests, retries included, count in `meter` too, and those of
        the stores that it gives (`in_bucket`); `None` where it counts none. Callers use `metered`, which
        counts any store.
        """
        del meter
        return None

    def close(self) -> None:
        """Free connections and threads. May be called again. By default there are none of its own."""
        return


def each_deleted(
    store: ObjectStore, objects: Sequence[tuple[str, Precondition]]
) -> list[bool | ConflictError]:
    """`ObjectStore.delete_all` by single deletions. Raises: the first other error, after all."""
    answers: list[bool | ConflictError] = []
    failure: DstlError | None = None
    for name, precondition in objects:
        try:
            answers.append(store.delete(name, precondition=precondition))
        except ConflictError as error:
            answers.append(error)
        except DstlError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return answers
