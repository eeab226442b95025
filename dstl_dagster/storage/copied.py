"""Objects of a store that was copied: under other generations, and the same by length and checksum.

Owns that proof. Does not own what a caller then does with the generation.

An object is what its length and checksum say. The generation that a document names guards against an
overwrite while one works; in a copy of a bucket or folder, no object has it.
"""

from __future__ import annotations

from dstl_dagster.storage.base import ObjectStore

__all__ = ["generation_of_copy"]


def generation_of_copy(
    store: ObjectStore, name: str, size_bytes: int | None, crc32c: int | None
) -> int | None:
    """The live generation, if it has exactly these bytes; `None` if not, or if one of both is unknown.

    Ask only where the generation that was expected is gone. One request.
    """
    if size_bytes is None or crc32c is None:
        return None
    stat = store.stat(name)
    return stat.generation if stat is not None and (stat.size, stat.crc32c) == (size_bytes, crc32c) else None
