"""The decisions about a job: numbered records, the race for the next slot, and the view that they add up to.

Owns whether something may happen now (`decisions`), and the decisions made. Does not own manifests, state
or files: a record only names them.

Modules are imported on first use: a Spark task needs few of them.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
