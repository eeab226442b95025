"""The Spark side: keyed state and files of a checkpoint as DataFrame operations, and a local session.

The only layer that imports pyspark, and only once one of these names is used: `dstl_dagster.spark.local.java`
must run on a machine that has no Java yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face

if TYPE_CHECKING:
    from dstl_dagster.spark.batch import CheckpointBatch, open_batch
    from dstl_dagster.spark.data_source import register
    from dstl_dagster.spark.dataframes.files import lines, write_files
    from dstl_dagster.spark.dataframes.merge import merge_state
    from dstl_dagster.spark.dataframes.partitioning import by_key_group
    from dstl_dagster.spark.dataframes.state import read_state, write_state
    from dstl_dagster.spark.local.session import local_session, running_session, stop_session
    from dstl_dagster.spark.pipes import ResumedBatch
    from dstl_dagster.spark.streaming.foreach_batch import checkpointed_batches

__all__ = [
    "CheckpointBatch",
    "ResumedBatch",
    "by_key_group",
    "checkpointed_batches",
    "lines",
    "local_session",
    "merge_state",
    "open_batch",
    "read_state",
    "register",
    "running_session",
    "stop_session",
    "write_files",
    "write_state",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "batch": ["CheckpointBatch", "open_batch"],
        "data_source": ["register"],
        "dataframes.files": ["lines", "write_files"],
        "dataframes.merge": ["merge_state"],
        "dataframes.partitioning": ["by_key_group"],
        "dataframes.state": ["read_state", "write_state"],
        "local.session": ["local_session", "running_session", "stop_session"],
        "pipes": ["ResumedBatch"],
        "streaming.foreach_batch": ["checkpointed_batches"],
    },
)
