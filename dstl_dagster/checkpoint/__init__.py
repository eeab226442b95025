"""The atomic checkpoint: its seven steps, what a person may decide about it, and its upkeep.

Owns the public names of these. Does not own the decisions (`timeline`), or reports and state (`keyed`); the
names that callers of the steps need from there are re-exported here.

Modules are imported on first use: a Spark task needs only those of documents.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
