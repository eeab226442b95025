"""Pages stay short enough to be read."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT

DOCS = ROOT / "docs"
LIMIT, FOR_MAINTAINERS = 1500, 1900
LONGER = {"architecture.md", "format.md", "simulation.md"}
"""Pages for maintainers, read as a whole."""
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_few_words(name: str) -> None:
    """At most as many as are read in one sitting."""
    words = len((DOCS / name).read_text(encoding="utf-8").split())
    assert words <= (FOR_MAINTAINERS if name in LONGER else LIMIT)


def test_the_glossary_is_sorted() -> None:
    """By its words, so that they are found."""
    table = (DOCS / "glossary.md").read_text(encoding="utf-8").partition("## ")[0]
    words = re.findall(r"^\| (\w[\w-]*) \|", table, re.MULTILINE)[1:]
    assert len(words) > 15
    assert words == sorted(words)
