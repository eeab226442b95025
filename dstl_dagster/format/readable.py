"""Numbers as people read them. Pure."""

from __future__ import annotations

__all__ = ["readable_bytes"]

_KIB = 1024


def readable_bytes(count: int) -> str:
    """`1.5 MiB`: three significant digits, powers of two."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < _KIB:
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= _KIB
    return f"{size:.4g} TiB"
