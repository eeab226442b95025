"""The commands that README.md prints, for tests that run them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def demo_command() -> list[str]:
    """What README runs after its installation, by the program of this environment."""
    printed = subprocess.check_output([_ROOT / ".ci" / "readme-command", "demo"], text=True)
    program, *arguments = shlex.split(printed.rpartition("&&")[2])
    assert program == ".venv/bin/dstl"
    return [str(Path(sys.executable).with_name("dstl")), *arguments]
