"""Ranges of key groups. Owns their arithmetic; does not own how a key becomes a key group.

Twin of Flink's `KeyGroupRange` and `KeyGroupRangeAssignment`: task `i` of `n` has the key groups `g` with
`g * n // m == i`, where `m` is max_parallelism. So the sizes of the ranges differ by at most one, and every
write or read may choose any `n` up to `m`: this makes state independent of a job's parallelism.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, ClassVar, Final

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format.envelope import reading

MAX_KEY_GROUP: Final = 2**31 - 2
"""The highest key group: the number of key groups in a range must itself fit into 31 bits."""


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """Key groups from `start_key_group` to `end_key_group`, both inclusive.

    `KeyGroupRange.of(3, 1)` (start above end) is the one empty range, `EMPTY`, written (0, -1).
    InvalidInputError for a negative start or a bound above `MAX_KEY_GROUP`.
    """

    EMPTY: ClassVar[KeyGroupRange]

    start_key_group: int
    end_key_group: int

    def __post_init__(self) -> None:
        for bound in (self.start_key_group, self.end_key_group):
            if isinstance(bound, bool) or not isinstance(bound, int):
                raise InvalidInputError(f"a key group is an int, not {type(bound).__name__}: {bound!r}")
        if (self.start_key_group, self.end_key_group) == (0, -1):
            return
        if not 0 <= self.start_key_group <= self.end_key_group <= MAX_KEY_GROUP:
            raise InvalidInputError(
                f"key group range [{self.start_key_group}, {self.end_key_group}] is not within "
                f"0..{MAX_KEY_GROUP} with start <= end: correct its bounds"
            )

    @classmethod
    def of(cls, start_key_group: int, end_key_group: int) -> KeyGroupRange:
        """The range with both bounds inclusive; `EMPTY` if start is above end."""
        if start_key_group > end_key_group:
            return cls.EMPTY
        return cls(start_key_group, end_key_group)

    @classmethod
    def parse_all(cls, text: str) -> tuple[KeyGroupRange, ...]:
        """The ranges in text such as `0-15,20`, both ends inclusive; ascending and disjoint.

        Raises: InvalidInputError naming option `key_groups`, which the text is of.
        """
        found: list[KeyGroupRange] = []
        for part in text.split(",") if text.strip() else []:
            first, _, last = part.partition("-")
            try:
                found.append(cls.of(int(first), int(last or first)))
                if not found[-1].number_of_key_groups:
                    raise ValueError(part)
            except ValueError as error:
                raise InvalidInputError(
                    f"option key_groups takes numbers and ranges such as 0-15,20, not {part!r}"
                ) from error
        found.sort(key=lambda each: each.start_key_group)
        for one, other in pairwise(found):
            if one.intersection(other).number_of_key_groups:
                raise InvalidInputError(f"option key_groups names key group {other.start_key_group} twice")
        return tuple(found)

    @property
    def number_of_key_groups(self) -> int:
        """Its size; 0 for `EMPTY`."""
        return self.end_key_group - self.start_key_group + 1

    def contains(self, key_group: int) -> bool:
        """Whether the key group is in the range."""
        return self.start_key_group <= key_group <= self.end_key_group

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange:
        """The key groups in both ranges; `EMPTY` if there are none."""
        return KeyGroupRange.of(
            max(self.start_key_group, other.start_key_group), min(self.end_key_group, other.end_key_group)
        )

    def key_group_id(self, index: int) -> int:
        """The key group at `index` (0-based). InvalidInputError outside the range."""
        if not 0 <= index < self.number_of_key_groups:
            raise InvalidInputError(
                f"index {index} is outside the {self.number_of_key_groups} key groups of {self}"
            )
        return self.start_key_group + index

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start_key_group, self.end_key_group + 1))

    def __str__(self) -> str:
        return f"[{self.start_key_group}, {self.end_key_group}]"

    def to_json(self) -> list[int]:
        """`[start, end]`, both inclusive."""
        return [self.start_key_group, self.end_key_group]

    @classmethod
    def from_json(cls, document: Any) -> KeyGroupRange:
        """Inverse of `to_json`. FormatError for anything else."""
        with reading("a stored key group range is not valid"):
            start, end = document
            return cls(start, end)


KeyGroupRange.EMPTY = KeyGroupRange(0, -1)
_START: Final = attrgetter("start_key_group")


def merged_ranges(groups: Iterable[int]) -> tuple[KeyGroupRange, ...]:
    """The key groups as ranges, ascending and disjoint, as few as possible."""
    found: list[KeyGroupRange] = []
    for group in sorted(set(groups)):
        if found and found[-1].end_key_group == group - 1:
            found[-1] = KeyGroupRange.of(found[-1].start_key_group, group)
        else:
            found.append(KeyGroupRange.of(group, group))
    return tuple(found)


def ranges_around(
    wanted: Iterable[KeyGroupRange], most: int, max_parallelism: int
) -> tuple[KeyGroupRange, ...]:
    """Ranges of up to so many tasks that share these key groups evenly; together they cover all."""
    groups = [group for each in wanted for group in each]
    shares = ranges_of_tasks(min(most, len(groups)), len(groups)) if groups else ()
    starts = [0, *(groups[each.start_key_group] for each in shares[1:])]
    return tuple(map(KeyGroupRange.of, starts, [*(start - 1 for start in starts[1:]), max_parallelism - 1]))


def common_ranges(
    ranges: Iterable[KeyGroupRange], wanted: Iterable[KeyGroupRange] | None
) -> tuple[KeyGroupRange, ...]:
    """The ranges, cut to those that are wanted (`None`: all). Both are ascending and disjoint, as is this."""
    if wanted is None:
        return tuple(ranges)
    wanted = list(wanted)
    shared = (each.intersection(one) for each in ranges for one in wanted)
    return tuple(each for each in shared if each.number_of_key_groups)


def have_common(ranges: Sequence[KeyGroupRange], others: Sequence[KeyGroupRange]) -> bool:
    """Whether they share a key group. Both are ascending and disjoint."""
    few, many = (ranges, others) if len(ranges) < len(others) else (others, ranges)
    for each in few:
        before = bisect_right(many, each.end_key_group, key=_START)
        if before and many[before - 1].end_key_group >= each.start_key_group:
            return True
    return False


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
    """The ranges of all tasks, ascending; together they cover every key group exactly once.

    Raises: InvalidInputError, as `range_of_task`.
    """
    first = range_of_task(0, task_count, max_parallelism)
    return (first, *(range_of_task(task, task_count, max_parallelism) for task in range(1, task_count)))
