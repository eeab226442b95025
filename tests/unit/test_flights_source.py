"""The flights' files of a checkout that has never run anything."""

from __future__ import annotations

from pathlib import Path

from dstl_flights.source import day_csv


def test_the_first_day_of_a_fresh_checkout(tmp_path: Path) -> None:
    """Whatever step comes first makes the folder, and every day has its own flights."""
    folder = tmp_path / "not" / "there"
    first, last = (day_csv(folder, day).read_text().splitlines() for day in ("2013-01-01", "2013-12-31"))
    assert (len(first), len(last)) == (1 + 842, 1 + 776)
    assert first[0] == last[0]
