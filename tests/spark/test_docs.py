"""The pages about Spark are a program that runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import chapters

pytestmark = pytest.mark.spark

PAGE = "\n".join(page.read_text("utf-8") for page in chapters("spark"))


@pytest.mark.usefixtures("spark")
def test_the_pages_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks, one after another, run and their assertions hold."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = compile("\n".join(blocks), "docs/spark", "exec")
    exec(program, {"__name__": "page"})
