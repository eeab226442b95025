"""Bounds of the number of rows: what merges and changes do to them."""

from __future__ import annotations

from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StreamStateHandle
from dstl_dagster.keyed import OperatorReport, Run, StateRows, merged_runs
from dstl_dagster.keyed.documents.runs import Merge


def handle(first: int, last: int) -> ChangelogStateHandle:
    return ChangelogStateHandle(((StreamStateHandle("a", 1, 1, 2), 0),), KeyGroupRange.of(first, last), 1, 1)


def report(
    upserts: int = 0, deletes: int = 0, *, merged: tuple[int, int] | None = None, rows: int = 0
) -> OperatorReport:
    """Of 16 key groups; `merged`: with a whole merge of these, of so many rows."""
    changes = (handle(0, 15),) if upserts + deletes else ()
    merges = ()
    if merged is not None:
        run = Run(0, 0, (handle(*merged),), merged=True, whole=True, upserts=rows, deletes=0)
        merges = (Merge(KeyGroupRange.of(*merged), run),)
    return OperatorReport("op", changes, ("id",), 16, b"schema", upserts, deletes, merges=merges)


def after(*reports: OperatorReport, rows: StateRows | None = None, older: bool = False) -> StateRows | None:
    """After these, on a state of which `rows` is known, or on none."""
    before = report(1) if older else None
    runs: tuple[Run, ...] = (Run(0, 0, (handle(0, 15),), whole=True),) if older else ()
    for number, each in enumerate(reports, 1):
        runs = merged_runs(runs, each.merges)
        if each.handles:
            runs = (*runs, Run(number, number, each.handles, upserts=each.upserts, deletes=each.deletes))
        rows = StateRows.after(rows, before, each, runs)
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


def test_a_merge_of_all_is_exact() -> None:
    """It is of the state before the checkpoint's own changes."""
    many = report(10), report(10), report(10)
    assert bounds(after(*many, report(merged=(0, 15), rows=12))) == (12, 12)
    assert bounds(after(*many, report(1, 1, merged=(0, 15), rows=12))) == (11, 13)


def test_merges_of_parts_bring_the_bounds_together() -> None:
    """There are no more rows than the runs have upserts; a run of which a part is left counts as a whole."""
    begun = report(100), report(100), report(merged=(0, 7), rows=60)
    assert bounds(after(*begun)) == (100, 200)
    assert bounds(after(*begun, report(merged=(8, 15), rows=50))) == (100, 110)
    assert bounds(after(*begun, report(3, 1, merged=(8, 15), rows=50))) == (99, 113)


def test_nothing_is_said_of_what_nobody_counted() -> None:
    """Until all of it was merged, at once or in parts."""
    assert after(report(5), older=True) is None
    assert bounds(after(report(5), report(1, merged=(0, 15), rows=7), older=True)) == (7, 8)
    parts = report(merged=(0, 7), rows=3), report(1), report(merged=(8, 15), rows=4)
    assert bounds(after(*parts, older=True)) == (0, 8)


def test_what_is_stored_is_read_again() -> None:
    """Whatever is known."""
    rows = after(report(100), report(100), report(1, 1, merged=(0, 7), rows=60))
    assert rows is not None
    assert StateRows.from_json(rows.to_json()) == rows
