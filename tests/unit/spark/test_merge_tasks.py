"""Which key groups a merge reads. Pure."""

from __future__ import annotations

import numpy as np
import pytest

from dstl_dagster.spark.merge_tasks import touched_ranges


@pytest.mark.parametrize(
    ("touched", "ranges"),
    [
        ([5], [(5, 5)]),
        ([3, 9, 3], [(3, 3), (9, 9)]),
        ([0, 1, 50, 51, 52], [(0, 1), (50, 52)]),
        ([1, 2, 4, 5], [(1, 5)]),
        (list(range(0, 128, 3)), [(n, n) for n in range(0, 128, 3)]),
    ],
)
def test_only_touched_key_groups_are_read(touched: list[int], ranges: list[tuple[int, int]]) -> None:
    """Each run of key groups by itself, unless more than half of the span is touched."""
    found = touched_ranges(np.array(touched, np.int32))
    assert [(each.start_key_group, each.end_key_group) for each in found] == ranges
