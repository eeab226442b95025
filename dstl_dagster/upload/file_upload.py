"""The file of one attempt: begun, written task by task, then made durable or deleted.

Owns the file's bytes and its end. Does not own its name, nor which tasks it holds (`uploader`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from dstl_dagster.clock import Clock
from dstl_dagster.errors import ClosedError, InternalError
from dstl_dagster.format.changelog_file.encoding import ChangelogFileEncoder
from dstl_dagster.format.changes import StateChangeSet
from dstl_dagster.format.handles import StreamStateHandle
from dstl_dagster.storage import ObjectStat
from dstl_dagster.upload.metrics import UploadMetrics
from dstl_dagster.upload.sinks import LocalCopySink, ObjectSink, Piece
from dstl_dagster.upload.tasks import UploadTask, UploadTasksResult


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
        clock: Clock,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._name = name
        self._sink = sink
        self._local = local
        self._encoder = encoder
        self._registry = registry
        self._metrics = metrics
        self._clock = clock
        self._is_cancelled = is_cancelled
        self._tasks_offsets: dict[UploadTask, dict[StateChangeSet, tuple[int, int]]] = {}
        self._busy_seconds = 0.0
        self._over = False
        self._counted = False
        with self._attempting():
            self._write_piece(Piece(encoder.header(), encoder.crc32c))

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
                    self._write_piece(Piece(octets, self._encoder.crc32c))
                    if self._is_cancelled():
                        raise ClosedError("every task of this upload has ended meanwhile: it was cancelled")

    def finish(self) -> UploadTasksResult:
        """Make the file durable and track it. Raises as `write`."""
        with self._attempting():
            for octets in self._encoder.footer():
                self._write_piece(Piece(octets, self._encoder.crc32c))
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
        began_seconds = self._clock.monotonic_seconds()
        try:
            yield
        except BaseException:
            self.abort()
            self._count_once()
            self._measured.attempt_fails()
            raise
        self._busy_seconds += self._clock.monotonic_seconds() - began_seconds

    @property
    def _measured(self) -> UploadMetrics:
        return self._metrics.of(self._tasks_offsets)

    def _count_once(self) -> None:
        """Count the attempt, once it is known whose it is."""
        if not self._counted:
            self._counted = True
            self._measured.attempt_begins()

    def _write_piece(self, piece: Piece) -> None:
        self._sink.write(piece)
        if self._local is not None:
            self._local.write(piece)

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
