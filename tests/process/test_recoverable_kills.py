"""The recoverable writer under kill -9, some points of a life. All: `recoverable_kills.py`, or `-m soak`."""

from __future__ import annotations

from pathlib import Path

import pytest
import recoverable_kills
from deaths import kills_of

pytestmark = pytest.mark.kill


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("gcs", 457),
        pytest.param("moved", 229, marks=pytest.mark.soak),
        ("folder", 1519),
        *(
            pytest.param(kind, 1, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])
            for kind in ("gcs", "moved", "folder")
        ),
    ],
)
def test_killed_anywhere(kind: str, step: int, tmp_path: Path) -> None:
    """Killed at a storage request and resumed by another process, the object is right byte for byte,
    and after one sweep nothing temporary is left.
    """
    with kills_of(recoverable_kills, kind, tmp_path) as lives:
        results = lives.spread(step)
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
        monkeypatch.setattr(recoverable_kills, "sweep", lambda *_: 0)
    else:
        monkeypatch.setattr(
            recoverable_kills.GSRecoverableWriter,
            "recover",
            lambda writer, state: writer.open(f"gs://final/{recoverable_kills.NAME}"),
        )
    with kills_of(recoverable_kills, "gcs", tmp_path) as lives:
        result = lives.kill(40, moment)
    assert result.killed
    assert str(result.fault).startswith(fault)
