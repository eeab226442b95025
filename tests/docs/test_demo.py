"""README's first command, after its installation, on a local folder: for two days instead of seven.

The long form; in CI the same command runs on a bucket (`tests/gcs/test_demo.py`).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.readme import demo_command

pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.dagster,
    pytest.mark.kill,
    pytest.mark.timeout(600),
]


def test_the_demo_as_the_readme_says_it(tmp_path: Path) -> None:
    """A day is killed and run again; state and reports are those of the raw CSV."""
    command = [*demo_command(), "--days", "2"]
    environment = {name: value for name, value in os.environ.items() if name != "STORAGE_EMULATOR_HOST"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9 while it writes" in done.stdout
    assert done.stdout.count("equal") == 4
    assert (tmp_path / "dstl-demo").is_dir()
