"""The process from which Spark forks its Python workers, with what a worker needs already imported.

Owns what that is: PySpark's own worker, Arrow, and our tasks. Does not own the daemon (PySpark's), nor which
sessions use it (`session`).

PySpark's daemon imports none of it before it forks, so each worker would again: a second of CPU and more,
before the first row of a session's first tasks. None of these imports starts a thread.
"""

import pyspark.worker  # noqa: F401 - imported so that workers need not, as the next three
from pyspark.daemon import manager

import dstl_dagster.spark.data_source
import dstl_dagster.spark.merge_tasks
import dstl_dagster.spark.state_tasks  # noqa: F401

if __name__ == "__main__":
    manager()
