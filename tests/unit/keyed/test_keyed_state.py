"""Keyed state is read without Spark: all of it, some key groups, one row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dstl_dagster.errors import InvalidInputError, NotFoundError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import KeyedState
from dstl_dagster.keyed.read import keyed_state
from dstl_dagster.state import StateSchema, key_group_of
from dstl_dagster.storage import Generation

if TYPE_CHECKING:
    from tests.unit.conftest import CountingStore, Job, KeyedJob


def row(tail: str | None, flights: int) -> dict[str, object]:
    return {"tail": tail, "flights": flights}


TAILS = [f"N{number}" for number in range(40)]


def test_the_last_change_of_each_key_is_read(keyed: KeyedJob) -> None:
    """Later changes replace earlier ones, tombstones leave nothing, an older checkpoint stays as it was."""
    first = keyed.changes([row("a", 1), row("b", 1), row(None, 3)])
    second = keyed.changes([row("a", 2), row("c", 1)], [{"tail": "b"}])
    assert keyed.rows(second) == [row("a", 2), row("c", 1), row(None, 3)]
    assert keyed.rows(first) == [row("a", 1), row("b", 1), row(None, 3)]


def test_the_schema_is_that_of_all_reports(keyed: KeyedJob) -> None:
    """A column that a later checkpoint added, and one that it left out, are both there; types are widened."""
    narrow = StateSchema.of(pa.schema({"tail": pa.string(), "flights": pa.int32()}), ["tail"], 16)
    keyed.changes([row("a", 1)], schema=narrow)
    wide = StateSchema.of(
        pa.schema({"tail": pa.string(), "note": pa.string(), "flights": pa.int64()}), ["tail"], 16
    )
    keyed.changes([{"tail": "b", "note": "x", "flights": 2**40}], schema=wide)
    assert keyed.state().schema == wide
    assert keyed.rows() == [
        {"tail": "a", "note": None, "flights": 1},
        {"tail": "b", "note": "x", "flights": 2**40},
    ]


def test_a_range_reads_only_files_that_intersect_it(
    keyed_on: type[KeyedJob], counting_store: CountingStore
) -> None:
    """Only one of four handles is opened for key groups that it alone holds."""
    store = counting_store
    keyed = keyed_on(store)
    keyed.changes([row(tail, 1) for tail in TAILS], partitions=4)
    store.read.clear()
    state = keyed.state()
    wanted = KeyGroupRange.of(4, 7)
    found = pa.concat_tables(state.tables([wanted]))
    groups = dict(zip(TAILS, key_group_of(pa.table({"tail": TAILS}), state.schema).tolist(), strict=True))
    assert set(found.column("tail").to_pylist()) == {tail for tail in TAILS if wanted.contains(groups[tail])}
    assert store.changelog_files == 1


def test_one_row_is_found_by_its_key(keyed_on: type[KeyedJob], counting_store: CountingStore) -> None:
    """Null is a key like any other; what is deleted or was never there is None; one file is read."""
    store = counting_store
    keyed = keyed_on(store)
    keyed.changes([row(tail, at) for at, tail in enumerate(TAILS)] + [row(None, 7)], partitions=16)
    keyed.changes([], [{"tail": "N3"}], partitions=16)
    state = keyed.state()
    store.read.clear()
    assert state.row({"tail": "N8"}) == row("N8", 8)
    assert store.changelog_files == 1
    assert state.row({"tail": None}) == row(None, 7)
    assert state.row({"tail": "N3"}) is None
    assert state.row({"tail": "nobody"}) is None


def test_large_state_is_held_in_parts(keyed: KeyedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more changes than are held at a time, the same rows come, one range of key groups at a time."""
    keyed.changes([row(tail, 1) for tail in TAILS])
    state = keyed.state()
    whole = [each for table in state.tables() for each in table.to_pylist()]
    assert len(state.ranges()) == 1
    monkeypatch.setattr(keyed_state, "_SPLIT_BYTES", 300)
    tables = list(state.tables())
    assert len(state.ranges()) > 3
    assert len(tables) > 3
    assert [each for table in tables for each in table.to_pylist()] == whole


@pytest.mark.parametrize("key", [{}, {"flights": 1}, {"tail": "a", "flights": 1}, {"tail": 5}])
def test_a_key_with_the_wrong_columns_is_refused(keyed: KeyedJob, key: dict[str, object]) -> None:
    """A key has exactly the key columns, and values of their types."""
    keyed.changes([row("a", 1)])
    with pytest.raises(InvalidInputError, match="key"):
        keyed.state().row(key)


def test_an_operator_that_never_wrote_has_no_state(keyed: KeyedJob) -> None:
    """Absent is None, not an empty state of unknown columns."""
    assert KeyedState.of(keyed.store, keyed.changes([row("a", 1)]).manifest, "other") is None


def test_a_log_of_own_bytes_is_not_keyed_state(job: Job) -> None:
    """Changes without a schema are refused by name, before any file is read."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    coordinator.record(attempt, {"totals": job.changes(attempt).handles})
    with pytest.raises(InvalidInputError, match="keeps a log of its own") as refused:
        KeyedState.of(job.store, coordinator.confirm(attempt).manifest, "totals")
    assert refused.value.kind == "invalid_input"


def test_a_file_deleted_meanwhile_is_reported_as_damage(keyed: KeyedJob) -> None:
    """A file that is missing while the state is read, of a checkpoint that no record subsumed."""
    keyed.changes([row("a", 1)])
    state = keyed.state()
    (name,) = [name for name in keyed.names() if "/changelog/" in name]
    stat = keyed.store.stat(name)
    assert stat is not None
    keyed.store.delete(name, precondition=Generation(stat.generation))
    with pytest.raises(NotFoundError, match="'aircraft' at checkpoint 1") as gone:
        list(state.tables())
    assert gone.value.kind == "state_missing"


def test_null_equals_null_in_a_key_of_two_columns(keyed: KeyedJob) -> None:
    """Rows are compared column by column, and null is equal to null alone."""
    schema = StateSchema.of(pa.schema({"a": pa.string(), "b": pa.int64()}), ["a", "b"], 2)
    rows = [{"a": "x", "b": 1}, {"a": "x", "b": None}, {"a": None, "b": None}, {"a": None, "b": 1}]
    keyed.changes(rows, schema=schema)
    assert [keyed.state().row(key) for key in rows] == rows
    assert keyed.state().row({"a": "y", "b": None}) is None
