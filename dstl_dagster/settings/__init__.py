"""Frozen values that configure components. Owns the public names of the options, each loaded on first use.

Does not own what an option does, nor the components themselves.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
