"""When bytes leave, together with what, and how often it is tried. Owns the public names of the layer.

Does not own whose bytes they are (`changelog`) or who still needs a file (`registry`).
"""

from dstl_dagster.upload.availability import ALWAYS_AVAILABLE, Availability, UploadThrottle
from dstl_dagster.upload.direct import direct_scheduler
from dstl_dagster.upload.metrics import UploadMetrics
from dstl_dagster.upload.retry import RetryingExecutor, RetryPolicy
from dstl_dagster.upload.scheduler import (
    BatchingStateChangeUploadScheduler,
    StateChangeUploadScheduler,
    scheduler_from_config,
)
from dstl_dagster.upload.tasks import UploadResult, UploadTask, UploadTasksResult
from dstl_dagster.upload.uploader import (
    DuplicatingStateChangeFsUploader,
    StateChangeFsUploader,
    StateChangeUploader,
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
    "UploadMetrics",
    "UploadResult",
    "UploadTask",
    "UploadTasksResult",
    "UploadThrottle",
    "direct_scheduler",
    "scheduler_from_config",
]
