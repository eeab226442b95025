"""Durable incremental state and exactly-once files for PySpark jobs, run from Dagster.

The names below are loaded on first use: importing the package on a Spark executor imports neither
Dagster nor PySpark nor Google's libraries. They need Dagster, which `dstl-dagster[dagster]` brings, but for
`read_state` and its `StateScan`, and `open_batch` and its `CheckpointBatch`, which needs PySpark for Spark's
DataFrames alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face

if TYPE_CHECKING:
    from dstl_dagster.jobs import read_state
    from dstl_dagster.keyed import StateScan
    from dstl_dagster.orchestration.define.assets import build_state_asset, checkpoint_asset_specs
    from dstl_dagster.orchestration.define.checkpointed_asset import checkpointed_asset
    from dstl_dagster.orchestration.define.io_manager import KeyedStateIOManager
    from dstl_dagster.orchestration.define.jobs import build_checkpoint_job
    from dstl_dagster.orchestration.define.ops import cleanup_op, compose_commit_op, confirm_op, persist_op
    from dstl_dagster.orchestration.executors import build_step_executor
    from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY
    from dstl_dagster.orchestration.inject.resources import (
        ChangelogStorageResource,
        RecoverableWriterResource,
        SparkSessionResource,
    )
    from dstl_dagster.orchestration.keys import JobAssets
    from dstl_dagster.orchestration.operate.commit import build_commit_job, commit_run_config
    from dstl_dagster.orchestration.operate.maintenance import (
        build_cleanup_job,
        build_cleanup_schedule,
        build_maintenance,
    )
    from dstl_dagster.orchestration.operate.restoring import restore_run_config
    from dstl_dagster.orchestration.partition_order import next_partition
    from dstl_dagster.orchestration.watch.checks import build_checkpoint_checks
    from dstl_dagster.orchestration.watch.downstream import build_downstream_sensor
    from dstl_dagster.orchestration.watch.sensors import build_abort_sensors, build_checkpoint_sensor
    from dstl_dagster.orchestration.yaml.asset_component import CheckpointedAssetComponent
    from dstl_dagster.orchestration.yaml.component import CheckpointLineageComponent
    from dstl_dagster.spark import CheckpointBatch as CheckpointBatch
    from dstl_dagster.spark import open_batch as open_batch

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_RETRY_POLICY",
    "ChangelogStorageResource",
    "CheckpointLineageComponent",
    "CheckpointedAssetComponent",
    "JobAssets",
    "KeyedStateIOManager",
    "RecoverableWriterResource",
    "SparkSessionResource",
    "StateScan",
    "__version__",
    "build_abort_sensors",
    "build_checkpoint_checks",
    "build_checkpoint_job",
    "build_checkpoint_sensor",
    "build_cleanup_job",
    "build_cleanup_schedule",
    "build_commit_job",
    "build_downstream_sensor",
    "build_maintenance",
    "build_state_asset",
    "build_step_executor",
    "checkpoint_asset_specs",
    "checkpointed_asset",
    "cleanup_op",
    "commit_run_config",
    "compose_commit_op",
    "confirm_op",
    "next_partition",
    "persist_op",
    "read_state",
    "restore_run_config",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "jobs": ["read_state"],
        "keyed": ["StateScan"],
        "spark": ["CheckpointBatch", "open_batch"],
        "orchestration.yaml.asset_component": ["CheckpointedAssetComponent"],
        "orchestration.define.assets": ["build_state_asset", "checkpoint_asset_specs"],
        "orchestration.define.checkpointed_asset": ["checkpointed_asset"],
        "orchestration.watch.checks": ["build_checkpoint_checks"],
        "orchestration.operate.commit": ["build_commit_job", "commit_run_config"],
        "orchestration.yaml.component": ["CheckpointLineageComponent"],
        "orchestration.watch.downstream": ["build_downstream_sensor"],
        "orchestration.executors": ["build_step_executor"],
        "orchestration.failures": ["DEFAULT_RETRY_POLICY"],
        "orchestration.define.io_manager": ["KeyedStateIOManager"],
        "orchestration.define.jobs": ["build_checkpoint_job"],
        "orchestration.keys": ["JobAssets"],
        "orchestration.operate.maintenance": [
            "build_cleanup_job",
            "build_cleanup_schedule",
            "build_maintenance",
        ],
        "orchestration.define.ops": ["cleanup_op", "compose_commit_op", "confirm_op", "persist_op"],
        "orchestration.partition_order": ["next_partition"],
        "orchestration.inject.resources": [
            "ChangelogStorageResource",
            "RecoverableWriterResource",
            "SparkSessionResource",
        ],
        "orchestration.operate.restoring": ["restore_run_config"],
        "orchestration.watch.sensors": ["build_abort_sensors", "build_checkpoint_sensor"],
    },
)
