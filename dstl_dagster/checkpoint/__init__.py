"""The atomic checkpoint: a job's timeline of decisions, and the seven steps that write it."""

from dstl_dagster.checkpoint.attempt import Attempt
from dstl_dagster.checkpoint.cleanup import CleanUp
from dstl_dagster.checkpoint.coordinator import Checkpoint, CheckpointCoordinator
from dstl_dagster.checkpoint.manifest import Manifest
from dstl_dagster.checkpoint.reports import (
    AttemptReport,
    FileReport,
    OperatorReport,
    load_report,
    store_report,
)
from dstl_dagster.checkpoint.restore import OperatorState
from dstl_dagster.checkpoint.timeline import Timeline

__all__ = [
    "Attempt",
    "AttemptReport",
    "Checkpoint",
    "CheckpointCoordinator",
    "CleanUp",
    "FileReport",
    "Manifest",
    "OperatorReport",
    "OperatorState",
    "Timeline",
    "load_report",
    "store_report",
]
