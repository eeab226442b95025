"""The code in docs/changelog runs as printed."""

from __future__ import annotations

import importlib
import operator
import re

import pytest

from tests.docs.pages import chapters

PAGE = "\n".join(page.read_text(encoding="utf-8") for page in chapters("changelog"))


PRINTED = {
    "Append, persist, read back": [
        "-1 b'metadata for readers'",
        "5 b'one change of key group 5'",
        "5 b'at once'",
        "7 b'many'",
        "['key_group', 'change'] 3",
    ],
    "Positions": ["10", "durable"],
}


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    """In order, in one namespace; each code block prints what the text of its section promises."""
    printed: dict[str, list[str]] = {}
    names: dict[str, object] = {}
    for section in PAGE.split("\n## ")[1:]:
        for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
            exec(compile(block, "docs/changelog", "exec", dont_inherit=True), names)
            printed[section.splitlines()[0]] = capsys.readouterr().out.splitlines()
    assert printed == PRINTED


def test_the_twins_of_javas_names_exist() -> None:
    """Each name in code that begins with one of our packages."""
    (page,) = (each for each in chapters("changelog") if each.name == "java.md")
    rows = [
        line.split(" | ")[1] for line in page.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"
    ]
    names = re.findall(
        r"`(changelog|errors|format|metrics|recoverable|settings|storage|upload)\.([\w.]+)", " ".join(rows)
    )
    assert len(names) == 20
    for package, name in names:
        operator.attrgetter(name)(importlib.import_module(f"dstl_dagster.{package}"))
