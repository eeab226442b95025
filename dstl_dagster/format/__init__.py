"""Values and bytes: positions, key groups, changes, their codec, handles, object names. Pure.

Owns the public names of the layer, each loaded on first use (the codec needs Arrow, a handle does not).
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
