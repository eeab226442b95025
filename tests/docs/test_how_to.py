"""The programs of docs/how-to run as printed, and no page has a block that nobody runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, chapters, run_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOW_TO = ROOT / "docs" / "how-to"
PLAIN = (
    "rescale",
    "late-data",
    "state-that-ends",
    "migrate-from-flink",
    "after-each-checkpoint",
    "recompute-beside-a-job",
)

FOLDERS = {
    "changelog": ("tests/docs/test_changelog_docs.py", "python"),
    "checkpoints": ("tests/docs/test_checkpoints_docs.py", "python console"),
    "dagster": ("tests/docs/test_dagster_docs.py", "python"),
    "spark": ("tests/spark/test_docs.py", "python"),
    "storage": ("tests/docs/test_storage_docs.py", "python"),
}
"""Pages that are one program, in reading order."""

RUN_BY = {
    "README.md": ("tests/docs/test_readme.py", "python"),
    "docs/correcting.md": ("tests/docs/test_correcting_docs.py", "python console"),
    "docs/errors.md": ("tests/unit/errors/test_error_tree.py", "python"),
    "docs/operations/bad-days.md": ("tests/docs/test_runbook.py", "console"),
    "docs/operations/watch.md": ("tests/docs/test_operations.py", "python"),
    "docs/options.md": ("tests/docs/test_options_docs.py", "python console"),
    "docs/reading.md": ("tests/docs/test_reading_docs.py", "python"),
    "tests/simulated/README.md": ("tests/docs/test_simulation_docs.py", "console"),
    "docs/tutorial.md": ("tests/docs/test_tutorial.py", "python console"),
    **{
        str(page.relative_to(ROOT)): (runner, languages)
        for folder, (runner, languages) in FOLDERS.items()
        for page in chapters(folder)
    },
    **{f"docs/how-to/{name}.md": ("tests/docs/test_how_to.py", "python console") for name in PLAIN},
    "docs/how-to/clusters.md": ("tests/docs/test_how_to.py", "python"),
    "docs/how-to/driver-elsewhere.md": ("tests/docs/test_driver_elsewhere_docs.py", "python"),
    "docs/how-to/spark-connect.md": ("tests/docs/test_driver_elsewhere_docs.py", "python"),
}
"""Which test runs the blocks of a page, each page in its own way, and of which languages."""


@pytest.mark.parametrize("name", PLAIN)
def test_a_page_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    run_page(HOW_TO / f"{name}.md", {"__name__": "page"}, lambda: dict(os.environ))


@pytest.mark.spark
def test_the_submitted_program_runs(spark: SparkSession) -> None:
    """`session` is the cluster's."""
    names: dict[str, Any] = {"__name__": "page", "session": spark}
    (program,) = [text for language, text, _ in blocks(HOW_TO / "clusters.md") if language == "python"]
    exec(compile(program, "clusters.md", "exec"), names)


def test_every_block_is_run_or_says_why_not() -> None:
    """Python and commands; other languages are data or pictures."""
    pages = {str(path.relative_to(ROOT)): path for path in PAGES}
    alone = [
        f"{name}: {text.splitlines()[0]}"
        for name, path in sorted(pages.items())
        for language, text, passed_over in blocks(path)
        if language in {"python", "py", "console", "sh", "bash"}
        and not passed_over
        and language not in RUN_BY.get(name, ("", ""))[1].split()
    ]
    assert alone == []


def test_every_python_block_is_python() -> None:
    """Those too that a test runs in another form, or whose names are the reader's."""
    for path in PAGES:
        for language, text, _ in blocks(path):
            if language in {"python", "py"}:
                compile(text, str(path.relative_to(ROOT)), "exec", dont_inherit=True)


@pytest.mark.parametrize("page", RUN_BY)
def test_the_test_that_runs_a_page_names_it(page: str) -> None:
    """`RUN_BY` promises nothing that is not there."""
    runner = (ROOT / RUN_BY[page][0]).read_text()
    assert Path(page).stem in runner or f'chapters("{Path(page).parent.name}")' in runner
