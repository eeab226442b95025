"""The write path of `format("dstl")`: options, the plan of a write, its tasks, and its commit.

Modules are imported on first use: a process that reads needs none of them.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
