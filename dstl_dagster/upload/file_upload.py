"""The file of one attempt: begun, written task by task, then made durable or deleted.

Owns the file's bytes and where they go: one object in the store (one put or a stream; read back after a lost
answer), and optionally a local copy. Does not own its name, nor which tasks it holds (`uploader`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from dstl_dagster.errors import ClosedError, InternalError
from dstl_dagster.format.changelog_file.encoding import ChangelogFileEncoder
from dstl_dagster.format.changes import StateChangeSet
from dstl_dagster.format.handles import LocalStateHandle, StreamStateHandle
from dstl_dagster.storage import (
    ABSENT,
    WRITER_ID_KEY,
    Expected,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    put_own,
    write_own,
)
from dstl_dagster.upload.metrics import UploadMetrics
from dstl_dagster.upload.tasks import UploadTask, UploadTasksResult

_logger = logging.getLogger(__name__)

_CHUNK_STEP_BYTES: Final = 256 * 1024


class ObjectSink:
    """One new object: one put up to `buffer_bytes`, a stream above."""

    def __init__(self, store: ObjectStore, name: str, writer_id: str, buffer_bytes: int) -> None:
        self._store = store
        self._name = name
        self._writer_id = writer_id
        self._buffer_bytes = buffer_bytes
        self._pieces: list[tuple[bytes | memoryview, int]] = []
        self._writer: ObjectWriter | None = None
        self._size_bytes = 0
        self.has_sent = False
        """Whether any request was sent: before that, no object can exist."""

    def write(self, octets: bytes | memoryview, crc32c: int) -> None:
        """Append bytes, which must not change; `crc32c`: of the file up to and including them."""
        self._size_bytes += len(octets)
        if self._writer is not None:
            self._writer.write(octets, crc32c)
            return
        self._pieces.append((octets, crc32c))
        if self._size_bytes > self._buffer_bytes:
            self._begin_stream()

    def _begin_stream(self) -> None:
        self.has_sent = True
        chunk_size = max(1, self._buffer_bytes // _CHUNK_STEP_BYTES) * _CHUNK_STEP_BYTES
        self._writer = self._store.open_write(
            self._name,
            precondition=ABSENT,
            metadata={WRITER_ID_KEY: self._writer_id},
            chunk_size=chunk_size,
        )
        for piece in self._pieces:
            self._writer.write(*piece)
        self._pieces.clear()

    def close(self) -> ObjectStat:
        """Make the object durable. As `ObjectWriter.close`; a lost answer has been read back."""
        self.has_sent = True
        if self._writer is None:
            payload = b"".join(octets for octets, _ in self._pieces)
            return put_own(self._store, self._name, payload, writer_id=self._writer_id)
        expected = Expected({WRITER_ID_KEY: self._writer_id}, self._size_bytes)
        return write_own(self._store, self._name, expected, self._writer.close)

    def abort(self) -> None:
        """Give up. Never raises."""
        self._pieces.clear()
        if self._writer is not None:
            self._writer.abort()


class LocalCopySink:
    """The same bytes on this machine's disk. Its errors never fail the upload; there is no copy then.

    A copy appears under its name only when it is whole; it is not synced: a crash may lose it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".part")
        self._file: BinaryIO | None = None
        self.failed = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._partial.open("xb", buffering=0)
        except OSError:
            self._drop_failed()

    def write(self, octets: bytes | memoryview) -> None:
        if self._file is None:
            return
        try:
            view = memoryview(octets)
            while len(view) > 0:
                view = view[self._file.write(view) :]
        except OSError:
            self._drop_failed()

    def close(self, size: int | None, stored_bytes: int) -> LocalStateHandle | None:
        """Publish the copy under its name; None where it was dropped."""
        if self._file is None:
            return None
        try:
            self._file.close()
            os.replace(self._partial, self._path)  # noqa: PTH105 - the same as Path.replace, with the error of the OS
        except OSError:
            self._drop_failed()
            return None
        return LocalStateHandle(str(self._path), size, stored_bytes=stored_bytes)

    def _drop_failed(self) -> None:
        _logger.warning("local copy %s of a changelog file was dropped", self._path, exc_info=True)
        self.failed = True
        self.abort()

    def abort(self) -> None:
        """Drop the copy; this does not count as a failure."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
            with suppress(OSError):
                self._partial.unlink(missing_ok=True)


class FileTracker(Protocol):
    """Learns of the files an uploader writes. Any thread."""

    def start_tracking(self, handle: StreamStateHandle, reference_count: int) -> None:
        """The file exists; `reference_count` change sets need it."""
        ...

    def discard(self, handle: StreamStateHandle) -> None:
        """The file is not needed: delete it, if it exists."""
        ...


class FileUpload:
    """An attempt in progress. One thread at a time; `finish`, `abort` or the first error ends it.

    An error deletes what was written, as far as the store allows.

    Args:
        name, sink, local: the new object's name, where its bytes go, and its local copy, if any.
        is_cancelled: asked after each piece; once it is true, writing raises ClosedError.
    """

    def __init__(
        self,
        name: str,
        sink: ObjectSink,
        local: LocalCopySink | None,
        encoder: ChangelogFileEncoder,
        registry: FileTracker,
        metrics: UploadMetrics,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._name = name
        self._sink = sink
        self._local = local
        self._encoder = encoder
        self._registry = registry
        self._metrics = metrics
        self._is_cancelled = is_cancelled
        self._tasks_offsets: dict[UploadTask, dict[StateChangeSet, tuple[int, int]]] = {}
        self._busy_seconds = 0.0
        self._over = False
        self._counted = False
        with self._attempting():
            self._write_octets(encoder.header())

    @property
    def tasks(self) -> Sequence[UploadTask]:
        """The tasks that it holds so far, in order."""
        return tuple(self._tasks_offsets)

    def write(self, task: UploadTask) -> None:
        """Append a task. Raises what the store raises, or ClosedError once it is cancelled."""
        with self._attempting():
            offsets = self._tasks_offsets.setdefault(task, {})
            self._count_once()
            for change_set in sorted(task.change_sets, key=_order_in_task):
                offsets[change_set] = (self._encoder.body_size, self._encoder.body_size)
                for octets in self._encoder.change_set(change_set):
                    self._write_octets(octets)
                    if self._is_cancelled():
                        raise ClosedError("every task of this upload has ended meanwhile: it was cancelled")

    def finish(self) -> UploadTasksResult:
        """Make the file durable and track it. Raises as `write`."""
        with self._attempting():
            for octets in self._encoder.footer():
                self._write_octets(octets)
            stat = self._sink.close()
        self._over = True
        self._count_once()
        self._measured.attempt_succeeds(self._encoder.body_size, self._busy_seconds)
        return self._registered(stat)

    def abort(self) -> None:
        """Give up and delete what was written. Never raises; does nothing once it is over."""
        if self._over:
            return
        self._over = True
        self._sink.abort()
        if self._local is not None:
            self._local.abort()
        if self._sink.has_sent:
            # The answer may have been lost: an object may exist, or may still arrive. The first is deleted
            # here; the second lies under the attempt's name, where garbage collection finds it.
            self._registry.discard(StreamStateHandle(self._name, None))

    @contextmanager
    def _attempting(self) -> Iterator[None]:
        if self._over:
            raise InternalError("an upload was used after its end")
        began_seconds = time.monotonic()
        try:
            yield
        except BaseException:
            self.abort()
            self._count_once()
            self._measured.attempt_fails()
            raise
        self._busy_seconds += time.monotonic() - began_seconds

    @property
    def _measured(self) -> UploadMetrics:
        return self._metrics.of(self._tasks_offsets)

    def _count_once(self) -> None:
        """Count the attempt, once it is known whose it is."""
        if not self._counted:
            self._counted = True
            self._measured.attempt_begins()

    def _write_octets(self, octets: bytes | memoryview) -> None:
        self._sink.write(octets, self._encoder.crc32c)
        if self._local is not None:
            self._local.write(octets)

    def _registered(self, stat: ObjectStat) -> UploadTasksResult:
        body_size = self._encoder.body_size
        handle = StreamStateHandle(stat.name, body_size, stat.generation, stat.crc32c, stat.size)
        local_handle = None
        if self._local is not None:
            local_handle = self._local.close(body_size, stat.size)
            if self._local.failed:
                self._measured.local_copy_fails()
        set_count = sum(len(offsets) for offsets in self._tasks_offsets.values())
        kept: list[StreamStateHandle] = [handle] if local_handle is None else [handle, local_handle]
        if set_count > 0:
            for each in kept:
                self._registry.start_tracking(each, set_count)

        def discard() -> None:
            self._measured.result_discarded()
            for each in kept:
                self._registry.discard(each)

        return UploadTasksResult(self._tasks_offsets, handle, local_handle, discard)


def _order_in_task(change_set: StateChangeSet) -> tuple[int, int, int]:
    """Flink's order in a task: by log id as Java compares UUIDs (two signed halves), then position."""
    high, low = divmod(change_set.log_id.int, 1 << 64)
    return (_signed(high), _signed(low), change_set.sequence_number.number)


def _signed(half: int) -> int:
    if not 0 <= half < 1 << 64:
        raise InternalError("half a UUID has 64 bits")
    return half - (1 << 64) if half >= 1 << 63 else half
