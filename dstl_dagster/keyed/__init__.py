"""Keyed state at a checkpoint: the reports of tasks, the manifest that names it, and its rows.

Owns the documents of a checkpoint (reports, manifest), and reading and writing state through them. Does not
own whether a checkpoint counts (`timeline`), or the steps that create one (`checkpoint`).

Modules are imported on first use: those that read or write rows need Arrow, a sensor needs documents alone.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
