"""The conditions of a benchmark run: versions and machine, on one line."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

__all__ = ["conditions"]


def conditions(*packages: str) -> str:
    """Python, the packages by name, processor and load."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("dstl-dagster", *packages))
    return (
        f"Python {platform.python_version()}, {versions}; {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
