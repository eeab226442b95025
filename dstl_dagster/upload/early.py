"""Encoding and writing a batch while it still waits for others to join it.

Owns the first attempt's file until its batch is closed. Does not own when that is (`scheduler`).

A batch waits so that writers share a file. What is there already need not wait: it is encoded, and where it
is large sent, so that little is left to do when the batch is closed. An error here costs only this work:
the first attempt then begins anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from dstl_dagster.upload.file_upload import FileUpload
from dstl_dagster.upload.tasks import UploadTask, UploadTasksResult

__all__ = ["BeginFile", "EarlyUpload"]

_logger = logging.getLogger(__name__)

BeginFile = Callable[[Callable[[], bool]], FileUpload]


class EarlyUpload:
    """The file of the batch that waits. Any thread; ends with `finish` or `abandon`.

    Args:
        begin: begins a file, as `StateChangeFsUploader.begin`.
    """

    def __init__(self, begin: BeginFile) -> None:
        self._begin = begin
        self._lock = threading.Lock()
        self._file: FileUpload | None = None
        self._closed = False
        self._in_vain = False
        self._batch: Sequence[UploadTask] = ()

    def write(self, tasks: Sequence[UploadTask]) -> None:
        """Write those of the batch's tasks so far that are not in the file yet. Never raises."""
        with self._lock:
            if self._closed:
                return
            try:
                if self._file is None:
                    self._file = self._begin(self._is_in_vain)
                for task in tasks[len(self._file.tasks) :]:
                    self._file.write(task)
                self._file.flush()
            except Exception as error:  # noqa: BLE001 - the first attempt meets it again, if it stays
                _logger.info("a batch could not be written before it was closed: %s", error)
                self._close()

    def finish(self, batch: Sequence[UploadTask]) -> UploadTasksResult | None:
        """The batch is closed: write the rest, and make the file durable. Raises as an attempt.

        None where nothing was written early, or something that is not how this batch begins.
        """
        with self._lock:
            file = self._file
            if self._closed or file is None or file.tasks != tuple(batch[: len(file.tasks)]):
                self._close()
                return None
            self._closed = True
            self._batch = batch
            for task in batch[len(file.tasks) :]:
                file.write(task)
            return file.finish()

    def abandon(self) -> None:
        """There will be no such batch. Waits for the piece that is being written. May be called again."""
        self._in_vain = True
        with self._lock:
            self._close()

    def _close(self) -> None:
        if not self._closed and self._file is not None:
            self._file.abort()
        self._closed = True

    def _is_in_vain(self) -> bool:
        return self._in_vain or (bool(self._batch) and all(task.is_finished for task in self._batch))
