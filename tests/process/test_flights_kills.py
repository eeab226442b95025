"""The flights example under kill -9: two moments, in the long form. All others: `flights_kills.py`.

The short form is the demo, which is killed while it writes (`tests/gcs/test_demo.py`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import flights_kills as kills
import pytest


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    before = dict(os.environ)
    yield kills.make_baseline(tmp_path_factory.mktemp("flights"))
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.timeout(600)  # three days of Spark, and on a busy machine
@pytest.mark.kill
@pytest.mark.soak
@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.parametrize(("target", "seed"), [("step", 4), ("jvm", 5)])
def test_a_kill_changes_nothing(
    target: str, seed: int, baseline: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """After SIGKILL and re-execution every report's bytes and every row of state are as without a kill."""
    # A short name: sockets of the step processes lie below it, whose paths the system limits.
    killed = kills.kill_and_recover(baseline, tmp_path_factory.mktemp("k"), random.Random(seed), target)
    assert not killed.differences, killed
    assert not killed.orphans, killed
