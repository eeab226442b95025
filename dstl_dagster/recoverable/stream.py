"""Writing one object as components. Owns the stream. Does not own the commit (`committer`, `commit`).

Source: Flink's `GSRecoverableFsDataOutputStream`. Unlike upstream, `flush` does not end a component: a
wrapping text stream flushes often, and each component costs requests.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from dstl_dagster.errors import ClosedError, ErrorKind, InvalidInputError, UnavailableError
from dstl_dagster.format.crc32c import EMPTY_CRC32C, extend
from dstl_dagster.recoverable.committer import GSRecoverableWriterCommitter, look_up_component
from dstl_dagster.recoverable.recoverables import (
    Component,
    GSBlobIdentifier,
    GSCommitRecoverable,
    GSResumeRecoverable,
    temporary_blob_identifier,
)
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import (
    ABSENT,
    WRITER_ID_KEY,
    Expected,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    check_crc32c,
    write_own,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _OpenComponent:
    """The component being written: its upload, and the size and checksum it must end up with."""

    def __init__(self, store: ObjectStore, name: str, object_id: uuid.UUID, chunk_size: int | None) -> None:
        self.bucket_name = store.bucket_name
        self.name = name
        self.stamp = {WRITER_ID_KEY: str(object_id)}
        self.size = 0
        self.crc32c = EMPTY_CRC32C
        self._store = store
        self._upload: ObjectWriter = store.open_write(
            name, precondition=ABSENT, metadata=self.stamp, chunk_size=chunk_size
        )

    def write(self, payload: memoryview) -> None:
        taken = self._upload.write(payload)
        self.crc32c = extend(self.crc32c, payload[:taken])
        self.size += taken
        if taken != len(payload):
            raise UnavailableError(
                f"the upload of {self.name!r} accepted {taken} of {len(payload)} bytes; "
                "recover from the last persisted state",
                ErrorKind.UPLOAD_FAILED,
            )

    def flush(self) -> None:
        self._upload.flush()

    def finish(self) -> ObjectStat:
        expected = Expected(self.stamp, self.size, self.crc32c)
        stat = write_own(self._store, self.name, expected, self._upload.close)
        check_crc32c(self._store.uri_of(self.name), stat.crc32c, self.crc32c)
        return stat

    def abort(self) -> None:
        self._upload.abort()


class GSRecoverableFsDataOutputStream(io.RawIOBase):
    """A binary file object that becomes visible only when committed. One thread at a time.

    Bytes go to temporary objects, the components. `sync` and `persist` end the current one: what was
    written is durable when they return. `flush` sends what is buffered and ends nothing. An exception
    inside a `with` block discards the current component; a stream that is dropped commits nothing.

    Created by `GSRecoverableWriter.open` and `.recover`.
    """

    def __init__(
        self,
        store: ObjectStore,
        final: GSBlobIdentifier,
        options: GSFileSystemOptions,
        new_id: Callable[[], uuid.UUID],
        resumed: GSResumeRecoverable | None = None,
        components: Sequence[Component] | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._final = final
        self._options = options
        self._new_id = new_id
        self._object_ids: list[uuid.UUID] = list(resumed.component_object_ids) if resumed else []
        self._known: list[Component | None] = (
            list(components) if components is not None else [None] * len(self._object_ids)
        )
        self._position = resumed.position if resumed else 0
        self._closed = resumed.closed if resumed else False
        self._component: _OpenComponent | None = None
        self._is_cut_off = False

    # -- the file object

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        """Bytes written so far and not discarded, including those before a recovery."""
        return self._position

    @property
    def closed(self) -> bool:
        return self._closed

    def write(self, payload: Buffer, /, offset: int = 0, length: int | None = None) -> int:
        """Write `payload`, of any contiguous buffer type, from `offset` on: all of it, or `length` bytes.
        Nothing is copied.

        Raises: InvalidInputError for a range that is not in it; ClosedError; any error of the store, after
        which only `close` is of use: recover from the last persisted state.
        """
        octets = memoryview(payload).cast("B")
        end = len(octets) if length is None else offset + length
        if not 0 <= offset <= end <= len(octets):
            raise InvalidInputError(
                f"a write of {length} bytes from {offset} on, to {self._final}: the buffer has {len(octets)}"
            )
        if self._closed:
            raise ClosedError(
                f"Illegal attempt to write to closed output stream of {self._final}; open or recover another"
            )
        octets = octets[offset:end]
        if self._component is None:
            self._component = self._open_component()
        self._component.write(octets)
        self._position += len(octets)
        return len(octets)

    def flush(self) -> None:
        """Send what is buffered, as far as the upload protocol allows. Makes nothing durable."""
        if self._component is not None:
            self._component.flush()

    def close(self) -> None:
        """End the current component and accept no more writes. Deletes nothing. Idempotent."""
        self._end_component()
        self._closed = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._is_cut_off = True
            self._discard_component()
        self.close()

    def __del__(self) -> None:
        # `io` closes a file object on collection, and `close` would end the component: discard it first.
        if getattr(self, "_component", None) is not None:
            self._discard_component()

    # -- recovery and commit

    def sync(self) -> None:
        """Make everything written so far durable, by ending the current component."""
        self._end_component()

    def persist(self) -> GSResumeRecoverable:
        """`sync`, then the state from which any process can resume. The same again without new bytes."""
        self._end_component()
        return GSResumeRecoverable(self._final, tuple(self._object_ids), self._position, self._closed)

    def close_for_commit(self) -> GSRecoverableWriterCommitter:
        """`close`, then the committer of everything written. Idempotent.

        Raises: ClosedError after a `with` block that an exception ended: what it wrote is not all.
        """
        self.close()
        if self._is_cut_off:
            raise ClosedError(
                f"an exception ended the block that wrote {self._final}, which may not be whole: open or "
                "recover another stream"
            )
        known = [component for component in self._known if component is not None]
        recoverable = GSCommitRecoverable(self._final, tuple(self._object_ids))
        return GSRecoverableWriterCommitter(
            self._store, self._options, recoverable, known if len(known) == len(self._object_ids) else None
        )

    @property
    def components(self) -> tuple[Component, ...]:
        """The ended components, in order.

        Those of a stream recovered without its components are looked up (one request each, once). Raises:
        NotFoundError if one is gone.
        """
        for index, known in enumerate(self._known):
            if known is None:
                self._known[index] = look_up_component(
                    self._store, self._final, self._object_ids[index], self._options
                )
        return tuple(component for component in self._known if component is not None)

    def _open_component(self) -> _OpenComponent:
        object_id = self._new_id()
        blob = temporary_blob_identifier(self._final, object_id, self._options)
        store = self._store.in_bucket(blob.bucket_name)
        component = _OpenComponent(store, blob.object_name, object_id, self._options.writer_chunk_size)
        self._object_ids.append(object_id)
        self._known.append(None)
        return component

    def _end_component(self) -> None:
        # After an exception the component stays: the next call ends the same upload, or raises again.
        if self._component is not None:
            self._known[-1] = Component.of(self._component.bucket_name, self._component.finish())
            self._component = None

    def _discard_component(self) -> None:
        if self._component is not None:
            self._component.abort()
            self._position -= self._component.size
            self._component = None
            self._object_ids.pop()
            self._known.pop()
