"""What a user is told of each likely mistake: approved in `messages.txt`, with the command's exit codes."""

from __future__ import annotations

from pathlib import Path

from tests.unit.errors.mistakes import catalogue

APPROVED = Path(__file__).with_name("messages.txt")


def test_each_mistake_says_what_is_approved(tmp_path: Path) -> None:
    """Where a message is better now, `tests/unit/errors/mistakes.py` says how to approve it."""
    assert catalogue(tmp_path).splitlines() == APPROVED.read_text(encoding="utf-8").splitlines()


def test_each_mistake_is_refused_in_our_words() -> None:
    """Nothing passes, nothing is a traceback, and nothing is an error of a library."""
    told = APPROVED.read_text(encoding="utf-8").splitlines()
    answers = [line.strip() for line in told if line.startswith("    ")]
    assert len(answers) == len(told) / 2 > 90
    assert [each for each in answers if each.startswith(("nothing", "exit 0")) or "TRACEBACK" in each] == []
    ours = ("InvalidInputError [", "NotFoundError [", "ConflictError [", "exit 1: dstl: ", "exit 2: Error: ")
    assert [each for each in answers if not each.startswith(ours)] == []
