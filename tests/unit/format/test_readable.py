"""Sizes as people read them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dstl_dagster.format.readable import readable_bytes, readable_duration


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (35_840, "35 KiB"),
        (1023 * 1024, "1,023 KiB"),
        (1024**2 - 1, "1,024 KiB"),
        (3 * 1024**3 // 2, "1.5 GiB"),
        (5 * 1024**4, "5 TiB"),
        (2000 * 1024**4, "2,000 TiB"),
    ],
)
def test_a_size_has_a_unit_and_no_exponent(count, shown):
    """Any size is written as a person would write it."""
    assert readable_bytes(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0 s"),
        (0.4, "0 s"),
        (79, "1 min 19 s"),
        (3600, "1 h"),
        (129_600, "1 d 12 h"),
        (86_461, "1 d 1 min"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds, shown):
    """Rather than Python's `1 day, 12:00:00`."""
    assert readable_duration(timedelta(seconds=seconds)) == shown
