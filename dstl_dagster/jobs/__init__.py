"""What is about a job as a whole: which jobs a store has, reading, correcting, dropping one.

Owns work on top of a job's checkpoints. Does not own a checkpoint (`checkpoint`) or a decision (`timeline`).
"""

from dstl_dagster.jobs.correction import Correction, correct, plan_correction
from dstl_dagster.jobs.drop import Drop, drop_job, plan_drop
from dstl_dagster.jobs.listing import JobSummary, job_names, list_jobs
from dstl_dagster.jobs.reading import read_state

__all__ = [
    "Correction",
    "Drop",
    "JobSummary",
    "correct",
    "drop_job",
    "job_names",
    "list_jobs",
    "plan_correction",
    "plan_drop",
    "read_state",
]
