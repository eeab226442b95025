"""The log of one writer: append, persist, confirm, and read back. Owns the public names of the layer.

Does not own when bytes leave (`upload`), how long a file lives (`registry`), or what a change means.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
