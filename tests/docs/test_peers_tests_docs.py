"""docs/peers-tests.md: each scenario holds, is refused or does not apply, and its tests exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "peers-tests.md").read_text(encoding="utf-8")
ROWS = [
    (section.splitlines()[0], *(cell.strip() for cell in line.strip("|").split(" | ", 1)), section)
    for section in PAGE.split("\n## ")[1:]
    for line in section.splitlines()
    if line.startswith("| ") and not line.startswith("| theirs")
]


def defined_in(path: str) -> set[str]:
    module = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {each.name for each in module.body if isinstance(each, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=[f"{suite} {theirs}" for suite, theirs, _, _ in ROWS])
def test_a_row_has_one_of_the_three(row: tuple[str, str, str, str]) -> None:
    """Two with a test that exists, and `refused` with its sentence; the third with a reason."""
    _, _, here, section = row
    answer, _, said = here.partition(": ")
    assert answer in ("holds", "refused", "does not apply")
    assert said
    if answer == "does not apply":
        return
    assert answer == "holds" or re.match(r'"[^"]+", `test_', said)
    names = re.findall(r"`(test_\w+)`", said)
    (default,) = re.findall(r"Tests without a file are in `([^`]+)`", section)
    (path,) = re.findall(r"`(tests/[^`]+\.py)`", said) or [default]
    assert names
    assert set(names) <= defined_in(path)


def test_a_sentence_is_one_that_its_test_expects() -> None:
    """The quoted words stand in the test."""
    refused = [row for row in ROWS if row[2].startswith("refused: ")]
    assert refused
    for _, _, here, section in refused:
        sentence, name = re.findall(r'"([^"]+)", `(test_\w+)`', here)[0]
        (default,) = re.findall(r"Tests without a file are in `([^`]+)`", section)
        (path,) = re.findall(r"`(tests/[^`]+\.py)`", here) or [default]
        text = (ROOT / path).read_text(encoding="utf-8")
        before, _, after = text.partition(f"\ndef {name}(")
        cases = before.rpartition("\n\n\n")[2]
        assert sentence in cases + after.partition("\ndef ")[0]


def test_a_scenario_stands_once() -> None:
    """In its suite."""
    scenarios = [(suite, theirs) for suite, theirs, _, _ in ROWS]
    assert len(set(scenarios)) == len(scenarios) > 0
