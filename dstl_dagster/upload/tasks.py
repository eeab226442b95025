"""Upload tasks and their results: what passes between a writer, a scheduler and an uploader.

Owns the single completion of a task. Does not own threads, retries or files.

Source: Flink's `UploadTask`, `UploadResult`, `UploadTasksResult`.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dstl_dagster.errors import InternalError
from dstl_dagster.format.changes import StateChangeSet
from dstl_dagster.format.handles import LocalStateHandle, StreamStateHandle
from dstl_dagster.format.sequence import SequenceNumber
from dstl_dagster.storage import ANY, Generation, ObjectStore

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UploadResult:
    """Where one change set is stored.

    Attributes:
        stream_state_handle: the durable file.
        local_handle: its copy on this machine's disk, where there is one.
        offset, local_offset: where the set begins in the logical body of each.
        sequence_number: of the set.
        size: payload bytes of the set.
    """

    stream_state_handle: StreamStateHandle
    local_handle: StreamStateHandle | None
    offset: int
    local_offset: int
    sequence_number: SequenceNumber
    size: int

    @classmethod
    def of(
        cls,
        handle: StreamStateHandle,
        local_handle: StreamStateHandle | None,
        change_set: StateChangeSet,
        offset: int,
        local_offset: int,
    ) -> UploadResult:
        """The result of writing `change_set` at those offsets."""
        return cls(handle, local_handle, offset, local_offset, change_set.sequence_number, change_set.size)


class UploadTask:
    """Change sets that one writer wants uploaded together: never split between files.

    Ends once: the first `complete` or `fail`, from any thread, runs its callback in that thread; later
    ones do nothing. `size` is payload bytes of all sets; `operator` is whose they are, where that is known.
    """

    __slots__ = (
        "_failure_callback",
        "_finish_lock",
        "_finished",
        "_success_callback",
        "change_sets",
        "operator",
        "size",
    )

    def __init__(
        self,
        change_sets: Collection[StateChangeSet],
        success_callback: Callable[[list[UploadResult]], None],
        failure_callback: Callable[[list[SequenceNumber], BaseException], None],
        operator: str | None = None,
    ) -> None:
        self.operator = operator
        self.change_sets = tuple(change_sets)
        self.size = sum(change_set.size for change_set in self.change_sets)
        self._success_callback = success_callback
        self._failure_callback = failure_callback
        self._finish_lock = threading.Lock()
        self._finished = False

    @property
    def is_finished(self) -> bool:
        """Whether it was completed or failed: an upload still running for it is wasted."""
        return self._finished

    def complete(self, results: list[UploadResult]) -> None:
        """It was uploaded: one result for each change set."""
        if self._finish():
            self._success_callback(results)

    def fail(self, error: BaseException) -> None:
        """It will not be uploaded."""
        if self._finish():
            self._failure_callback([change_set.sequence_number for change_set in self.change_sets], error)

    def _finish(self) -> bool:
        with self._finish_lock:
            first, self._finished = not self._finished, True
        return first


class UploadTasksResult:
    """The outcome of one upload attempt: one file, and the offset of each change set in it.

    Args:
        tasks_offsets: for each task and each of its sets the offsets in the file and in the local copy.
        handle: the durable file.
        local_handle: the local copy, where there is one.
        discard: deletes both, for an uploader whose files have other owners too.
        store: where `handle` is; without `discard`, the file is deleted there. With neither it stays for
            garbage collection.
        failed: tasks of the attempt that are not in the file, and why. They end with that error: it is final,
            and no reason to repeat the attempt.
    """

    def __init__(
        self,
        tasks_offsets: Mapping[UploadTask, Mapping[StateChangeSet, tuple[int, int]]],
        handle: StreamStateHandle,
        local_handle: StreamStateHandle | None = None,
        discard: Callable[[], None] | None = None,
        *,
        store: ObjectStore | None = None,
        failed: Mapping[UploadTask, BaseException] | None = None,
    ) -> None:
        self.tasks_offsets = tasks_offsets
        self.handle = handle
        self.local_handle = local_handle
        self.failed = dict(failed or {})
        self._discard = discard
        self._store = store

    @property
    def state_size(self) -> int:
        """Logical bytes of the file: headers included, uncompressed."""
        return self.handle.size or 0

    def complete(self) -> None:
        """End every task: with its results, or its error. A callback that raises keeps no other waiting."""
        failures: list[BaseException] = []
        ends: list[Callable[[], None]] = [
            functools.partial(self._complete, task, offsets) for task, offsets in self.tasks_offsets.items()
        ]
        ends += [functools.partial(task.fail, error) for task, error in self.failed.items()]
        for end in ends:
            try:
                end()
            except Exception as error:  # noqa: BLE001 - raised below, once every task has ended
                failures.append(error)
        if failures:
            raise InternalError(f"{len(failures)} of {len(ends)} upload callbacks failed") from failures[0]

    def _complete(self, task: UploadTask, offsets: Mapping[StateChangeSet, tuple[int, int]]) -> None:
        missing = [str(each.sequence_number) for each in task.change_sets if each not in offsets]
        if missing:
            # With some of its results a task would be taken for uploaded.
            task.fail(
                InternalError(
                    f"the uploader returned {self.handle.name} without an offset for {', '.join(missing)}"
                )
            )
            return
        results = [
            UploadResult.of(self.handle, self.local_handle, change_set, offset, local_offset)
            for change_set, (offset, local_offset) in offsets.items()
        ]
        task.complete(results)

    def discard(self) -> None:
        """The attempt lost: delete its file and the copy."""
        if self._discard is not None:
            self._discard()
            return
        if isinstance(self.local_handle, LocalStateHandle):
            Path(self.local_handle.name).unlink(missing_ok=True)
        if self._store is None:
            _logger.warning(
                "the uploader gave no way to delete %s; garbage collection will", self.handle.name
            )
            return
        generation = self.handle.generation
        self._store.delete(
            self.handle.name, precondition=ANY if generation is None else Generation(generation)
        )
