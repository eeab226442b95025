"""Upload tasks and their results: what passes between a writer, a scheduler and an uploader.

Owns the single completion of a task. Does not own threads, retries or files.

Source: Flink's `UploadTask`, `UploadResult`, `UploadTasksResult`.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dstl_dagster.errors import InternalError, InvalidInputError
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

    Args:
        change_sets: several, or one.
        success_callback, failure_callback: by default none is called, and a failure is logged.
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
        change_sets: Collection[StateChangeSet] | StateChangeSet,
        success_callback: Callable[[list[UploadResult]], None] | None = None,
        failure_callback: Callable[[list[SequenceNumber], BaseException], None] | None = None,
        operator: str | None = None,
    ) -> None:
        self.operator = operator
        several = [change_sets] if isinstance(change_sets, StateChangeSet) else change_sets
        self.change_sets = tuple(several)
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
        if self._finish() and self._success_callback is not None:
            self._success_callback(results)

    def fail(self, error: BaseException) -> None:
        if not self._finish():
            return
        positions = [change_set.sequence_number for change_set in self.change_sets]
        if self._failure_callback is not None:
            self._failure_callback(positions, error)
        else:
            _logger.warning("positions %s were not uploaded: %s", ", ".join(map(str, positions)), error)

    def _finish(self) -> bool:
        with self._finish_lock:
            first, self._finished = not self._finished, True
        return first


class UploadTasksResult:
    """The outcome of one upload attempt: where each change set is, in one file or in several.

    The scheduler ends the tasks by it, and not the uploader: of attempts side by side one wins, and the files
    of the others are deleted.

    Args:
        tasks_offsets: for each task and each of its sets the offsets in the file and in the local copy; the
            results of each task where there is no `handle`.
        handle: the durable file; `None` if there are several.
        local_handle: the local copy, where there is one.
        discard: deletes both, for an uploader whose files have other owners too.
        store: where the files are; without `discard`, they are deleted there. With neither they stay for
            garbage collection.
        failed: tasks of the attempt that are in no file, and why. They end with that error: it is final, and
            no reason to repeat the attempt.

    Raises: InvalidInputError for offsets without a `handle`.
    """

    def __init__(
        self,
        tasks_offsets: Mapping[UploadTask, Mapping[StateChangeSet, tuple[int, int]] | Sequence[UploadResult]],
        handle: StreamStateHandle | None = None,
        local_handle: StreamStateHandle | None = None,
        discard: Callable[[], None] | None = None,
        *,
        store: ObjectStore | None = None,
        failed: Mapping[UploadTask, BaseException] | None = None,
    ) -> None:
        if handle is None and any(isinstance(places, Mapping) for places in tasks_offsets.values()):
            raise InvalidInputError(
                "offsets are in a file: give its handle, or the result of each change set"
            )
        self.tasks_offsets = tasks_offsets
        self.handle = handle
        self.local_handle = local_handle
        self.failed = dict(failed or {})
        self._discard = discard
        self._store = store

    @property
    def results(self) -> dict[UploadTask, list[UploadResult]]:
        return {task: self._results_of(places) for task, places in self.tasks_offsets.items()}

    def _results_of(
        self, places: Mapping[StateChangeSet, tuple[int, int]] | Sequence[UploadResult]
    ) -> list[UploadResult]:
        if not isinstance(places, Mapping):
            return list(places)
        assert self.handle is not None, "offsets are in a file"
        of_file = functools.partial(UploadResult.of, self.handle, self.local_handle)
        return [of_file(change_set, *offsets) for change_set, offsets in places.items()]

    @property
    def _handles(self) -> list[tuple[StreamStateHandle, StreamStateHandle | None]]:
        """All files, each with its local copy."""
        own = [] if self.handle is None else [(self.handle, self.local_handle)]
        found = (result for results in self.results.values() for result in results)
        return list(dict.fromkeys([*own, *((each.stream_state_handle, each.local_handle) for each in found)]))

    @property
    def state_size(self) -> int:
        """Logical bytes of all files: headers included, uncompressed."""
        return sum(handle.size or 0 for handle, _ in self._handles)

    def __str__(self) -> str:
        return ", ".join(handle.name for handle, _ in self._handles) or "no file"

    def complete(self) -> None:
        """End every task: with its results, or its error. A callback that raises keeps no other waiting."""
        failures: list[BaseException] = []
        ends: list[Callable[[], None]] = [
            functools.partial(self._complete, task, results) for task, results in self.results.items()
        ]
        ends += [functools.partial(task.fail, error) for task, error in self.failed.items()]
        for end in ends:
            try:
                end()
            except Exception as error:  # noqa: BLE001 - raised below, once every task has ended
                failures.append(error)
        if failures:
            raise InternalError(f"{len(failures)} of {len(ends)} upload callbacks failed") from failures[0]

    def _complete(self, task: UploadTask, results: list[UploadResult]) -> None:
        missing = Counter(each.sequence_number for each in task.change_sets)
        missing.subtract(each.sequence_number for each in results)
        which = ", ".join(map(str, missing.elements()))
        if which:
            # With some of its results a task would be taken for uploaded.
            task.fail(InternalError(f"the uploader returned {self} without an offset for {which}"))
            return
        task.complete(results)

    def discard(self) -> None:
        """The attempt lost: delete its files and their copies."""
        if self._discard is not None:
            self._discard()
            return
        if self._store is None:
            _logger.warning("the uploader gave no way to delete %s; garbage collection will", self)
        for handle, local_handle in self._handles:
            if isinstance(local_handle, LocalStateHandle):
                Path(local_handle.name).unlink(missing_ok=True)
            if self._store is not None:
                known = ANY if handle.generation is None else Generation(handle.generation)
                self._store.delete(handle.name, precondition=known)
