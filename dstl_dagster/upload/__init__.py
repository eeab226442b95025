"""When bytes leave, together with what, and how often it is tried. Owns the public names of the layer.

Does not own the writers of the bytes (`changelog`) or the users of a file (`registry`).
"""

from dstl_dagster.storage import RetryPolicy
from dstl_dagster.upload.metrics import UploadMetrics
from dstl_dagster.upload.racing import RetryingExecutor
from dstl_dagster.upload.scheduler import (
    BatchingStateChangeUploadScheduler,
    StateChangeUploadScheduler,
    UploadPolicy,
    UploadScheduler,
    direct_scheduler,
    scheduler_from_config,
)
from dstl_dagster.upload.tasks import UploadResult, UploadTask, UploadTasksResult
from dstl_dagster.upload.throttle import ALWAYS_AVAILABLE, Availability, UploadThrottle
from dstl_dagster.upload.timers import ThreadTimer, Timer
from dstl_dagster.upload.uploader import (
    DuplicatingStateChangeFsUploader,
    StateChangeFsUploader,
    StateChangeUploader,
    job_id_text,
    local_changelog_directory,
)

__all__ = [
    "ALWAYS_AVAILABLE",
    "Availability",
    "BatchingStateChangeUploadScheduler",
    "DuplicatingStateChangeFsUploader",
    "RetryPolicy",
    "RetryingExecutor",
    "StateChangeFsUploader",
    "StateChangeUploadScheduler",
    "StateChangeUploader",
    "ThreadTimer",
    "Timer",
    "UploadMetrics",
    "UploadPolicy",
    "UploadResult",
    "UploadScheduler",
    "UploadTask",
    "UploadTasksResult",
    "UploadThrottle",
    "direct_scheduler",
    "job_id_text",
    "local_changelog_directory",
    "scheduler_from_config",
]
