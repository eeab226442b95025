"""docs/comparison.md quotes benchmarks/RESULTS.md, and nothing else."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

import pytest

from tests.docs.pages import ROOT

RESULTS = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
COMPARISON = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Benchmarks are no package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("results_page")


def test_the_numbers_are_those_of_the_results(page: ModuleType) -> None:
    """`python benchmarks/results.py` writes both; who edits one by hand is told here."""
    assert page.with_quotes(COMPARISON, RESULTS) == COMPARISON
    changed = RESULTS.replace("| 512 | ", "| 512 | 9", 1)
    assert page.with_quotes(COMPARISON, changed) != COMPARISON


def test_speeds_are_dated(page: ModuleType) -> None:
    """Each section of speeds has the commit and the versions, each table that quotes one the commit."""
    dated = r"^20\d\d-\d\d-\d\d, commit [0-9a-f]{7,}\S*; Python .* dstl-dagster .*; .* cores"
    for section in page.sections_of(RESULTS):
        if "seconds" in section.title:
            assert re.search(dated, section.text, re.MULTILINE), section.title
    assert len(re.findall(dated.partition("; ")[0], COMPARISON, re.MULTILINE)) == 5


def test_each_plot_is_there_and_is_shown(page: ModuleType) -> None:
    """All that the command draws."""
    files = [each.file for each in page.sections_of(RESULTS)]
    assert files == [file for file in page.FILES if file in files]
    assert {"results-state-seconds", "results-state-bytes", "results-log", "results-commit"} <= {*files}
    for file in files:
        assert (ROOT / "docs" / "images" / f"{file}.svg").exists()
        assert f"(images/{file}.svg)" in COMPARISON
    drawn = {path.stem for path in (ROOT / "docs" / "images").glob("results-*.svg")}
    assert drawn == {*files}


def test_a_part_replaces_its_sections_alone(page: ModuleType) -> None:
    """Sizes that one curve lacks, and a peer that cannot be had, are told; the rest stays as it was."""
    mine = page.Curve("dstl-dagster", [page.Point(1000, [0.1, 0.2, 0.3]), page.Point(2000, [123.4])])
    other = page.Curve("another", [page.Point(1000, [2])])
    plot = page.Plot(
        "results-log", "Reading", "rows", "seconds", [mine, other], "Here.", ["third: no such module"]
    )
    text = page.page_of([plot], RESULTS, ["Flink: there is no javac"])
    sections = {each.file: each for each in page.sections_of(text)}
    assert list(sections) == [each.file for each in page.sections_of(RESULTS)]
    assert sections["results-log"].medians == {
        "dstl-dagster": {1000: "0.2", 2000: "123"},
        "another": {1000: "2"},
    }
    assert "| 2,000 | 123 | - |" in text
    assert "Not measured: third: no such module." in text
    assert "Not measured by the last run: Flink: there is no javac." in text
    assert "0.2 (0.1 to 0.3)" in text
    before = {each.file: each for each in page.sections_of(RESULTS)}
    assert sections["results-commit"] == before["results-commit"]
