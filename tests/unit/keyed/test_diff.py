"""What changed between two checkpoints: rows, not log entries."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import Checkpoint, materialize
from dstl_dagster.errors import InvalidInputError, NotFoundError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import StateDiff, compared_runs, diff_checkpoints, diff_states
from dstl_dagster.keyed.read import diff as diff_module
from dstl_dagster.keyed.read import keyed_state
from dstl_dagster.state import StateSchema, key_group_of, replay

if TYPE_CHECKING:
    from tests.unit.conftest import KeyedJob


def row(tail: str | None, flights: int) -> dict[str, Any]:
    return {"tail": tail, "flights": flights}


TAILS = [f"N{number:02}" for number in range(40)]


def found(diffs: Iterable[StateDiff]) -> dict[str, list[Any]]:
    """All runs together: added and removed rows, and pairs of (before, after)."""
    together: dict[str, list[Any]] = {"added": [], "removed": [], "changed": []}
    for each in diffs:
        together["added"] += each.added.to_pylist()
        together["removed"] += each.removed.to_pylist()
        together["changed"] += zip(each.before.to_pylist(), each.after.to_pylist(), strict=True)
    return {what: sorted(rows, key=repr) for what, rows in together.items()}


def difference(keyed: KeyedJob, older: Checkpoint, newer: Checkpoint) -> dict[str, list[Any]]:
    return found(diff_checkpoints(keyed.store, older.manifest, newer.manifest, keyed.OPERATOR))


def test_rows_are_added_changed_and_removed(keyed: KeyedJob) -> None:
    """In both directions; null is a key like any other; a row rewritten unchanged is no difference."""
    one = keyed.changes([row("a", 1), row("b", 1), row("c", 1), row(None, 1)])
    two = keyed.changes([row("a", 2), row("c", 1), row("d", 1), row(None, 2)], [{"tail": "b"}])
    assert difference(keyed, one, two) == {
        "added": [row("d", 1)],
        "removed": [row("b", 1)],
        "changed": sorted([(row("a", 1), row("a", 2)), (row(None, 1), row(None, 2))], key=repr),
    }
    assert difference(keyed, two, one) == {
        "added": [row("b", 1)],
        "removed": [row("d", 1)],
        "changed": sorted([(row("a", 2), row("a", 1)), (row(None, 2), row(None, 1))], key=repr),
    }
    assert list(diff_checkpoints(keyed.store, two.manifest, two.manifest, keyed.OPERATOR)) == []


def test_a_base_between_them_changes_nothing(keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """States are compared: the same rows in different files and ranges are equal."""
    one = keyed.changes([row(tail, 1) for tail in TAILS])
    monkeypatch.setattr(keyed_state, "_SPLIT_BYTES", 300)
    base = materialize(keyed.coordinator, force=True)
    assert base is not None
    assert list(diff_checkpoints(keyed.store, one.manifest, base.manifest, keyed.OPERATOR)) == []
    two = keyed.changes([row("N01", 2)])
    assert difference(keyed, one, two)["changed"] == [(row("N01", 1), row("N01", 2))]


@pytest.mark.parametrize(("module", "limit"), [(keyed_state, "_SPLIT_BYTES"), (replay, "_RUN_BYTES")])
def test_a_large_state_is_compared_in_runs(
    keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch, module: ModuleType, limit: str
) -> None:
    """With more changes than are held, or rows than are compared at a time, the same difference comes in
    several parts, ascending.
    """
    one = keyed.changes([row(tail, 1) for tail in TAILS])
    two = keyed.changes([row(tail, 2) for tail in TAILS[10:]], [{"tail": tail} for tail in TAILS[:10]])
    whole = difference(keyed, one, two)
    monkeypatch.setattr(module, limit, 300)
    parts = list(diff_checkpoints(keyed.store, one.manifest, two.manifest, keyed.OPERATOR))
    assert len(parts) > 3
    starts = [part.key_groups.start_key_group for part in parts]
    assert starts == sorted(starts)
    assert found(parts) == whole
    assert (len(whole["removed"]), len(whole["changed"])) == (10, 30)


def only_what_differs_is_read(keyed: KeyedJob) -> list[KeyGroupRange]:
    """A change in some key groups of one of four tasks; the runs that have to be read for it."""
    one = keyed.changes([row(tail, 1) for tail in TAILS], partitions=4)
    groups = key_group_of(pa.table({"tail": TAILS}), keyed.SCHEMA).tolist()
    mine = [tail for tail, group in zip(TAILS, groups, strict=True) if group in (4, 6)]
    two = keyed.changes([row(tail, 2) for tail in mine], partitions=4)
    changed = difference(keyed, one, two)["changed"]
    assert changed == [(row(tail, 1), row(tail, 2)) for tail in mine]
    return compared_runs(keyed.state(one), keyed.state(two))


def test_key_groups_with_the_same_handles_are_not_read(keyed: KeyedJob) -> None:
    """Where no handle was added, nothing can differ."""
    assert only_what_differs_is_read(keyed) == [KeyGroupRange.of(4, 6)]


def test_a_wrong_skip_is_found(keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: a comparison that looks only at the oldest handle skips what changed."""
    right = diff_module._key_groups_by_handle
    monkeypatch.setattr(diff_module, "_key_groups_by_handle", lambda state: dict([*right(state).items()][:1]))
    with pytest.raises(AssertionError):
        only_what_differs_is_read(keyed)


