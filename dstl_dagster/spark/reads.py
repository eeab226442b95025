"""Where the requests of tasks that read are counted, if they are.

Owns that choice. Does not own the count (`accumulated`), which a client of Spark Connect cannot even import:
its tasks run in a Spark that it does not see, and count for nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from dstl_dagster.spark.accumulated import SparkReads

__all__ = ["reads_of"]


def reads_of(spark: SparkSession) -> SparkReads | None:
    """The sum of the session's context; `None` where none is at hand, as in Spark Connect."""
    context = getattr(spark, "sparkContext", None)
    if context is None:
        return None
    from dstl_dagster.spark.accumulated import reads_in  # as told above

    return reads_in(context)
