from dstl_dagster.checkpoint.batch import Batch as Batch
from dstl_dagster.checkpoint.between_batches import (
    change_columns as change_columns,
    change_names as change_names,
    changed_schema as changed_schema,
    materialize as materialize,
)
from dstl_dagster.checkpoint.claims import Claim as Claim
from dstl_dagster.checkpoint.coordinator import CheckpointCoordinator as CheckpointCoordinator
from dstl_dagster.checkpoint.inspect.audit import Audit as Audit
from dstl_dagster.checkpoint.inspect.verify import Verification as Verification
from dstl_dagster.checkpoint.job import Checkpoint as Checkpoint, ParentCheck as ParentCheck
from dstl_dagster.checkpoint.reader import CheckpointReader as CheckpointReader
from dstl_dagster.checkpoint.restore import RestorePlan as RestorePlan
from dstl_dagster.checkpoint.state_to_write import StateToWrite as StateToWrite
from dstl_dagster.checkpoint.steps.clean_up import CleanUp as CleanUp
from dstl_dagster.checkpoint.steps.components import (
    attempts_of_original as attempts_of_original,
    buckets_of_components as buckets_of_components,
    listed_components as listed_components,
)
from dstl_dagster.checkpoint.steps.compose_commit import SUCCESS_FILE as SUCCESS_FILE
from dstl_dagster.checkpoint.steps.trigger import Opening as Opening
from dstl_dagster.keyed import (
    FileReport as FileReport,
    Manifest as Manifest,
    OperatorReport as OperatorReport,
)
from dstl_dagster.timeline import Attempt as Attempt, Timeline as Timeline
