"""The benchmarks of a checkpoint run: each of their parts, at sizes that take no time."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The benchmark's modules, which are no package, on states of hundreds of rows."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("BENCH_DIRECTORY", str(tmp_path))
    module = importlib.import_module("checkpoint")
    monkeypatch.setattr(module, "CHANGES", 10)
    monkeypatch.setattr(importlib.import_module("folders"), "_root", lambda: tmp_path)
    gc.freeze()  # else each measurement begins with a look through all that a test process has imported
    yield module
    gc.unfreeze()


def test_growth_is_measured_by_requests_and_bytes(checkpoint: ModuleType) -> None:
    """They do not depend on the size of the state."""
    found = checkpoint.measure_growth([100_000, 100_100], 2)
    assert [each["rows"] for each in found] == [100_000, 100_100]
    for each in found:
        assert each["same_bytes"]
        assert each["same_requests"]
        assert each["requests"]["put"]


def test_snapshots_are_measured(checkpoint: ModuleType) -> None:
    """Folds are among the checkpoints."""
    found = checkpoint.measure_snapshot(100_000, 12, 1)
    assert found["checkpoints"] == 12
    assert found["median_seconds"] > 0


def test_history_is_measured(checkpoint: ModuleType) -> None:
    """For each length."""
    assert [each["checkpoints"] for each in checkpoint.measure_history([5, 10])] == [5, 10]


def test_levels_are_measured(checkpoint: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are read back after the checkpoints."""
    levels = importlib.import_module("levels")
    monkeypatch.setattr(levels, "LOOK_UPS", (1, 10, 100))
    found = levels.measure("spread", 10_000, 3)
    assert found["written_kb"] >= found["change_kb"] > 0
    assert levels.row_of(found).count("|") == len(levels.COLUMNS) + 1
