"""The decisions about a job: numbered records, the race for the next slot, and what the records add up to.

Owns whether something may happen now (`decisions`), and what has been decided. Does not own manifests, state
or files: a record only names them, and they are stored elsewhere.

Modules are imported on first use: a Spark task needs few of them.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
