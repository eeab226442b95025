"""Runs a page as its reader would: Python blocks in order in one namespace, commands with what they print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from dstl_dagster.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for folder in ("docs", "dstl_dagster", "tests") for page in sorted((ROOT / folder).rglob("*.md"))),
]
NOT_RUN = re.compile(r"<!-- (?:not run|command): .+ -->\n$")


def blocks(page: Path) -> Iterator[tuple[str, str, bool]]:
    """Language and text of each fenced block, and whether the page says why no test runs it."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```([\w{}-]*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield match[1], match[2], NOT_RUN.search(text[: match.start()]) is not None


def chapters(folder: str) -> list[Path]:
    """The pages of a folder below `docs` in reading order: its index, then what that lists."""
    index = ROOT / "docs" / folder / "index.md"
    listed = index.read_text(encoding="utf-8").partition("```{toctree}\n:hidden:\n")[2].partition("```")[0]
    return [index, *(index.with_name(f"{name}.md") for name in listed.split())]


def run_page(page: Path, names: dict[str, Any], environment: Callable[[], dict[str, str]]) -> None:
    """`environment` is what commands see, asked for each; `$STORE` in a command is the page's variable."""
    for language, block, passed_over in blocks(page):
        if passed_over:
            continue
        if language == "python":
            exec(compile(block, str(page.relative_to(ROOT)), "exec", dont_inherit=True), names)
        elif language == "console":
            _run_commands(block, names, environment())


def _run_commands(block: str, names: dict[str, Any], environment: dict[str, str]) -> None:
    """Each command ends well; every line that the page shows of its output is printed."""
    for command in re.split(r"^\$ dstl ", block, flags=re.MULTILINE)[1:]:
        line, _, shown = command.partition("\n")
        arguments = shlex.split(line.replace("$STORE", names.get("STORE", "")))
        result = CliRunner(env=environment).invoke(main, arguments)
        assert result.exit_code == 0, (line, result.output)
        printed = [each.rstrip() for each in result.stdout.splitlines()]
        assert [each for each in shown.splitlines() if each not in printed] == [], (line, result.stdout)
