"""Keyed state as changes in a log: rows to changes and back, and the state that a replay of changes gives.

Owns the bytes of a change, the schema that precedes changes, and their meaning. Does not own the log
(`changelog`) or where rows come from (`spark`). Needs only pyarrow and numpy; its rules need DuckDB.

What takes rows of other libraries is imported on first use: no task of Spark's needs it.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
