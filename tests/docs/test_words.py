"""Pages stay short enough to be read, and their words are those of the package."""

from __future__ import annotations

import re

import click
import pytest

from dstl_dagster.cli import main
from tests.docs.pages import ROOT

DOCS = ROOT / "docs"
LIMIT, OF_A_TASK, OF_A_DECISION, OF_A_CELL, OF_ALL = 1500, 600, 300, 15, 18_400
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
TASKS = ("changelog/", "checkpoints/", "dagster/", "how-to/", "spark/", "storage/", "operations/watch")


def words_of(name: str) -> int:
    return len((DOCS / name).read_text(encoding="utf-8").split())


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_few_words(name: str) -> None:
    """At most as many as are read in one sitting; of a task, as many as fit beside the work."""
    decision = name.startswith("decisions/")
    assert words_of(name) <= (OF_A_DECISION if decision else OF_A_TASK if name.startswith(TASKS) else LIMIT)


def test_all_pages_have_few_words() -> None:
    """A new page replaces another. Decisions are not read as pages are."""
    read = [page for page in PAGES if not page.startswith("decisions/")]
    assert sum(map(words_of, read)) <= OF_ALL


@pytest.mark.parametrize("name", PAGES)
def test_a_cell_has_few_words(name: str) -> None:
    """A table is looked up, not read; the target of a link is no word."""
    text = re.sub(r"\]\([^)]*\)", "]", without_code((DOCS / name).read_text(encoding="utf-8")))
    rows = re.findall(r"^\|(.*)\|$", text, re.MULTILINE)
    long = [cell.strip() for row in rows for cell in row.split("|") if len(cell.split()) > OF_A_CELL]
    assert long == []


def test_the_glossary_is_sorted() -> None:
    """By its words, so that they are found."""
    table = (DOCS / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| (\w[\w-]*) \|", table, re.MULTILINE)[1:]
    assert len(words) > 15
    assert words == sorted(words)


FOR_MAINTAINERS = {"format.md", "glossary.md"}
TERMS = (
    "abandoned", "attempt", "blocked", "chain", "changelog", "checkpoint", "component",
    "compose-commit", "fence", "fingerprint", "idempotency key", "job", "key group", "manifest",
    "operator", "orphan", "position", "retract", "savepoint", "slot", "source",
    "subsumed", "timeline", "upsert",
)  # fmt: skip
"""What a reader cannot know from elsewhere, or knows as something else."""


def test_the_terms_of_the_pages_are_in_the_glossary() -> None:
    """And those in the glossary are on a page."""
    table = (DOCS / "glossary.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| ([a-z][a-z -]+) \|", table, re.MULTILINE)) - {"word"}
    pages = [page for page in PAGES if page not in FOR_MAINTAINERS and not page.startswith("decisions/")]
    text = " ".join(" ".join((DOCS / page).read_text(encoding="utf-8").split()) for page in pages).lower()
    used = {term for term in {*TERMS, *explained} if re.search(rf"\b{term}", text)}
    assert used == explained


def unknown_in(command: str) -> list[str]:
    """What the command line does not know of it: a command, or an option."""
    context = click.Context(main)
    found: click.Command = main
    words = command.partition(" -- ")[0].split()
    while words and isinstance(found, click.Group):
        name = words.pop(0)
        inner = found.get_command(context, name)
        if inner is None:
            return [name]
        found = inner
    options = {name for each in found.params for name in (*each.opts, *each.secondary_opts)}
    given = [word.split("=")[0].rstrip(",.") for word in words if word.startswith("--")]
    return [each for each in given if each not in options]


def test_commands_of_the_sentences_exist() -> None:
    """Those in code blocks run; here are the others, with their options."""
    text = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
    commands = re.findall(r"`dstl ([a-z][^`\n]*)`", text)
    assert len(commands) > 30
    assert unknown_in("checkpoints gc --no-such") == ["--no-such"]
    assert [each for each in commands if unknown_in(each)] == []
