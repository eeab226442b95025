"""One attempt to upload: some tasks in, one changelog file out.

Owns the file of one attempt, from its name to its registration or deletion. Does not own retries, batches,
or the completion of tasks (`retry`, `scheduler`).

Source: Flink's `StateChangeFsUploader` and `DuplicatingStateChangeFsUploader`. There an attempt that fails
also fails its tasks, which makes the retry useless; and an error while closing passes for success.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, Protocol

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import ClosedError, InternalError, InvalidInputError
from dstl_dagster.format.changelog_file import ChangelogFileEncoder
from dstl_dagster.format.changes import StateChangeSet
from dstl_dagster.format.compression import Compression
from dstl_dagster.format.handles import StreamStateHandle
from dstl_dagster.storage.base import ObjectStat, ObjectStore
from dstl_dagster.upload.metrics import UploadMetrics
from dstl_dagster.upload.places import changelog_folder
from dstl_dagster.upload.sinks import LocalCopySink, ObjectSink, WriteBehind
from dstl_dagster.upload.tasks import UploadTask, UploadTasksResult

__all__ = ["DuplicatingStateChangeFsUploader", "FileTracker", "StateChangeFsUploader", "StateChangeUploader"]

_WRITE_BEHIND_BUFFERS: Final = 16
"""From so many buffers of payload on a file is written on a thread of its own while it is encoded."""


class FileTracker(Protocol):
    """Who is told of the files an uploader makes. Any thread."""

    def start_tracking(self, handle: StreamStateHandle, reference_count: int) -> None:
        """The file is there; so many change sets need it."""
        ...

    def discard(self, handle: StreamStateHandle) -> None:
        """Nobody needs the file, if it is there at all: delete it."""
        ...


class StateChangeUploader(Protocol):
    """Uploads tasks: what a scheduler calls. Users may bring their own."""

    def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
        """Write all change sets of all tasks durably, in the given order.

        Called from any thread, several at once, and again for the same tasks when an attempt failed or was
        slow. It completes and fails no task: it returns or raises. An UnavailableError or OSError may be
        tried again; any other error ends the tasks. Whatever it wrote before raising, it deletes.
        """
        ...

    def close(self) -> None:
        """No further upload follows. May be called again."""
        ...


class StateChangeFsUploader:
    """Writes one new object of the store for each attempt, below `<base path>/<job id>/dstl/`."""

    def __init__(
        self,
        store: ObjectStore,
        base_path: str,
        job_id: uuid.UUID | str,
        registry: FileTracker,
        *,
        compression: Compression = Compression.NONE,
        buffer_bytes: int = 1 << 20,
        metrics: UploadMetrics | None = None,
        clock: Clock | None = None,
        new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self.base_path = changelog_folder(base_path, job_id)
        self._store = store
        self._registry = registry
        self._compression = compression
        self._buffer_bytes = buffer_bytes
        self._metrics = metrics or UploadMetrics()
        self._clock = clock or SystemClock()
        self._new_uuid = new_uuid

    def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
        self._metrics.attempt_begins()
        began_seconds = self._clock.monotonic_seconds()
        try:
            result = self._write_file(list(tasks))
        except BaseException:
            self._metrics.attempt_fails()
            raise
        self._metrics.attempt_succeeds(result.state_size, self._clock.monotonic_seconds() - began_seconds)
        return result

    def _write_file(self, tasks: list[UploadTask]) -> UploadTasksResult:
        # A name of its own for every attempt: two that race can never write the same object.
        file_id = str(self._new_uuid())
        name = f"{self.base_path}/{file_id}"
        sink = ObjectSink(self._store, name, file_id, self._buffer_bytes)
        local = self._open_local(file_id)
        encoder = ChangelogFileEncoder(self._compression, self._buffer_bytes)
        try:
            tasks_offsets = self._write_all(tasks, encoder, sink, local)
            stat = sink.close()
        except BaseException:
            sink.abort()
            if local is not None:
                local.abort()
            # The answer may have been lost: then an object may be there, or may still arrive. The first is
            # deleted here; the second lies under the attempt's name, where garbage collection finds it.
            self._registry.discard(StreamStateHandle(name, None))
            raise
        return self._registered(tasks_offsets, encoder.body_size, stat, local)

    def _write_all(
        self,
        tasks: list[UploadTask],
        encoder: ChangelogFileEncoder,
        sink: ObjectSink,
        local: LocalCopySink | None,
    ) -> Mapping[UploadTask, Mapping[StateChangeSet, tuple[int, int]]]:
        def write(piece: bytes | memoryview) -> None:
            sink.write(piece)
            if local is not None:
                local.write(piece)

        # Files of usual size overlap with each other, on the scheduler's threads; one more thread for each
        # would cost more than it gives. A large one is alone most often.
        if sum(task.size for task in tasks) < _WRITE_BEHIND_BUFFERS * self._buffer_bytes:
            return self._write_pieces(tasks, encoder, write)
        behind = WriteBehind(write, "dstl-changelog-write-behind")
        try:
            tasks_offsets = self._write_pieces(tasks, encoder, behind.write)
            behind.finish()
        finally:
            # The sink is closed or aborted next, and by one thread at a time.
            behind.abort()
        return tasks_offsets

    def _write_pieces(
        self,
        tasks: list[UploadTask],
        encoder: ChangelogFileEncoder,
        write: Callable[[bytes | memoryview], None],
    ) -> Mapping[UploadTask, Mapping[StateChangeSet, tuple[int, int]]]:
        write(encoder.header())
        tasks_offsets: dict[UploadTask, dict[StateChangeSet, tuple[int, int]]] = {}
        for task in tasks:
            offsets = tasks_offsets.setdefault(task, {})
            for change_set in sorted(task.change_sets, key=_order_in_task):
                offsets[change_set] = (encoder.body_size, encoder.body_size)
                for piece in encoder.change_set(change_set):
                    write(piece)
                    if all(other.is_finished for other in tasks):
                        raise ClosedError("every task of this upload ended meanwhile: it is in vain")
        for part in encoder.footer():
            write(part)
        return tasks_offsets

    def _registered(
        self,
        tasks_offsets: Mapping[UploadTask, Mapping[StateChangeSet, tuple[int, int]]],
        body_size: int,
        stat: ObjectStat,
        local: LocalCopySink | None,
    ) -> UploadTasksResult:
        handle = StreamStateHandle(stat.name, body_size, stat.generation, stat.crc32c, stat.size)
        local_handle = None
        if local is not None:
            local_handle = local.close(body_size, stat.size)
            if local.failed:
                self._metrics.local_copy_fails()
        set_count = sum(len(offsets) for offsets in tasks_offsets.values())
        kept: list[StreamStateHandle] = [handle] if local_handle is None else [handle, local_handle]
        if set_count > 0:
            for each in kept:
                self._registry.start_tracking(each, set_count)

        def discard() -> None:
            self._metrics.result_discarded()
            for each in kept:
                self._registry.discard(each)

        return UploadTasksResult(tasks_offsets, handle, local_handle, discard)

    def _open_local(self, file_id: str) -> LocalCopySink | None:
        del file_id
        return None

    def close(self) -> None:
        return None


class DuplicatingStateChangeFsUploader(StateChangeFsUploader):
    """Also writes each file to a local directory. A copy that fails is given up and counted."""

    def __init__(
        self,
        store: ObjectStore,
        base_path: str,
        job_id: uuid.UUID | str,
        registry: FileTracker,
        local_directory: Path,
        *,
        compression: Compression = Compression.NONE,
        buffer_bytes: int = 1 << 20,
        metrics: UploadMetrics | None = None,
        clock: Clock | None = None,
        new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        super().__init__(
            store,
            base_path,
            job_id,
            registry,
            compression=compression,
            buffer_bytes=buffer_bytes,
            metrics=metrics,
            clock=clock,
            new_uuid=new_uuid,
        )
        if not local_directory.is_absolute():
            raise InvalidInputError(f"the directory of local copies must be absolute: {local_directory}")
        self._local_directory = local_directory

    def _open_local(self, file_id: str) -> LocalCopySink | None:
        return LocalCopySink(self._local_directory / file_id)


def _order_in_task(change_set: StateChangeSet) -> tuple[int, int, int]:
    """Flink's order in a task: by log id as Java compares UUIDs (two signed halves), then position."""
    high, low = divmod(change_set.log_id.int, 1 << 64)
    return (_signed(high), _signed(low), change_set.sequence_number.number)


def _signed(half: int) -> int:
    if not 0 <= half < 1 << 64:
        raise InternalError("half a UUID has 64 bits")
    return half - (1 << 64) if half >= 1 << 63 else half
