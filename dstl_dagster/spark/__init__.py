"""The Spark side: keyed state and files of a checkpoint as DataFrame operations, and a local session.

The only layer that imports pyspark, and only once one of these names is used: `dstl_dagster.spark.local.java`
must run on a machine that has no Java yet.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
