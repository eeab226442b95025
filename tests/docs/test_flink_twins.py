"""tests/peers/flink.md names upstream's tests, and twins that exist: no row promises what is gone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "tests" / "peers" / "flink.md").read_text(encoding="utf-8")
DEFAULT = "tests/unit/recoverable/test_upstream.py"
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| upstream")
]
GOOGLE_STORAGE = [row for row in ROWS if PAGE.index(f"| {row[0]} |") > PAGE.index("## Google Storage")]


def defined_in(path: str) -> set[str]:
    """Functions of a module, and methods, also as `Class.name`."""
    names: set[str] = set()
    for each in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(each, ast.FunctionDef):
            names.add(each.name)
        if isinstance(each, ast.ClassDef):
            methods = {inner.name for inner in each.body if isinstance(inner, ast.FunctionDef)}
            names |= methods | {f"{each.name}.{method}" for method in methods}
    return names


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:60] for row in ROWS])
def test_a_row_names_what_exists(row: tuple[str, str]) -> None:
    """Its files are there, and each test that it names is in the file of its row, or the section's."""
    _, here = row
    paths = re.findall(r"`([^`]+\.py)`", here)
    assert all((ROOT / path).is_file() for path in paths), paths
    for name in re.findall(r"`((?:Test\w+\.)?test_\w+)`", here):
        assert any(name in defined_in(path) for path in [*paths, DEFAULT]), name


def test_twins_of_the_changelog_have_their_names() -> None:
    """`testPersistAgain` is `test_persist_again`, in the file of its row."""
    changelog = [
        row for row in ROWS if row not in GOOGLE_STORAGE and "there is no service loader" not in row[1]
    ]
    for upstream, here in changelog:
        (path,) = re.findall(r"`([^`]+\.py)`", here)
        for name in re.findall(r"\b(test[A-Z]\w+)", upstream):
            assert re.sub(r"(?=[A-Z])", "_", name).lower() in defined_in(path), name


def test_a_row_without_a_twin_says_why() -> None:
    """Each row names a test here, or begins with `none:` and a reason."""
    for upstream, here in GOOGLE_STORAGE:
        assert here.startswith("none: ") or "test_" in here or "conformance" in here, upstream


def test_every_class_of_google_storage_is_there() -> None:
    """All 20 of upstream's, each test by its name where it has one."""
    upstream = " ".join(row[0] for row in GOOGLE_STORAGE)
    classes = set(re.findall(r"\b([A-Z]\w+(?:Test|ITCase))\b", upstream))
    methods = set(re.findall(r"\b([a-z]+[A-Z]\w+)\b", upstream))
    assert (len(classes), len(methods)) == (20, 73)
