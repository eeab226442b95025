"""Large reads of local files into memory of Arrow's pool.

Owns this one read. The pool gives pages again that were used before; fresh ones, as a large `bytes` always
has them, cost several times the read itself.
"""

from __future__ import annotations

import os

__all__ = ["POOLED_BYTES", "read_pooled"]

POOLED_BYTES = 1 << 20
"""From so many bytes on it pays."""


def read_pooled(descriptor: int, start: int, length: int) -> memoryview:
    """Up to `length` bytes of an open file from `start`, shorter where it ends. Raises: OSError."""
    import pyarrow as pa  # a store of small objects needs none of it

    left = max(0, os.fstat(descriptor).st_size - start)
    pooled = memoryview(pa.allocate_buffer(min(length, left))).cast("B")  # its own are signed
    done = 0
    while done < len(pooled):
        count = os.preadv(descriptor, [pooled[done:]], start + done)
        if not count:
            break
        done += count
    return pooled[:done].toreadonly()
