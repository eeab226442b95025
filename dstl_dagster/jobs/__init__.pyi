from dstl_dagster.jobs.clone import clone_job as clone_job, swap_job as swap_job
from dstl_dagster.jobs.correction import (
    Correction as Correction,
    correct as correct,
    plan_correction as plan_correction,
)
from dstl_dagster.jobs.drop import Drop as Drop, drop_job as drop_job, plan_drop as plan_drop
from dstl_dagster.jobs.frames import (
    FrameMerge as FrameMerge,
    is_spark_rows as is_spark_rows,
    merge_frame as merge_frame,
    write_frame as write_frame,
)
from dstl_dagster.jobs.listing import (
    JobSummary as JobSummary,
    list_jobs as list_jobs,
    read_state as read_state,
)
