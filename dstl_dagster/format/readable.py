"""Numbers and names as people read them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

_KIB = 1024
_LONG_WORD = re.compile(r"[^\s/-]{25,}")
_PART = re.compile(r"[^_.]{1,24}[_.]?|[_.]")
_BREAK = "\u200b"
"""A place to break, without a width."""
_OF_RUN = re.compile(r"^(?:dagster-)?run:(.{8}).*")
"""A batch or an owner that is named by the id of its run, of which Dagster's page shows eight digits."""


def breakable(text: str) -> str:
    """For a narrow column: a long word may break behind underscores and dots, and after 24 characters."""
    return _LONG_WORD.sub(lambda word: _BREAK.join(_PART.findall(word[0])), text)


def unbroken(text: str) -> str:
    """The text that was made `breakable`."""
    return text.replace(_BREAK, "")


def counted(count: int, noun: str) -> str:
    """`1 file`, `2,000 files`. `noun`: the singular of one whose plural adds an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def names_in_words(*names: str) -> str:
    """The names of batches or owners; one that stands for a run is named as Dagster's page names the run."""
    return ", ".join(_OF_RUN.sub(r"run \1", name) for name in names)


def nearest(wanted: str, known: Iterable[str]) -> str:
    """The names most like the one that was not found, in quotes, else the first ones; empty if none is."""
    import difflib  # only the error path needs it

    names = sorted(known)
    return ", ".join(map(repr, difflib.get_close_matches(wanted, names, n=3) or names[:3]))


def measure(value: float) -> float:
    """Three significant digits: enough for a plot, down to milliseconds."""
    return float(f"{value:.3g}")


def mebibytes(count: int) -> float:
    """Bytes as MiB. One unit for small and large, because a plot has one axis."""
    return measure(count / _KIB**2)


def readable_duration(time: timedelta) -> str:
    """`1 min 19 s`, `1 d 12 h`: the two largest units that are not zero, in whole seconds."""
    left, parts = max(0, round(time.total_seconds())), []
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def readable_time(when: datetime) -> str:
    """`2026-11-22 18:00:05 UTC`, of a time in UTC."""
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def readable_bytes(count: int) -> str:
    """`1.5 MiB`: powers of two, to three significant digits; 1,000 and more in full."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < _KIB or unit == "TiB":
            break
        size /= _KIB
    return f"{size:,.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
