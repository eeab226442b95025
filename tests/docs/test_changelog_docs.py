"""The code in docs/changelog.md runs as printed, and its lists are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dstl_dagster.settings.changelog import _KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "changelog.md").read_text(encoding="utf-8")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The code block, in a namespace of its own, prints what the text promises."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "docs/changelog.md", "exec", dont_inherit=True), {})
    assert capsys.readouterr().out.splitlines() == [
        "-1 b'what a reader must know first'",
        "5 b'one change of key group 5'",
        "5 b'at once'",
        "7 b'many'",
        "['key_group', 'change'] 3",
    ]


def test_every_option_is_listed() -> None:
    """Each key, or its last part after a shared prefix, is on the page."""
    for key, _ in _KEYS.values():
        short = key.removeprefix("dstl.dfs.")
        assert short in PAGE or f".{short.rpartition('.')[2]}" in PAGE, short
