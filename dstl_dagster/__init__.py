"""Durable incremental state and exactly-once files for PySpark jobs, run from Dagster.

The names below are loaded on first use: importing the package on a Spark executor imports neither
Dagster nor PySpark nor Google's libraries. They need Dagster, which `dstl-dagster[dagster]` brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face

if TYPE_CHECKING:
    from dstl_dagster.orchestration.assets import build_state_asset, checkpoint_asset_specs
    from dstl_dagster.orchestration.checks import build_checkpoint_checks
    from dstl_dagster.orchestration.commit import build_commit_job, commit_run_config
    from dstl_dagster.orchestration.component import CheckpointLineageComponent
    from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY
    from dstl_dagster.orchestration.jobs import build_checkpoint_job
    from dstl_dagster.orchestration.keys import JobAssets
    from dstl_dagster.orchestration.maintenance import (
        build_cleanup_job,
        build_cleanup_schedule,
        build_materialize_job,
        build_materialize_schedule,
        build_verify_job,
        build_verify_schedule,
    )
    from dstl_dagster.orchestration.ops import cleanup_op, compose_commit_op, confirm_op, persist_op
    from dstl_dagster.orchestration.partitions import next_partition
    from dstl_dagster.orchestration.resources import (
        ChangelogStorageResource,
        RecoverableWriterResource,
        SparkSessionResource,
    )
    from dstl_dagster.orchestration.restore_job import build_restore_job, restore_run_config
    from dstl_dagster.orchestration.sensors import build_abort_sensors, build_checkpoint_sensor

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_RETRY_POLICY",
    "ChangelogStorageResource",
    "CheckpointLineageComponent",
    "JobAssets",
    "RecoverableWriterResource",
    "SparkSessionResource",
    "__version__",
    "build_abort_sensors",
    "build_checkpoint_checks",
    "build_checkpoint_job",
    "build_checkpoint_sensor",
    "build_cleanup_job",
    "build_cleanup_schedule",
    "build_commit_job",
    "build_materialize_job",
    "build_materialize_schedule",
    "build_restore_job",
    "build_state_asset",
    "build_verify_job",
    "build_verify_schedule",
    "checkpoint_asset_specs",
    "cleanup_op",
    "commit_run_config",
    "compose_commit_op",
    "confirm_op",
    "next_partition",
    "persist_op",
    "restore_run_config",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "orchestration.assets": ["build_state_asset", "checkpoint_asset_specs"],
        "orchestration.checks": ["build_checkpoint_checks"],
        "orchestration.commit": ["build_commit_job", "commit_run_config"],
        "orchestration.component": ["CheckpointLineageComponent"],
        "orchestration.failures": ["DEFAULT_RETRY_POLICY"],
        "orchestration.jobs": ["build_checkpoint_job"],
        "orchestration.keys": ["JobAssets"],
        "orchestration.maintenance": [
            "build_cleanup_job",
            "build_cleanup_schedule",
            "build_materialize_job",
            "build_materialize_schedule",
            "build_verify_job",
            "build_verify_schedule",
        ],
        "orchestration.ops": ["cleanup_op", "compose_commit_op", "confirm_op", "persist_op"],
        "orchestration.partitions": ["next_partition"],
        "orchestration.resources": [
            "ChangelogStorageResource",
            "RecoverableWriterResource",
            "SparkSessionResource",
        ],
        "orchestration.restore_job": ["build_restore_job", "restore_run_config"],
        "orchestration.sensors": ["build_abort_sensors", "build_checkpoint_sensor"],
    },
)
