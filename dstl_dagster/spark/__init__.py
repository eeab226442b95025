"""The Spark side: keyed state and files of a checkpoint as DataFrame operations, and a local session.

The only layer that imports pyspark, and only when one of these names is used: `dstl_dagster.spark.local.java`
chooses a Java on a machine where Spark could not even start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dstl_dagster.spark.data_source import register
    from dstl_dagster.spark.files import lines, write_files
    from dstl_dagster.spark.foreach_batch import checkpointed_batches
    from dstl_dagster.spark.local.session import local_session, stop_session
    from dstl_dagster.spark.merge import merge_state
    from dstl_dagster.spark.partitioning import by_key_group
    from dstl_dagster.spark.state import read_state, write_state

__all__ = [
    "by_key_group",
    "checkpointed_batches",
    "lines",
    "local_session",
    "merge_state",
    "read_state",
    "register",
    "stop_session",
    "write_files",
    "write_state",
]

_HOMES = {
    "by_key_group": "dstl_dagster.spark.partitioning",
    "checkpointed_batches": "dstl_dagster.spark.foreach_batch",
    "lines": "dstl_dagster.spark.files",
    "local_session": "dstl_dagster.spark.local.session",
    "merge_state": "dstl_dagster.spark.merge",
    "read_state": "dstl_dagster.spark.state",
    "register": "dstl_dagster.spark.data_source",
    "stop_session": "dstl_dagster.spark.local.session",
    "write_files": "dstl_dagster.spark.files",
    "write_state": "dstl_dagster.spark.state",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
