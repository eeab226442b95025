"""The conditions of a benchmark run: date, commit, versions and machine, on one line."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import date
from importlib.metadata import version
from pathlib import Path

__all__ = ["conditions"]


def conditions(*packages: str) -> str:
    """Date and commit, Python, the packages by name, processor and load."""
    describe = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    versions = ", ".join(f"{name} {version(name)}" for name in ("dstl-dagster", *packages))
    return (
        f"{date.today()}, commit {found.stdout.strip() or 'unknown'}; "
        f"Python {platform.python_version()}, {versions}; {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
