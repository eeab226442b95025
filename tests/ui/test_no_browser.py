"""A machine without a browser: CI fails, and a newcomer is told what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGE_TESTS = Path(__file__).with_name("test_dagster_page.py")


@pytest.mark.parametrize(("ci", "word", "code"), [("", "1 skipped", 0), ("true", "1 error", 1)])
def test_a_missing_browser_is_said(ci: str, word: str, code: int, tmp_path: Path) -> None:
    """Skipped with the command that helps; in CI that is a failure, since nothing was tested."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-rsE",
            "-p",
            "no:cacheprovider",
            f"{PAGE_TESTS}::test_the_asset_graph",
        ],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PATH": str(tmp_path), "CI": ci},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert word in done.stdout
    assert "apt-get install chromium" in done.stdout
