"""The code in docs/storage.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "storage.md"


def test_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The examples of docs/storage.md run in order, in one session, and print what the page shows."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert len(blocks) >= 5
    session: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), session)
    printed = capsys.readouterr().out
    assert "id,name\n1,ada\n" in printed
    assert "already_published" in printed
    assert "lost in the crash" not in printed
