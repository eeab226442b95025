from dstl_dagster.spark.batch import CheckpointBatch as CheckpointBatch, open_batch as open_batch
from dstl_dagster.spark.data_source import register as register
from dstl_dagster.spark.dataframes.files import lines as lines, write_files as write_files
from dstl_dagster.spark.dataframes.merge import merge_state as merge_state
from dstl_dagster.spark.dataframes.partitioning import by_key_group as by_key_group
from dstl_dagster.spark.dataframes.state import read_state as read_state, write_state as write_state
from dstl_dagster.spark.local.session import (
    local_session as local_session,
    running_session as running_session,
    stop_session as stop_session,
)
from dstl_dagster.spark.resumed_batch import ResumedBatch as ResumedBatch
from dstl_dagster.spark.streaming.foreach_batch import checkpointed_batches as checkpointed_batches
