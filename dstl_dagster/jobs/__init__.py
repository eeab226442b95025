"""What is about a job as a whole: which jobs a store has, reading, writing, correcting, dropping one.

Owns work on top of a job's checkpoints. Does not own a checkpoint (`checkpoint`) or a decision (`timeline`).
What writes rows is imported on first use: it needs Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face
from dstl_dagster.jobs.correction import Correction, correct, plan_correction
from dstl_dagster.jobs.drop import Drop, drop_job, plan_drop
from dstl_dagster.jobs.listing import JobSummary, list_jobs
from dstl_dagster.jobs.reading import read_state

if TYPE_CHECKING:
    from dstl_dagster.jobs.frames import merge_frame, require_mergeable, write_frame

__all__ = [
    "Correction",
    "Drop",
    "JobSummary",
    "correct",
    "drop_job",
    "list_jobs",
    "merge_frame",
    "plan_correction",
    "plan_drop",
    "read_state",
    "require_mergeable",
    "write_frame",
]

__getattr__, __dir__ = lazy_face(__name__, {"frames": ["merge_frame", "require_mergeable", "write_frame"]})
