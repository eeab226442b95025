"""How much disk local copies of changelog files may take where nobody confirms a checkpoint on their machine.

Owns the limit. Does not own writing copies (`upload`), reading them (`reader`), or a writer's own copies,
which it deletes as checkpoints complete (`registry`).

A Spark task ends before its checkpoint completes, so its copies stay. They are a cache: without one, the
durable file is read.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["limit_local_copies"]


def limit_local_copies(directory: Path | None, max_bytes: int) -> None:
    """Delete the oldest copies until the rest takes at most `max_bytes`. None, or no such folder: nothing.

    Safe beside other processes that write, read or limit the same copies. One that cannot be deleted stays.
    """
    if directory is None or not directory.is_dir():
        return
    found = []
    for each in directory.iterdir():
        with suppress(OSError):
            stat = each.stat()
            found.append((stat.st_mtime_ns, stat.st_size, each))
    excess_bytes = sum(size for _, size, _ in found) - max_bytes
    for _, size, copy in sorted(found):
        if excess_bytes <= 0:
            return
        with suppress(OSError):
            copy.unlink(missing_ok=True)
            excess_bytes -= size
