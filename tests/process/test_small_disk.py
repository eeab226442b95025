"""A full disk and a read-only one: a clear error, and nothing complete is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("small_disk.py")
FIRST = {"latest": 1, "rows": {"0": 1, "1": 1}, "whole": True, "files": ["1"], "listed": [1]}
SECOND = {
    "latest": 2,
    "rows": {"0": 2, "1": 1, "2": 2},
    "whole": True,
    "files": ["1", "2"],
    "listed": [1, 2],
}


def namespace() -> list[str]:
    """The command that gives a process file systems of its own, without rights."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], check=False).returncode:
        pytest.skip("this machine gives a process no file systems of its own (`unshare -rm` fails)")
    return [unshare, "-rm"]


def test_a_full_and_a_read_only_disk_lose_nothing(tmp_path: Path) -> None:
    """Each refusal says which file and why; what was complete can be read the whole time; with room again the
    same batch is made, and nothing of the failed one is left.
    """
    command = [*namespace(), sys.executable, str(WORKER), str(tmp_path)]
    got = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    for refusal, reason in {"too large": "No space", "full": "No space", "read-only": "Read-only"}.items():
        assert got[refusal].startswith("UnavailableError")
        assert reason in got[refusal]
        assert str(tmp_path) in got[refusal]
    assert got["after it"] == got["while full"] == FIRST
    assert got["with room"] == got["while read-only"] == SECOND
    assert got["garbage"] == 0
