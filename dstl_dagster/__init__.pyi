from dstl_dagster.jobs import read_state as read_state
from dstl_dagster.keyed import StateScan as StateScan
from dstl_dagster.orchestration.define.assets import (
    build_state_asset as build_state_asset,
    checkpoint_asset_specs as checkpoint_asset_specs,
)
from dstl_dagster.orchestration.define.checkpointed_asset import checkpointed_asset as checkpointed_asset
from dstl_dagster.orchestration.define.io_manager import KeyedStateIOManager as KeyedStateIOManager
from dstl_dagster.orchestration.define.ops import build_checkpoint_job as build_checkpoint_job
from dstl_dagster.orchestration.define.ops import (
    cleanup_op as cleanup_op,
    compose_commit_op as compose_commit_op,
    confirm_op as confirm_op,
    persist_op as persist_op,
)
from dstl_dagster.orchestration.executors import build_step_executor as build_step_executor
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY as DEFAULT_RETRY_POLICY
from dstl_dagster.orchestration.inject.resources import (
    ChangelogStorageResource as ChangelogStorageResource,
    RecoverableWriterResource as RecoverableWriterResource,
    SparkSessionResource as SparkSessionResource,
)
from dstl_dagster.orchestration.keys import JobAssets as JobAssets
from dstl_dagster.orchestration.operate.maintenance import (
    build_cleanup_job as build_cleanup_job,
    build_cleanup_schedule as build_cleanup_schedule,
    build_maintenance as build_maintenance,
)
from dstl_dagster.orchestration.operate.restoring import restore_run_config as restore_run_config
from dstl_dagster.orchestration.partition_order import next_partition as next_partition
from dstl_dagster.orchestration.watch.checks import build_checkpoint_checks as build_checkpoint_checks
from dstl_dagster.orchestration.watch.downstream import build_downstream_sensor as build_downstream_sensor
from dstl_dagster.orchestration.watch.sensors import (
    build_abort_sensors as build_abort_sensors,
    build_checkpoint_sensor as build_checkpoint_sensor,
)
from dstl_dagster.orchestration.yaml.asset_component import (
    CheckpointedAssetComponent as CheckpointedAssetComponent,
)
from dstl_dagster.orchestration.yaml.component import CheckpointLineageComponent as CheckpointLineageComponent
from dstl_dagster.spark import CheckpointBatch as CheckpointBatch, open_batch as open_batch

__version__: str
