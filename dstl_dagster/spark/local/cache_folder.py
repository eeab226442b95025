"""Where a folder that local sessions share may lie: in the user's cache, or else among temporary files.

Owns the places. Does not own what lies there (`launcher`, `home`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["cache_folders"]


def cache_folders(environ: Mapping[str, str], kind: str, content: str) -> Iterator[Path]:
    """Folders of this user alone for this content, the best first. They may be missing, or not writable.

    They are named after the content: a folder of this name holds it, whichever release wrote it.
    """
    name = hashlib.sha256(content.encode("utf-8")).hexdigest()[:16]
    for place in _places(environ):
        yield place / "dstl-dagster" / kind / name


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    configured = environ.get("XDG_CACHE_HOME")
    if configured:
        yield Path(configured)
    elif environ.get("HOME"):
        yield Path(environ["HOME"]) / ".cache"
    own = Path(tempfile.gettempdir()) / f"dstl-dagster-{os.getuid()}"
    with contextlib.suppress(OSError):
        own.mkdir(mode=0o700, exist_ok=True)
        status = own.lstat()
        # Anybody may create names in a shared temporary folder: what we execute must be ours alone.
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and not own.is_symlink():
            yield own
