"""The write path of `format("dstl")`: options, the plan of a write, its tasks, and its commit.

Modules are imported on first use: a process that reads needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face

if TYPE_CHECKING:
    from dstl_dagster.spark.sink.writers import SaveWriter, StreamWriter

__all__ = ["SaveWriter", "StreamWriter"]

__getattr__, __dir__ = lazy_face(__name__, {"writers": ["SaveWriter", "StreamWriter"]})
