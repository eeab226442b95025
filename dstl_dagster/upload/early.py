"""Writing the file of a batch while the batch still waits for company.

Owns that file until the batch leaves. Does not own when that is (`scheduler`).

An error here costs only this work: the first attempt then begins anew. It pays for itself
(docs/decisions/0016).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from dstl_dagster.upload.file_upload import FileUpload
from dstl_dagster.upload.tasks import UploadTask, UploadTasksResult

_logger = logging.getLogger(__name__)

BeginFile = Callable[[Callable[[], bool]], FileUpload]
"""Begins a file, as `StateChangeFsUploader.begin`."""


class EarlyFile:
    """The file of one batch, begun before the batch leaves. Any thread; ends with `finish` or `abandon`.

    Args:
        begin_file: None: nothing is written early.
    """

    def __init__(self, begin_file: BeginFile | None) -> None:
        self._begin_file = begin_file
        self._lock = threading.Lock()
        self._file: FileUpload | None = None
        self._closed = False
        self._abandoned = False
        self._batch: Sequence[UploadTask] = ()

    def write(self, tasks: Sequence[UploadTask]) -> None:
        """Write those of the batch's tasks so far that are not in the file yet. Never raises."""
        with self._lock:
            if self._closed or self._begin_file is None:
                return
            try:
                if self._file is None:
                    self._file = self._begin_file(self._is_cancelled)
                for task in tasks[len(self._file.tasks) :]:
                    self._file.write(task)
            except Exception as error:  # noqa: BLE001 - if it persists, the first attempt meets it again
                _logger.info("the file of a waiting batch was given up: %s", error)
                self._close()

    def finish(self, batch: Sequence[UploadTask]) -> UploadTasksResult | None:
        """The batch leaves: write the rest and make the file durable. Raises as an attempt.

        None where nothing was written, or something other than the beginning of this batch.
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
        """The batch will not be uploaded. Waits for a write under way. May be called again."""
        self._abandoned = True
        with self._lock:
            self._close()

    def _close(self) -> None:
        if not self._closed and self._file is not None:
            self._file.abort()
        self._closed = True

    def _is_cancelled(self) -> bool:
        return self._abandoned or (bool(self._batch) and all(task.is_finished for task in self._batch))
