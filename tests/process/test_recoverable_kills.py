"""The recoverable writer under kill -9, some points of a life. All: `recoverable_kills.py`, or `-m soak`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _load_kills() -> ModuleType:
    # By name, as when it runs by its path: beside its own modules, which are no package.
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("recoverable_kills")
    finally:
        sys.path.remove(folder)


kills = _load_kills()
pytestmark = pytest.mark.kill


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("gcs", 113),
        ("moved", 229),
        ("folder", 760),
        *(pytest.param(kind, 1, marks=[pytest.mark.soak, pytest.mark.timeout(7200)]) for kind in kills.WAYS),
    ],
)
def test_killed_anywhere(kind: str, step: int, tmp_path: Path) -> None:
    """Killed at a storage request and gone on with by another process, the object is right byte for byte,
    and after one sweep nothing temporary is left.
    """
    with kills.kills_of(kind, tmp_path) as lives:
        points = lives.points()
        results = [
            # From the end, where the commit is; each way of dying elsewhere: a coarse step meets more so.
            lives.kill(index, moment)
            for offset, moment in enumerate(kills.WAYS[kind])
            for index in range(points - 1 - offset * step // 3, -1, -step)
        ]
    assert all(result.killed for result in results)
    assert [result for result in results if result.fault is not None] == []


@pytest.mark.parametrize(
    ("broken", "moment", "fault"),
    [("sweep", "after", "left behind"), ("position", "before", "the object is wrong")],
)
def test_a_broken_recovery_is_seen(
    broken: str, moment: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the sweep a dead writer's component is found; with a lost persisted state, wrong bytes are."""
    if broken == "sweep":
        monkeypatch.setattr(kills, "sweep", lambda *_: 0)
    else:
        monkeypatch.setattr(
            kills.GSRecoverableWriter,
            "recover",
            lambda writer, state: writer.open(f"gs://{kills.BUCKET}/{kills.NAME}"),
        )
    with kills.kills_of("gcs", tmp_path) as lives:
        result = lives.kill(40, moment)
    assert result.killed
    assert str(result.fault).startswith(fault)
