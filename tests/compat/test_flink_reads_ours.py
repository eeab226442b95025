"""Flink's own reader reads what our writer wrote; its jar is fetched once, into the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

READ_OURS = Path(__file__).parents[2] / "benchmarks" / "flink" / "read_ours.py"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_each_set_is_equal():
    """Plain and Snappy; several writers in a file; empty and large changes."""
    if shutil.which("javac") is None and not os.environ.get("CI"):
        pytest.skip("there is no javac: install a JDK 17")
    read = subprocess.run([sys.executable, READ_OURS], capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stdout + read.stderr
    assert read.stdout.count(": equal") == 4
