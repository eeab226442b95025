"""The page about Spark is a program that runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.mark.usefixtures("spark")
def test_the_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks, one after another, run and their assertions hold."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = compile("\n".join(blocks), str(PAGE), "exec")
    exec(program, {"__name__": "page"})
