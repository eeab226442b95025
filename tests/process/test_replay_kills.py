"""The streaming example under kill -9: three kills. Twenty: `replay_kills.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import replay_kills as kills


@pytest.mark.timeout(600)  # each kill is a start of Spark, and on a busy machine
@pytest.mark.kill
@pytest.mark.spark
@pytest.mark.soak
def test_three_kills_change_nothing(tmp_path: Path) -> None:
    """Kill the driver inside a commit, a worker, and the driver: the result equals the raw data's."""
    targets = ["commit", "worker", "driver"]
    replay = kills.replay_with_kills(tmp_path / "r", targets, rows_per_batch=67_500, seed=3)
    assert replay.kills == dict.fromkeys(targets, 1)
    assert kills.differences(replay) == []
