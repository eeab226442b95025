"""The direct lane alone: each task uploaded in its caller's thread. Owns no batch, retry or thread."""

from __future__ import annotations

from dstl_dagster.errors import ClosedError
from dstl_dagster.upload.availability import ALWAYS_AVAILABLE, Availability
from dstl_dagster.upload.batches import complete_all
from dstl_dagster.upload.scheduler import StateChangeUploadScheduler
from dstl_dagster.upload.tasks import UploadTask
from dstl_dagster.upload.uploader import StateChangeUploader

__all__ = ["direct_scheduler"]


class _DirectScheduler:
    """One file per task, one attempt per file."""

    def __init__(self, uploader: StateChangeUploader) -> None:
        self._uploader = uploader
        self._closed = False

    def upload(self, task: UploadTask) -> None:
        if self._closed:
            closed = ClosedError("the upload scheduler is closed: open another storage")
            task.fail(closed)
            raise closed
        try:
            result = self._uploader.upload([task])
        except BaseException as error:
            task.fail(error)
            raise
        complete_all(result, [task])

    @property
    def availability(self) -> Availability:
        return ALWAYS_AVAILABLE

    def close(self) -> None:
        self._closed = True
        self._uploader.close()


def direct_scheduler(uploader: StateChangeUploader) -> StateChangeUploadScheduler:
    """A scheduler that uploads at once, in the caller's thread, and raises what the uploader raises."""
    return _DirectScheduler(uploader)
