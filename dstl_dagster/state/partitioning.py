"""Contiguous ranges of key groups for parallel tasks. Pure arithmetic, the same for writers and readers.

Source: Flink's `KeyGroupRangeAssignment`: task `i` of `n` has the key groups `g` with `g * n // m == i`,
where `m` is max_parallelism. So the sizes of the ranges differ by at most one, and every write or read may
choose any `n` up to `m`: this makes state independent of a job's parallelism.
"""

from __future__ import annotations

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange


def range_of_task(task: int, task_count: int, max_parallelism: int) -> KeyGroupRange:
    """The key groups of one task; never empty.

    Raises: InvalidInputError if there are more tasks than key groups, or no such task.
    """
    if not 1 <= task_count <= max_parallelism:
        raise InvalidInputError(
            f"{task_count} tasks cannot share {max_parallelism} key groups: take 1 to {max_parallelism}"
        )
    if not 0 <= task < task_count:
        raise InvalidInputError(f"there is no task {task} among {task_count}")
    start = -(-task * max_parallelism // task_count)
    end = -(-(task + 1) * max_parallelism // task_count) - 1
    return KeyGroupRange.of(start, end)


def ranges_of_tasks(task_count: int, max_parallelism: int) -> tuple[KeyGroupRange, ...]:
    """The ranges of all tasks, ascending; together they cover every key group exactly once."""
    return tuple(range_of_task(task, task_count, max_parallelism) for task in range(task_count))
