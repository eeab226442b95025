"""The flights example under kill -9: one moment of each kind. All others: `flights_kills.py`."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


def _load_kills() -> ModuleType:
    # Beside the tests, not in a package: so that it also runs by its path.
    spec = importlib.util.spec_from_file_location(
        "flights_kills", Path(__file__).with_name("flights_kills.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


kills = _load_kills()


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    before = dict(os.environ)
    yield kills.make_baseline(tmp_path_factory.mktemp("flights"))
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.timeout(600)  # three days of Spark, and on a busy machine
@pytest.mark.kill
@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.parametrize(("target", "seed"), [("step", 4), ("jvm", 5)])
def test_a_kill_changes_nothing(target: str, seed: int, baseline: object, tmp_path: Path) -> None:
    """After SIGKILL and re-execution every report's bytes and every row of state are as without a kill."""
    killed = kills.kill_and_recover(baseline, tmp_path / "killed", random.Random(seed), target)
    assert not killed.differences, killed
    assert not killed.orphans, killed
