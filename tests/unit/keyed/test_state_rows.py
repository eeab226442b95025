"""Bounds of the number of rows: what a base, a slice and a change do to them."""

from __future__ import annotations

from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.keyed import OperatorReport, StateRows


def handle(first: int, last: int) -> ChangelogStateHandle:
    return ChangelogStateHandle.from_json(
        {
            "storage": "filesystem",
            "id": "00000000-0000-0000-0000-000000000001",
            "key_groups": [first, last],
            "state_size": 1,
            "checkpointed_size": 1,
            "files": [{"kind": "object", "name": "a", "size": 1, "generation": 1, "crc32c": 2}],
            "entries": [[0, 0]],
        }
    )


def report(
    upserts: int = 0, deletes: int = 0, *, based: tuple[int, int] | None = None, rows: int | None = None
) -> OperatorReport:
    """Of 16 key groups; `based`: with a base of these, of so many rows."""
    changes = (handle(0, 14),) if upserts + deletes else ()
    base = () if based is None else (handle(*based),)
    return OperatorReport(
        "op",
        base + changes,
        ("id",),
        16,
        b"schema",
        upserts,
        deletes,
        base=based == (0, 15),
        base_range=None if based in (None, (0, 15)) else KeyGroupRange.of(*based),
        base_rows=rows,
    )


def after(*reports: OperatorReport, rows: StateRows | None = None, older: bool = False) -> StateRows | None:
    """After these, on a state of which `rows` is known, or on none."""
    before = report(1) if older else None
    for each in reports:
        rows = StateRows.after(rows, before, each)
        before = each
    return rows


def bounds(rows: StateRows | None) -> tuple[int, int | None] | None:
    return None if rows is None else (rows.least, rows.most)


def test_changes_move_each_bound_by_what_they_can() -> None:
    """First changes are counted; an upsert may be of a key that is there, a delete of one that is not."""
    assert bounds(after(report(10))) == (10, 10)
    assert bounds(after(report(10), report(3, 2))) == (8, 13)
    assert bounds(after(report(2), report(5))) == (5, 7)
    assert bounds(after(report(2), report(0, 5))) == (0, 2)


def test_a_base_is_exact() -> None:
    """It is of the state before the checkpoint's own changes."""
    many = report(10), report(10), report(10)
    assert bounds(after(*many, report(based=(0, 15), rows=12))) == (12, 12)
    assert bounds(after(*many, report(1, 1, based=(0, 15), rows=12))) == (11, 13)


def test_a_finished_round_of_slices_counts_as_a_base() -> None:
    """With all changes since its first slice."""
    begun = report(100), report(100), report(based=(0, 7), rows=60), report(2, 1)
    assert bounds(after(*begun)) == (99, 202)
    done = after(*begun, report(3, 0, based=(8, 15), rows=50))
    assert bounds(done) == (109, 115)
    assert done is not None
    assert done.folded == 110


def test_a_slice_out_of_turn_finishes_no_round() -> None:
    """As where a person folds some key groups: the round goes on where it was."""
    begun = report(100), report(100), report(based=(0, 3), rows=30), report(based=(8, 15), rows=50)
    assert bounds(after(*begun)) == (100, 200)
    assert bounds(after(*begun, report(based=(4, 15), rows=90))) == (120, 120)


def test_nothing_is_said_of_what_nobody_counted() -> None:
    """Of a state that an earlier release wrote: until a base, or a finished round, that was counted."""
    assert after(report(5), older=True) is None
    assert after(report(based=(0, 15)), older=True) is None
    assert bounds(after(report(5), report(1, based=(0, 15), rows=7), older=True)) == (7, 8)
    assert bounds(
        after(report(based=(0, 7), rows=3), report(1), report(based=(8, 15), rows=4), older=True)
    ) == (7, 8)


def test_what_is_stored_is_read_again() -> None:
    """With a round that is not finished."""
    rows = after(report(100), report(100), report(1, 1, based=(0, 7), rows=60))
    assert rows is not None
    assert StateRows.from_json(rows.to_json()) == rows
