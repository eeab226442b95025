"""The code in docs/storage runs as printed."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

from dstl_dagster.storage import StoreCapabilities
from tests.docs.pages import chapters

PAGE = "\n".join(page.read_text(encoding="utf-8") for page in chapters("storage"))


def test_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The examples of docs/storage run in order, in one session, and print what the page shows."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    assert len(blocks) >= 5
    session: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/storage", "exec"), session)
    printed = capsys.readouterr().out
    assert "id,name\n1,ada\n" in printed
    assert "already_published" in printed
    assert "lost in the crash" not in printed


def test_every_capability_is_described() -> None:
    """Each that a store can declare, and no other, in the class's own words, which the API pages show."""
    assert StoreCapabilities.__doc__ is not None
    # From Python 3.13 on, a docstring comes without the indentation of its code.
    described = re.findall(r"^ {4}(\w+): ", inspect.cleandoc(StoreCapabilities.__doc__), re.MULTILINE)
    assert described == sorted(field.name for field in dataclasses.fields(StoreCapabilities)) or {
        *described
    } == {field.name for field in dataclasses.fields(StoreCapabilities)}
