"""A job as a whole: which jobs a store has, reading, writing, correcting, dropping one.

Owns work on top of a job's checkpoints. Does not own a checkpoint (`checkpoint`) or a decision (`timeline`).
What writes rows is imported on first use: it needs Arrow.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
