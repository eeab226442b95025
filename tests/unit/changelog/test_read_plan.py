"""The plan of a read: each file once, near ranges together, no more ahead than allowed."""

from __future__ import annotations

import pytest

from dstl_dagster.changelog.reader.read_plan import (
    END_BYTES,
    GAP_BYTES,
    REQUEST_BYTES,
    WHOLE_FILE_BYTES,
    HandleRead,
    SetUse,
    Span,
    files_of,
    joined,
    opening,
    opening_bytes,
)
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StreamStateHandle

ALL = KeyGroupRange.of(0, 127)
MIB = 1 << 20


def handle(*places: tuple[str, int], key_groups: KeyGroupRange = ALL) -> ChangelogStateHandle:
    return ChangelogStateHandle(
        tuple((StreamStateHandle(name, 10, 1), offset) for name, offset in places), key_groups, 1, 1
    )


def test_handles_share_their_files():
    """500 handles in 20 files: 20 files, and every change set once."""
    handles = [handle((f"file-{number // 25}", number % 25)) for number in range(500)]
    files = files_of([HandleRead(each) for each in handles])
    assert [each.stream.name for each in files] == [f"file-{number}" for number in range(20)]
    assert [len(each.sets) for each in files] == [25] * 20
    assert sum(len(uses) for each in files for _, uses in each.sets) == 500


def test_a_change_set_that_several_reads_need_is_planned_once():
    """As where two states have a handle in common, or one task looks up several ranges."""
    low, high = KeyGroupRange.of(0, 3), KeyGroupRange.of(90, 99)
    reads = [HandleRead(handle(("a", 7), ("b", 0)), (low,)), HandleRead(handle(("b", 0), ("a", 3)), (high,))]
    first, second = files_of(reads)
    assert first.sets == ((3, (SetUse(1, 1),)), (7, (SetUse(0, 0),)))
    assert second.sets == ((0, (SetUse(0, 1), SetUse(1, 0))),)
    assert first.key_groups == second.key_groups == (low, high)


def test_one_read_of_everything_decides():
    (file,) = files_of(
        [HandleRead(handle(("a", 0)), (KeyGroupRange.of(0, 1),)), HandleRead(handle(("a", 0)))]
    )
    assert file.key_groups is None


@pytest.mark.parametrize(
    ("size", "first"),
    [
        (0, Span(0, 0, 0)),
        (WHOLE_FILE_BYTES, Span(0, WHOLE_FILE_BYTES, WHOLE_FILE_BYTES)),
        (WHOLE_FILE_BYTES + 1, Span(WHOLE_FILE_BYTES + 1 - END_BYTES, END_BYTES, END_BYTES)),
    ],
)
def test_a_small_file_is_opened_whole_and_a_large_one_at_its_end(size, first):
    assert opening(size) == first
    assert opening_bytes(size) == min(size, WHOLE_FILE_BYTES)


@pytest.mark.parametrize(
    ("ranges", "requests"),
    [
        ([], 0),
        ([(5, 0)], 0),
        ([(0, 10), (10, 10)], 1),
        ([(0, 10), (10 + GAP_BYTES, 10)], 1),
        ([(0, 10), (11 + GAP_BYTES, 10)], 2),
        ([(0, REQUEST_BYTES), (REQUEST_BYTES, 1)], 2),
        ([(0, REQUEST_BYTES - 1), (REQUEST_BYTES - 1, 1)], 1),
        ([(0, 5 * REQUEST_BYTES)], 1),
        ([(0, 5 * REQUEST_BYTES), (10, 20)], 1),
        ([(0, 5 * REQUEST_BYTES), (10, 5 * REQUEST_BYTES)], 1),
        # A task of two reads every other change set of 512 KiB of a file of 12 MiB.
        ([(at, MIB // 2) for at in range(0, 12 * MIB, MIB)], 2),
    ],
)
def test_near_ranges_are_one_request(ranges, requests):
    assert len(joined(ranges)) == requests
