"""The one door to object storage. Owns the public names; those with a cost are loaded on first use.

Does not own any behaviour: `base` is the contract, and each kind of store has its module.
"""

from __future__ import annotations

from dstl_dagster._lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(__name__)
