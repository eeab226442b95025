"""A full disk and a read-only one: a clear error, and nothing complete is lost."""

from __future__ import annotations

import json
import os
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
    """The command that gives a process file systems of its own, without rights.

    A machine that cannot is a skip, which says so, and under CI a failure: nothing would have been tested.
    """
    unshare = shutil.which("unshare")
    if unshare is not None:
        tried = subprocess.run([unshare, "-rm", "true"], check=False, capture_output=True, text=True)
        if not tried.returncode:
            return [unshare, "-rm"]
        refusal = tried.stderr.strip()
    else:
        refusal = "unshare is not installed"
    message = f"this machine gives a process no file systems of its own: {refusal}; allow user namespaces"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_machine_that_cannot_is_not_passed_over(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without `unshare` the test below is skipped with the reason, and fails in CI."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(outcome, match="unshare is not installed"):
        namespace()


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
