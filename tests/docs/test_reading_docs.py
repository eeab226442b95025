"""docs/reading.md runs as printed, and names every form and argument."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from dstl_dagster import StateScan, read_state

PAGE = (Path(__file__).parents[2] / "docs" / "reading.md").read_text(encoding="utf-8")


def test_the_program_runs() -> None:
    """Its assertions are the page's."""
    names: dict[str, object] = {"__name__": "reading"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/reading.md", "exec", dont_inherit=True), names)
    assert "friday" in names


def test_forms_and_arguments_are_listed() -> None:
    """Those that narrow a scan, and those that read it."""
    forms = [name for name in vars(StateScan) if name.startswith("to_")]
    wanted = [
        name for name in inspect.signature(read_state).parameters if name not in ("uri", "job", "operator")
    ]
    assert [name for name in forms if f"`{name}()`" not in PAGE] == []
    assert [name for name in wanted if name != "options" and f"`{name}`" not in PAGE] == []
