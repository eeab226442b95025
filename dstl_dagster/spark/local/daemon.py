"""The process from which Spark forks its Python workers, with what a worker needs already imported.

Owns what that is: PySpark's own worker, Arrow with pandas where it is installed, and our tasks. Does not own
the daemon (PySpark's), nor which sessions use it (`session`).

PySpark's daemon imports none of it before it forks, so each worker would again: a second of CPU and more,
before the first row of a session's first tasks. None of these imports starts a thread that a worker needs.

PySpark's workers collect garbage after every task. What was imported before the fork is frozen: it is never
garbage, and looking through it would cost each task more than most tasks of a small batch do.
"""

import gc

import numpy
import pyarrow
from pyspark.daemon import manager

import dstl_dagster.spark.data_source
import dstl_dagster.spark.dataframes.file_tasks
import dstl_dagster.spark.dataframes.merge_tasks
import dstl_dagster.spark.dataframes.run_merges
import dstl_dagster.spark.dataframes.state_tasks  # noqa: F401 - imported so that workers need not, as are these
from dstl_dagster.storage import LocalObjectStore  # noqa: F401 - a local session's store, as a rule

if __name__ == "__main__":
    pyarrow.array(numpy.zeros(0))  # Arrow imports pandas, if there is one, with the first array passed to it
    gc.collect()
    gc.freeze()
    manager()
