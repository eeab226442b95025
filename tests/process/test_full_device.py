"""A real file system over a device that runs full: what Linux tells once is not forgotten."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("full_device.py")


def command(folder: Path, *more: str) -> list[str]:
    """The worker, in a namespace of its own: its mounts go with it, however it ends."""
    return ["unshare", "-m", sys.executable, str(WORKER), str(folder), *more]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the worker may make its file system. A machine that cannot is a skip, and under CI a failure."""
    probe = tmp_path / "probe"
    probe.mkdir()
    if shutil.which("mkfs.ext2") is None or shutil.which("unshare") is None:
        refusal = "mkfs.ext2 or unshare is not installed"
    else:
        tried = subprocess.run(command(probe, "--probe"), check=False, capture_output=True, text=True)
        refusal = tried.stderr.strip()[-300:] if tried.returncode else ""
    if refusal:
        message = f"no ext2 on a loop device can be made here (it takes root): {refusal}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    work = tmp_path / "work"
    work.mkdir()
    return work


def test_a_failed_sync_is_never_success_later(folder: Path) -> None:
    """The bytes never reached the device: no later close or persist succeeds, and nothing of them is seen."""
    told = json.loads(subprocess.run(command(folder), check=True, capture_output=True, timeout=120).stdout)
    lost = "NotFoundError upload_lost"
    assert told["close"] == ["UnavailableError unavailable", lost, lost]
    assert told["persist"] == ["UnavailableError unavailable", lost, lost]
    assert told["listed"] == ["before"]
    assert told["after a remount"] == {"before": "whole"}
