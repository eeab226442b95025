"""The changes of one key, checkpoint by checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import Checkpoint, materialize
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.keyed import KeyChange, key_history
from dstl_dagster.keyed.documents import entries
from dstl_dagster.state import StateSchema, key_group_of

if TYPE_CHECKING:
    from tests.unit.conftest import CountingStore, KeyedJob


def row(tail: str | None, flights: int) -> dict[str, Any]:
    return {"tail": tail, "flights": flights}


def history(keyed: KeyedJob, tail: str | None, at: Checkpoint | None = None) -> list[KeyChange]:
    checkpoint = at or keyed.coordinator.latest()
    assert checkpoint is not None
    return key_history(keyed.store, checkpoint.manifest, keyed.OPERATOR, {"tail": tail})


def test_each_change_is_listed_once_oldest_first(keyed: KeyedJob) -> None:
    """Checkpoints that did not touch the key are not listed; a deletion has no row."""
    keyed.changes([row("a", 1), row("b", 1), row(None, 1)])
    two = keyed.changes([row("b", 2)])
    keyed.changes([], [{"tail": "a"}])
    keyed.changes([row("a", 4), row(None, 4)])
    assert history(keyed, "a") == [
        KeyChange(1, "upsert", row("a", 1)),
        KeyChange(3, "delete", None),
        KeyChange(4, "upsert", row("a", 4)),
    ]
    assert [each.checkpoint_id for each in history(keyed, "b")] == [1, 2]
    assert [each.checkpoint_id for each in history(keyed, None)] == [1, 4]
    assert history(keyed, "a", two) == [KeyChange(1, "upsert", row("a", 1))]
    assert history(keyed, "nobody") == []


def test_a_merge_says_from_before(keyed: KeyedJob) -> None:
    """Of what was merged only the outcome is known; a key deleted before it has no history."""
    keyed.changes([row("a", 1), row("b", 1)])
    keyed.changes([row("a", 2)], [{"tail": "b"}])
    assert materialize(keyed.coordinator, force=True) is not None
    keyed.changes([row("a", 4), row("b", 4)])
    assert history(keyed, "a") == [
        KeyChange(2, "from before", row("a", 2)),
        KeyChange(4, "upsert", row("a", 4)),
    ]
    assert history(keyed, "b") == [KeyChange(4, "upsert", row("b", 4))]


def make_merge_and_changes(keyed: KeyedJob) -> None:
    keyed.changes([row("a", 1), row("b", 1), row("c", 1)])
    keyed.merging([row("a", 2)], [{"tail": "b"}])


def they_are_separated(keyed: KeyedJob) -> bool:
    before = [KeyChange(1, "from before", row(tail, 1)) for tail in "abc"]
    return (
        history(keyed, "a") == [before[0], KeyChange(2, "upsert", row("a", 2))]
        and history(keyed, "b") == [before[1], KeyChange(2, "delete", None)]
        and history(keyed, "c") == [before[2]]
    )


def test_a_checkpoint_with_merge_and_changes_lists_both(
    keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merged row is from before, and the checkpoint's own change follows it.

    The check can fail: if runs do not say so, what was merged looks like a change.
    """
    make_merge_and_changes(keyed)
    assert they_are_separated(keyed)
    original = entries.decode_runs
    monkeypatch.setattr(
        entries,
        "decode_runs",
        lambda fields: tuple(replace(run, merged=False) for run in original(fields)),
    )
    keyed = type(keyed)(keyed.store)
    assert not they_are_separated(keyed)


def test_a_deletion_that_was_merged_is_listed_above_older_runs(keyed: KeyedJob) -> None:
    """Where something older is left, the merge holds the tombstone."""
    keyed.changes([row("a", 1)])
    keyed.changes([row("a", 2)])
    keyed.changes([], [{"tail": "a"}])
    keyed.merging(first=2)
    assert history(keyed, "a") == [KeyChange(1, "upsert", row("a", 1)), KeyChange(3, "from before", None)]


def test_rows_have_the_newest_columns(keyed: KeyedJob) -> None:
    """An old row is null in a column that was added later."""
    keyed.changes([row("a", 1)])
    noted = StateSchema.of(
        pa.schema({"tail": pa.string(), "flights": pa.int64(), "note": pa.string()}), ["tail"], 16
    )
    keyed.changes([{"tail": "a", "note": "x"}], schema=noted)
    assert [each.row for each in history(keyed, "a")] == [
        {"tail": "a", "flights": 1, "note": None},
        {"tail": "a", "flights": None, "note": "x"},
    ]


def test_files_of_other_key_groups_are_not_read(
    keyed_on: type[KeyedJob], counting_store: CountingStore
) -> None:
    """Of sixteen files per checkpoint, only one can hold the key."""
    keyed = keyed_on(counting_store)
    tails = [f"N{number}" for number in range(100)]
    assert len(set(key_group_of(pa.table({"tail": tails}), keyed.SCHEMA).tolist())) == 16
    for flights in range(2):
        keyed.changes([row(tail, flights) for tail in tails], partitions=16)
    latest = keyed.coordinator.latest()
    counting_store.read.clear()
    assert len(history(keyed, "N7", latest)) == 2
    assert counting_store.changelog_files == 2


def test_what_has_no_state_has_no_history(keyed: KeyedJob) -> None:
    """An operator that never wrote has no history; a key with the wrong columns is an error."""
    latest = keyed.changes([row("a", 1)])
    assert key_history(keyed.store, latest.manifest, "other", {"tail": "a"}) == []
    with pytest.raises(InvalidInputError, match="columns tail"):
        key_history(keyed.store, latest.manifest, keyed.OPERATOR, {"id": 1})
