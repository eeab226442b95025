"""tests/peers: each scenario holds, is refused or does not apply, and its tests exist."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page for page in (ROOT / "tests/peers").glob("*.md") if page.name not in ("README.md", "flink.md")
)


@dataclass(frozen=True)
class Row:
    suite: str
    theirs: str
    answer: str
    said: str
    tests_in: str

    @property
    def tests(self) -> list[tuple[str, str]]:
        """Each test that it names, and its file."""
        found = re.findall(r"`(?:(tests/[^`]+\.py)::)?(test_\w+)`", self.said)
        return [(name, path or self.tests_in) for path, name in found]


def rows_of(page: Path) -> list[Row]:
    found = []
    for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
        (tests_in,) = re.findall(r"Tests without a file are in `([^`]+)`", section)
        for line in section.splitlines():
            if line.startswith("| ") and not line.startswith("| theirs"):
                theirs, here = line.strip("| ").split(" | ", 1)
                answer, _, said = here.partition(": ")
                found.append(Row(section.splitlines()[0], theirs, answer, said, tests_in))
    return found


@cache
def texts_in(path: str) -> dict[str, str]:
    """The text of each test of a file, with its cases."""
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.splitlines()
    return {
        each.name: "\n".join(
            lines[min([each.lineno, *(mark.lineno for mark in each.decorator_list)]) - 1 : each.end_lineno]
        )
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_row_has_one_of_the_three(page: Path) -> None:
    """Two with a test that exists, and `refused` with a sentence that its test expects; the third with a
    reason. A scenario stands once in its suite.
    """
    rows = rows_of(page)
    for row in rows:
        assert row.answer in ("holds", "refused", "does not apply"), row
        assert row.said, row
        if row.answer == "does not apply":
            continue
        assert row.tests, row
        assert [each for each in row.tests if each[0] not in texts_in(each[1])] == [], row
        if row.answer == "refused":
            name, path = row.tests[0]
            quoted = re.match(r'"([^"]+)", `(?:tests/[^`]+::)?test_', row.said)
            assert quoted, row
            assert quoted[1] in texts_in(path)[name], row
    scenarios = [(row.suite, row.theirs) for row in rows]
    assert len(set(scenarios)) == len(scenarios) > 0
