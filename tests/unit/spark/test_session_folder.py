"""The folder of a local session goes with its process."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from dstl_dagster.spark import session


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_child_process_removes_its_folder(
    start_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that an orchestrator runs in a process of its own leaves no folder behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    context = multiprocessing.get_context(start_method)
    with ProcessPoolExecutor(1, mp_context=context) as child:
        folder = child.submit(session._new_scratch_folder).result(60)
    assert folder.parent == tmp_path
    assert folder.name.startswith("dstl-spark-")
    assert not folder.exists()
