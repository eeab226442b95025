"""Large objects read in blocks of 8 MiB, each with its checksum: one reader wants ranges, another all bytes.

Owns the blocks, and the checksum of the whole as the sum of theirs. Does not own what is remembered: that is
the store's beneath (`OnceRead`), from which a block may have to be fetched again once others took its place.
"""

from __future__ import annotations

from dstl_dagster.format.crc32c import combine_all, crc32c
from dstl_dagster.storage.base import ObjectStore
from dstl_dagster.storage.parts import PART_BYTES
from dstl_dagster.storage.wrapper import WrapperStore

__all__ = ["BlockReads"]

_Object = tuple[str, int]


class BlockReads(WrapperStore):
    """Reads objects that were announced by `expect` in blocks, and all others as they are. Any thread.

    Args:
        inner: remembers what was read of it, at least a few blocks.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._sizes: dict[_Object, int] = {}
        self._sums: dict[_Object, dict[int, tuple[int, int]]] = {}

    def expect(self, name: str, generation: int, size_bytes: int) -> None:
        """From now on this generation is read in blocks; it should have this size."""
        self._sums.setdefault((name, generation), {})
        self._sizes[name, generation] = size_bytes

    def get_range(
        self, name: str, start: int, length: int, *, generation: int | None = None
    ) -> bytes | memoryview:
        size = None if generation is None else self._sizes.get((name, generation))
        if size is None or generation is None or not length > 0 or not 0 <= start < size:
            return super().get_range(name, start, length, generation=generation)
        end = min(start + length, size)
        parts = []
        for block in range(start // PART_BYTES, (end - 1) // PART_BYTES + 1):
            first = block * PART_BYTES
            octets = self._block(name, generation, block)
            parts.append(octets[max(start - first, 0) : end - first])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def last_block(self, name: str, generation: int) -> None:
        """Read the block that a reader begins with. Raises: as `ObjectStore.get_range`."""
        self._block(name, generation, (self._sizes[name, generation] - 1) // PART_BYTES)

    def sum(self, name: str, generation: int) -> tuple[int, int]:
        """The CRC-32C and the size of all bytes; reads the blocks that nobody has read.

        Raises: as `ObjectStore.get_range`.
        """
        sums = self._sums[name, generation]
        blocks = range(-(-self._sizes[name, generation] // PART_BYTES))
        for block in blocks:
            if block not in sums:
                self._block(name, generation, block)
        return combine_all(sums[block] for block in blocks)

    def _block(self, name: str, generation: int, block: int) -> memoryview:
        start = block * PART_BYTES
        length = min(PART_BYTES, self._sizes[name, generation] - start)
        octets = memoryview(super().get_range(name, start, length, generation=generation))
        sums = self._sums[name, generation]
        if block not in sums:
            sums[block] = (crc32c(octets), len(octets))
        return octets
