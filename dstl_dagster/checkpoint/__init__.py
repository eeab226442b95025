"""The atomic checkpoint: its seven steps, what a person may decide about it, and its upkeep.

Owns the public names of these. Does not own the decisions (`timeline`), or reports and state (`keyed`); the
names that callers of the steps need from there are re-exported here.

Modules are imported on first use: a Spark task needs only those of documents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face

if TYPE_CHECKING:
    from dstl_dagster.checkpoint.batch import Batch
    from dstl_dagster.checkpoint.claims import Claim
    from dstl_dagster.checkpoint.coordinator import CheckpointCoordinator
    from dstl_dagster.checkpoint.inspect.audit import Audit, Damage
    from dstl_dagster.checkpoint.inspect.verify import Problem, Verification
    from dstl_dagster.checkpoint.job import Checkpoint
    from dstl_dagster.checkpoint.reader import CheckpointReader
    from dstl_dagster.checkpoint.restore import RestorePlan
    from dstl_dagster.checkpoint.steps.clean_up import CleanUp, components_of
    from dstl_dagster.checkpoint.steps.compose_commit import SUCCESS_FILE
    from dstl_dagster.checkpoint.upkeep import change_columns, change_names, changed_schema, materialize
    from dstl_dagster.keyed import (
        AttemptReport,
        FileReport,
        Manifest,
        Measure,
        NameChange,
        OperatorReport,
        Source,
        load_report,
        store_report,
    )
    from dstl_dagster.timeline import Attempt, PlannedAttempt, Resolution, Timeline

__all__ = [
    "SUCCESS_FILE",
    "Attempt",
    "AttemptReport",
    "Audit",
    "Batch",
    "Checkpoint",
    "CheckpointCoordinator",
    "CheckpointReader",
    "Claim",
    "CleanUp",
    "Damage",
    "FileReport",
    "Manifest",
    "Measure",
    "NameChange",
    "OperatorReport",
    "PlannedAttempt",
    "Problem",
    "Resolution",
    "RestorePlan",
    "Source",
    "Timeline",
    "Verification",
    "change_columns",
    "change_names",
    "changed_schema",
    "components_of",
    "load_report",
    "materialize",
    "store_report",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "inspect.audit": ["Audit", "Damage"],
        "batch": ["Batch"],
        "claims": ["Claim"],
        "steps.clean_up": ["CleanUp", "components_of"],
        "steps.compose_commit": ["SUCCESS_FILE"],
        "coordinator": ["CheckpointCoordinator"],
        "job": ["Checkpoint"],
        "reader": ["CheckpointReader"],
        "restore": ["RestorePlan"],
        "upkeep": ["change_columns", "change_names", "changed_schema", "materialize"],
        "inspect.verify": ["Problem", "Verification"],
        ".keyed": [
            "AttemptReport",
            "FileReport",
            "Manifest",
            "Measure",
            "NameChange",
            "OperatorReport",
            "Source",
            "load_report",
            "store_report",
        ],
        ".timeline": ["Attempt", "PlannedAttempt", "Resolution", "Timeline"],
    },
)
