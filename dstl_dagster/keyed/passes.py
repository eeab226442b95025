"""A state that does not fit in memory is read in passes: which key groups each has, and what is read once.

Owns both plans. Pure. Does not own reading (`keyed_state`), or how much fits (`StateAt.ranges`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange

__all__ = ["passes", "read_at_once", "smallest_within"]


def passes(splits: Iterable[KeyGroupRange], ranges: Sequence[KeyGroupRange]) -> list[list[KeyGroupRange]]:
    """Which parts of `ranges` are read together, ascending: no more key groups than the largest split.

    Args:
        splits: ascending; each fits in memory.
        ranges: ascending and disjoint.
    """
    splits = list(splits)
    most = max(each.number_of_key_groups for each in splits)
    found: list[list[KeyGroupRange]] = []
    room = 0
    for each in (split.intersection(one) for split in splits for one in ranges):
        size = each.number_of_key_groups
        if not size:
            continue
        if size > room:
            found.append([])
            room = most
        found[-1].append(each)
        room -= size
    return found


def read_at_once(
    handles: Sequence[ChangelogStateHandle], wanted: Sequence[Sequence[KeyGroupRange]], max_bytes: int
) -> list[int]:
    """The indices, ascending, of the handles that are read once, for all passes that need them.

    Of those that several passes need the smallest, as long as all together have `max_bytes` of payload at
    most. They are the log: each pass would open each of its files, for a part of it.

    Args:
        wanted: the key groups of each pass.
    """
    if len(wanted) < 2:
        return []
    shared = [
        number
        for number, handle in enumerate(handles)
        if sum(_meets(handle.key_group_range, each) for each in wanted) > 1
    ]
    return sorted(smallest_within(handles, shared, max_bytes))


def smallest_within(
    handles: Sequence[ChangelogStateHandle], numbers: Iterable[int], max_bytes: int
) -> Iterator[int]:
    """Those of `numbers`, the smallest handle first, that have `max_bytes` of payload at most together."""
    left = max_bytes
    for number in sorted(numbers, key=lambda each: handles[each].state_size):
        left -= handles[number].state_size
        if left < 0:
            return
        yield number


def _meets(own: KeyGroupRange, ranges: Iterable[KeyGroupRange]) -> bool:
    return any(own.intersection(each).number_of_key_groups for each in ranges)
