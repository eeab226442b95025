"""Fresh folders for repetitions, so that one repetition does not slow down the next.

A repetition's files are truncated, and removed only when the benchmark ends: on ext4 without a journal,
creating a file scans every inode freed in the last minutes, and is up to ten times slower after many
removals.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["fresh_folder"]


@functools.cache
def _root() -> Path:
    """One folder for this run, below `BENCH_DIRECTORY` or the system's temporary directory."""
    root = tempfile.mkdtemp(dir=os.environ.get("BENCH_DIRECTORY") or None)
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return Path(root)


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """An empty folder; its files are truncated when the context ends."""
    folder = Path(tempfile.mkdtemp(dir=_root()))
    try:
        yield folder
    finally:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                os.truncate(path, 0)
