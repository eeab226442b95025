"""Whether the locks of a folder hold between machines, by Linux's list of mounts.

Owns reading that list. Does not own the locks (`local.locks`), nor what follows (`preflight`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

__all__ = ["lock_option", "mounts_of_this_process"]

_LOCAL_LOCKS: Final = ("nolock", "local_lock=all", "local_lock=flock")
_MOUNTS: Final = Path("/proc/self/mountinfo")


def mounts_of_this_process() -> str:
    """The list of mounts, empty where there is none."""
    try:
        return _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def lock_option(folder: Path, mounts: str) -> str | None:
    """The mount option by which locks below an absolute folder are known to this machine alone.

    None where there is no such option: NFS with locks, any other file system, or an unknown one.
    """
    options: list[str] = []
    longest = -1
    for line in mounts.splitlines():
        place, separator, system = line.partition(" - ")
        fields, kind = place.split(" "), system.split(" ")
        if not separator or len(fields) < 6 or len(kind) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]))
        # Of several mounts at one point the last one is seen.
        if folder.is_relative_to(point) and len(point.parts) >= longest:
            longest = len(point.parts)
            options = kind[2].split(",") if kind[0].startswith("nfs") else []
    return next((option for option in _LOCAL_LOCKS if option in options), None)
