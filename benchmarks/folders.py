"""Fresh folders for repetitions, so that one repetition does not slow the next down.

What a repetition wrote is emptied, and removed only when the benchmark ends: on ext4 without a journal each
new file looks at every inode freed in the last minutes, and is up to ten times slower after many removals.
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
    """One folder of this run, below `BENCH_DIRECTORY` or where temporary files are."""
    root = tempfile.mkdtemp(dir=os.environ.get("BENCH_DIRECTORY"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return Path(root)


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """An empty folder; its files hold nothing once it is left."""
    folder = Path(tempfile.mkdtemp(dir=_root()))
    try:
        yield folder
    finally:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                os.truncate(path, 0)
