"""Lines, tables and times on a terminal.

Owns that no control character of a row or a name reaches the terminal, the width of tables, and how a time
reads. Does not own what is printed, or JSON, which `json` makes safe.

A table is whole where a program or a file gets it. On a terminal it is as wide as that: the columns that may
be cut share what the others leave, and if even that is too narrow each row is printed as lines of its own.
"""

from __future__ import annotations

import json
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any

import click
from rich.cells import cell_len, set_cell_size

_QUIET = "dstl.quiet"

_GAP = "  "
_LEAST_CUT = 8
"""A column that is cut shows so many characters at least."""


def printable(text: str) -> str:
    """The text with its control characters, line ends too, as escapes."""
    if text.isprintable():
        return text
    return "".join(each if _is_harmless(each) else _escaped(each) for each in text)


def _is_harmless(character: str) -> bool:
    # Of spaces Python calls the usual one alone printable.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def local_time(moment: datetime) -> str:
    """In this machine's zone, with its offset, to the second."""
    return moment.astimezone().isoformat(sep=" ", timespec="seconds")


def set_quiet(*, quiet: bool) -> None:
    """Whether the current command prints no progress (`-q`)."""
    click.get_current_context().meta[_QUIET] = quiet


def is_quiet() -> bool:
    """Whether the current command prints no progress."""
    return bool(click.get_current_context().meta.get(_QUIET))


def say(line: str, *, err: bool = False) -> None:
    """Print one line. Of several, each by itself: a line end in a name is not one."""
    click.echo(printable(line), err=err)


def confirm(question: str) -> None:
    """Ask, and end the command unless the answer is yes."""
    click.confirm(printable(question), abort=True, err=True)


class Table:
    """Rows of text under column names. Cells are printed as they are, but for control characters.

    Args:
        right: columns of numbers.
        cut: columns that give way to the width of a terminal; by default the last one.
    """

    def __init__(
        self,
        *columns: str,
        title: str | None = None,
        right: Iterable[str] = (),
        cut: Iterable[str] | None = None,
    ) -> None:
        self.title = title
        self._columns = [printable(each) for each in columns]
        self._right = set(right)
        self._cut = {columns[-1]} if cut is None else set(cut)
        self._rows: list[list[str]] = []

    def add_row(self, *cells: str) -> None:
        self._rows.append([printable(each) for each in cells])

    def lines(self, width: int | None = None) -> Iterable[str]:
        """Its lines for a terminal of `width` columns, or whole."""
        if self.title is not None:
            yield printable(self.title)
        widths = [max(map(cell_len, column)) for column in zip(self._columns, *self._rows, strict=True)]
        if width is not None:
            fitted = self._fitted(widths, width)
            if fitted is None:
                yield from self._one_below_the_other()
                return
            widths = fitted
        for row in (self._columns, *self._rows):
            cells = zip(self._columns, row, widths, strict=True)
            yield _GAP.join(
                _cell(text, size, right=name in self._right) for name, text, size in cells
            ).rstrip()

    def _fitted(self, widths: Sequence[int], width: int) -> list[int] | None:
        """Widths that fit, `None` if there are none. The widest of those that give way is cut first."""
        fitted = list(widths)
        over = sum(fitted) + len(_GAP) * (len(fitted) - 1) - width
        giving = [at for at, name in enumerate(self._columns) if name in self._cut]
        while over > 0:
            widest = max(giving, key=lambda at: fitted[at], default=None)
            if widest is None or fitted[widest] <= _LEAST_CUT:
                return None
            fitted[widest] -= 1
            over -= 1
        return fitted

    def _one_below_the_other(self) -> Iterable[str]:
        margin = max(map(cell_len, self._columns), default=0)
        for number, row in enumerate(self._rows):
            if number:
                yield ""
            for name, text in zip(self._columns, row, strict=True):
                yield f"{_cell(name, margin, right=False)}{_GAP}{text}".rstrip()


def _cell(text: str, size: int, *, right: bool) -> str:
    length = cell_len(text)
    if length > size:
        return set_cell_size(text, size - 1) + "…"
    return " " * (size - length) + text if right else text + " " * (size - length)


def show(*sections: Table | str) -> None:
    """Print tables and lines on stdout."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for section in sections:
        for line in section.lines(width) if isinstance(section, Table) else [printable(section)]:
            click.echo(line)


def answer(as_json: bool, document: Any, *sections: Table | str) -> None:
    """Print the answer of a command: `document` on one line for programs, or `sections` for people.

    A value of ours is an object of its fields, a time as in ISO 8601, a duration in seconds.
    """
    if as_json:
        click.echo(json.dumps(document, default=_plain))
    else:
        show(*sections)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, datetime) else str(value)
