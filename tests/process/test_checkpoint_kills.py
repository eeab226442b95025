"""The control plane under kill -9, some points of a life. All: `checkpoint_kills.py`, or `-m soak`."""

from __future__ import annotations

from pathlib import Path

import checkpoint_kills
import pytest
from deaths import kills_of

from dstl_dagster.checkpoint.steps import clean_up

pytestmark = pytest.mark.kill


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("gcs", 1401),
        pytest.param("moved", 373, marks=pytest.mark.soak),
        ("folder", 2101),
        *(
            pytest.param(kind, 1, marks=[pytest.mark.soak, pytest.mark.timeout(14_400)])
            for kind in ("gcs", "moved", "folder")
        ),
    ],
)
def test_killed_anywhere(kind: str, step: int, tmp_path: Path) -> None:
    """Killed during persist, confirm, compose-commit, clean-up, fold or restore, and resumed by another
    process: rows and files are those of the batches on the chain, and nothing else is left.
    """
    with kills_of(checkpoint_kills, kind, tmp_path) as lives:
        results = lives.spread(step)
    assert all(result.killed for result in results)
    assert [result for result in results if result.fault is not None] == []


@pytest.mark.parametrize(
    ("broken", "fault"),
    [("retraction", "the files are"), ("collection", "left behind"), ("fold", "the state is")],
)
def test_a_broken_protocol_is_seen(
    broken: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resuming process that does not retract files, does not delete, or folds away too much is caught."""
    if broken == "retraction":
        monkeypatch.setattr("dstl_dagster.checkpoint.steps.unfinished._retract", lambda *_: None)
    elif broken == "collection":
        collect = clean_up.collect_garbage
        monkeypatch.setattr(clean_up, "collect_garbage", lambda job, **_: collect(job, dry_run=True))
    else:
        monkeypatch.setattr(checkpoint_kills, "totals", lambda batch: {0: 1})
    with kills_of(checkpoint_kills, "folder", tmp_path) as lives:
        result = lives.kill(3, "before")
    assert result.killed
    assert str(result.fault).startswith(fault)
