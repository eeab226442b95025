from dstl_dagster.storage import RetryPolicy as RetryPolicy
from dstl_dagster.upload.metrics import UploadMetrics as UploadMetrics
from dstl_dagster.upload.scheduler import (
    BatchingStateChangeUploadScheduler as BatchingStateChangeUploadScheduler,
    StateChangeUploadScheduler as StateChangeUploadScheduler,
    direct_scheduler as direct_scheduler,
    scheduler_from_config as scheduler_from_config,
)
from dstl_dagster.upload.tasks import (
    UploadResult as UploadResult,
    UploadTask as UploadTask,
    UploadTasksResult as UploadTasksResult,
)
from dstl_dagster.upload.throttle import Availability as Availability
from dstl_dagster.upload.timers import ThreadTimer as ThreadTimer, Timer as Timer
from dstl_dagster.upload.uploader import (
    DuplicatingStateChangeFsUploader as DuplicatingStateChangeFsUploader,
    StateChangeFsUploader as StateChangeFsUploader,
    StateChangeUploader as StateChangeUploader,
    job_id_text as job_id_text,
    local_changelog_directory as local_changelog_directory,
)
