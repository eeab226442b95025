"""The atomic checkpoint: a job's timeline of decisions, and the seven steps that write it."""

from dstl_dagster.checkpoint.audit import Audit, Damage
from dstl_dagster.checkpoint.checkpoint import Checkpoint
from dstl_dagster.checkpoint.cleanup import CleanUp
from dstl_dagster.checkpoint.coordinator import CheckpointCoordinator
from dstl_dagster.checkpoint.reader import CheckpointReader
from dstl_dagster.checkpoint.verify import Problem, Verification
from dstl_dagster.keyed.manifest import Manifest
from dstl_dagster.keyed.operator_log import OperatorState
from dstl_dagster.keyed.reports import (
    AttemptReport,
    FileReport,
    OperatorReport,
    load_report,
    store_report,
)
from dstl_dagster.timeline.attempt import Attempt
from dstl_dagster.timeline.records import Resolution
from dstl_dagster.timeline.timeline import Timeline

__all__ = [
    "Attempt",
    "AttemptReport",
    "Audit",
    "Checkpoint",
    "CheckpointCoordinator",
    "CheckpointReader",
    "CleanUp",
    "Damage",
    "FileReport",
    "Manifest",
    "OperatorReport",
    "OperatorState",
    "Problem",
    "Resolution",
    "Timeline",
    "Verification",
    "load_report",
    "store_report",
]
