"""Durable incremental state and exactly-once files for PySpark jobs, run from Dagster.

The names below are loaded on first use: importing the package on a Spark executor imports neither
Dagster nor PySpark nor Google's libraries. They need Dagster, which `dstl-dagster[dagster]` brings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
        build_restore_job,
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
]

# The module of `orchestration` that each name is loaded from.
_HOMES = {
    "DEFAULT_RETRY_POLICY": "failures",
    "ChangelogStorageResource": "resources",
    "CheckpointLineageComponent": "component",
    "JobAssets": "keys",
    "RecoverableWriterResource": "resources",
    "SparkSessionResource": "resources",
    "build_abort_sensors": "sensors",
    "build_checkpoint_checks": "checks",
    "build_checkpoint_job": "jobs",
    "build_checkpoint_sensor": "sensors",
    "build_cleanup_job": "maintenance",
    "build_cleanup_schedule": "maintenance",
    "build_commit_job": "commit",
    "build_materialize_job": "maintenance",
    "build_materialize_schedule": "maintenance",
    "build_restore_job": "maintenance",
    "build_state_asset": "assets",
    "build_verify_job": "maintenance",
    "build_verify_schedule": "maintenance",
    "checkpoint_asset_specs": "assets",
    "cleanup_op": "ops",
    "commit_run_config": "commit",
    "compose_commit_op": "ops",
    "confirm_op": "ops",
    "next_partition": "partitions",
    "persist_op": "ops",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"dstl_dagster.orchestration.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
