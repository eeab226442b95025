"""When bytes leave, together with what, and how often it is tried. Owns the public names of the layer.

Does not own the writers of the bytes (`changelog`) or the users of a file (`registry`).
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
