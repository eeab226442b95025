"""Key groups are divided completely, once, and as the writer's SQL does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format.key_group_ranges import (
    common_ranges,
    have_common,
    merged_ranges,
    range_of_task,
    ranges_of_tasks,
)


@given(data=st.data(), max_parallelism=st.integers(1, 2**15))
def test_each_key_group_has_the_task_that_the_formula_gives(
    data: st.DataObject, max_parallelism: int
) -> None:
    """A key group is in the range of task `g * n // m`, and ranges differ by at most one in size."""
    task_count = data.draw(st.integers(1, min(max_parallelism, 300)))
    ranges = ranges_of_tasks(task_count, max_parallelism)
    assert [group for each in ranges for group in each] == list(range(max_parallelism))
    sizes = {each.number_of_key_groups for each in ranges}
    assert max(sizes) - min(sizes) <= 1
    group = data.draw(st.integers(0, max_parallelism - 1))
    assert ranges[group * task_count // max_parallelism].contains(group)


@pytest.mark.parametrize("task_count", [0, -1, 5])
def test_the_ranges_of_impossible_tasks_are_refused(task_count: int) -> None:
    """A read by no task would be of no row."""
    with pytest.raises(InvalidInputError, match=f"^{task_count} tasks cannot share 4 key groups"):
        ranges_of_tasks(task_count, 4)


@pytest.mark.parametrize(("task", "task_count"), [(0, 0), (0, 5), (4, 4), (-1, 4)])
def test_impossible_shares_are_refused(task: int, task_count: int) -> None:
    """More tasks than key groups, or a task that does not exist, is an error."""
    with pytest.raises(InvalidInputError):
        range_of_task(task, task_count, 4)


@given(ones=st.sets(st.integers(0, 40)), others=st.sets(st.integers(0, 40)))
def test_ranges_have_key_groups_in_common_where_there_are_some(ones: set[int], others: set[int]) -> None:
    """As sets do; and so it is where `common_ranges` finds one."""
    ranges, wanted = merged_ranges(ones), merged_ranges(others)
    assert have_common(ranges, wanted) == bool(ones & others) == bool(common_ranges(ranges, wanted))
