"""Durable incremental state and exactly-once files for PySpark jobs, run from Dagster.

The names below are loaded on first use: importing the package on a Spark executor imports neither
Dagster nor PySpark nor Google's libraries. They need Dagster, which `dstl-dagster[dagster]` brings, but for
`read_state` and its `StateScan`, and `open_batch` and its `CheckpointBatch`, which needs PySpark for Spark's
DataFrames alone.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__version__ = "0.1.0"

__getattr__, __dir__, _names = lazy_face(__name__)
# `import *` imports no PySpark.
__all__ = ["__version__", *(name for name in _names if name not in ("CheckpointBatch", "open_batch"))]