def test_states_with_different_columns_are_compared_in_the_evolved_schema(keyed: KeyedJob) -> None:
    """A new column is null in older rows, and equals null; numbers are compared in the wider type."""
    narrow = StateSchema.of(pa.schema({"tail": pa.string(), "flights": pa.int32()}), ["tail"], 16)
    one = keyed.changes([row("a", 1), row("b", 1)], schema=narrow)
    noted = StateSchema.of(
        pa.schema({"tail": pa.string(), "flights": pa.int64(), "note": pa.list_(pa.string())}), ["tail"], 16
    )
    two = keyed.changes(
        [{"tail": "a", "flights": 1, "note": None}, {"tail": "b", "flights": 1, "note": ["x"]}], schema=noted
    )
    assert difference(keyed, one, two) == {
        "added": [],
        "removed": [],
        "changed": [
            ({"tail": "b", "flights": 1, "note": None}, {"tail": "b", "flights": 1, "note": ["x"]}),
        ],
    }


def test_before_the_operator_there_was_nothing(keyed: KeyedJob) -> None:
    """Against a checkpoint that has no state of it yet, every row is added; never written is an error."""
    one = keyed.changes([row("a", 1)])
    attempt = keyed.coordinator.trigger()
    two = keyed.complete(attempt, keyed.report(attempt, [row("x", 1)], operator="late"))
    late = diff_checkpoints(keyed.store, one.manifest, two.manifest, "late")
    assert found(late) == {"added": [row("x", 1)], "removed": [], "changed": []}
    gone = diff_checkpoints(keyed.store, two.manifest, one.manifest, "late")
    assert found(gone) == {"added": [], "removed": [row("x", 1)], "changed": []}
    with pytest.raises(NotFoundError, match="'never'"):
        diff_checkpoints(keyed.store, one.manifest, two.manifest, "never")


def test_states_with_different_keys_are_not_compared(keyed: KeyedJob) -> None:
    """Two operators whose keys differ have no common rows to compare: refused at once."""
    one = keyed.changes([row("a", 1)])
    attempt = keyed.coordinator.trigger()
    other = StateSchema.of(pa.schema({"tail": pa.string(), "id": pa.int64()}), ["id"], 16)
    keyed.complete(attempt, keyed.report(attempt, [{"id": 1}], schema=other, operator="other"))
    with pytest.raises(InvalidInputError) as refused:
        diff_states(keyed.state(one), keyed.state(operator="other"))
    assert refused.value.kind == "schema_change"


def test_states_with_two_columns_of_one_name_are_not_compared(keyed: KeyedJob) -> None:
    """As where a state was replaced by one of other columns, of which one was renamed then."""
    one = keyed.changes([row("a", 1)])
    attempt = keyed.coordinator.trigger()
    other = StateSchema.of(pa.schema({"tail": pa.string(), "legs": pa.int64()}), ["tail"], 16)
    renamed = other.with_renamed("legs", "flights")
    keyed.complete(attempt, keyed.report(attempt, [row("a", 1)], schema=renamed, operator="other"))
    with pytest.raises(InvalidInputError, match=r"'flights' names two .*: read each by itself"):
        diff_states(keyed.state(one), keyed.state(operator="other"))
