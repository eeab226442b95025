"""The streaming example under kill -9: three kills. Twenty: `replay_kills.py`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _load_kills() -> ModuleType:
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("replay_kills")
    finally:
        sys.path.remove(folder)


kills = _load_kills()


@pytest.mark.timeout(600)  # each kill is a start of Spark, and on a busy machine
@pytest.mark.kill
@pytest.mark.spark
@pytest.mark.soak
def test_three_kills_change_nothing(tmp_path: Path) -> None:
    """All flights of the year; inside the commit, a worker, the driver: all is what the raw data says."""
    targets = ["commit", "worker", "driver"]
    replay = kills.replay_with_kills(tmp_path / "r", targets, rows_per_batch=67_500, seed=3)
    assert replay.kills == dict.fromkeys(targets, 1)
    assert kills.differences(replay) == []
