"""Exactly-once objects: written as components, published in one step, recoverable in any process.

Owns the public names. Does not own storage (`storage`) or checkpoints (`checkpoint`).

Modules are imported on first use: a Spark task needs few of them. But a function with the name of its module
is imported at once: the module, imported later, would take its place.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face
from dstl_dagster.recoverable.sweep import sweep as sweep

__getattr__, __dir__, __all__ = lazy_face(__name__)
