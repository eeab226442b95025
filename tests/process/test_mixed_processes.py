"""Processes that fork, freeze and die on one job. Longer: `mixed_processes.py`, or `-m soak`."""

from __future__ import annotations

import os
from pathlib import Path

import mixed_processes as mixed
import pytest

pytestmark = pytest.mark.kill

LONG = [pytest.mark.soak, pytest.mark.timeout(7_200)]


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 500), marks=LONG)])
def test_each_batch_once_whoever_dies(seeds: range, tmp_path: Path) -> None:
    """See `mixed_processes`."""
    with mixed.forges() as started:
        found = {seed: mixed.run(seed, tmp_path / str(seed), started) for seed in seeds}
    assert {seed: faults for seed, faults in found.items() if faults} == {}


def test_another_outcome_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and files that are not those of the batches."""
    monkeypatch.setattr(mixed, "PROCESSES", 1)
    with mixed.forges() as started:
        assert mixed.run(0, tmp_path / "right", started) == []
        monkeypatch.setattr(mixed, "totals", lambda batch: {batch: 7})
        monkeypatch.setattr(mixed, "content", lambda batch: b"other")
        found = mixed.run(0, tmp_path / "wrong", started)
    assert [each.split()[0] for each in found] == ["rows", "files"]


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_two_versions_side_by_side(tmp_path: Path) -> None:
    """Half of the processes run the package of the commit in `DSTL_BESIDE`, or of the oldest."""
    package = mixed.built(os.environ.get("DSTL_BESIDE") or mixed.oldest(), tmp_path)
    with mixed.forges(package) as started:
        found = {seed: mixed.run(seed, tmp_path / str(seed), started) for seed in range(100)}
    assert {seed: faults for seed, faults in found.items() if faults} == {}
