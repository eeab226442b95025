"""Exactly-once objects: written as components, published in one step, recoverable in any process.

Owns the public names. Does not own storage (`storage`) or checkpoints (`checkpoint`).

Modules are imported on first use: a Spark task needs few of them.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
