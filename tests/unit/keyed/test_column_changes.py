"""Columns dropped and renamed on purpose: every older checkpoint, log and base is read by the new names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dstl_dagster.checkpoint import (
    Batch,
    Checkpoint,
    CheckpointCoordinator,
    change_columns,
    changed_schema,
    materialize,
)
from dstl_dagster.errors import FormatError, InvalidInputError, NotFoundError
from dstl_dagster.format import ColumnIds
from dstl_dagster.keyed import (
    KeyedState,
    diff_checkpoints,
    export_checkpoint,
    key_history,
    load_report,
    write_rows,
)
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.state import ColumnChanges, StateSchema
from dstl_dagster.storage import LocalObjectStore, MemoryObjectStore

Rows = list[dict[str, Any]]
TYPES = {"id": pa.int64(), "a": pa.int64(), "x": pa.string(), "b": pa.int64()}


@pytest.fixture
def coordinator() -> CheckpointCoordinator:
    """Two checkpoints with the columns `id`, `a` and `x`."""
    made = CheckpointCoordinator("job", MemoryObjectStore(), owner="test")
    write(made, [{"id": 1, "a": 10, "x": "one"}, {"id": 2, "a": 20, "x": "two"}])
    write(made, [{"id": 3, "a": 30, "x": "three"}])
    return made


def write(
    coordinator: CheckpointCoordinator,
    rows: Rows,
    drop: tuple[str, ...] = (),
    rename: Mapping[str, str] | None = None,
    **types: pa.DataType,
) -> Checkpoint:
    """One checkpoint in which columns change and then these rows are written."""
    batch = Batch.open(coordinator)
    names = list(rows[0]) if rows else ["id"]
    columns = pa.schema([(name, {**TYPES, **types}[name]) for name in names])
    before = batch.schema("op")
    if before is None:
        schema = StateSchema.of(columns, ["id"], 8, ["id"])
    else:
        before = ColumnChanges.of(drop, rename).applied_to(before)
        schema = before.evolved_to(StateSchema.of(columns, before.key_columns, 8))
    table = pa.Table.from_pylist(rows, columns)
    batch.add(write_rows(table, batch.attempt, coordinator.store, operator="op", schema=schema, partitions=2))
    batch.merge_due_runs()
    return batch.complete()


def state(coordinator: CheckpointCoordinator, at: int | None = None) -> KeyedState:
    checkpoint = coordinator.latest() if at is None else coordinator.get(at)
    assert checkpoint is not None
    found = KeyedState.of(coordinator.store, checkpoint.manifest, "op")
    assert found is not None
    return found


def rows(coordinator: CheckpointCoordinator, at: int | None = None) -> Rows:
    found = state(coordinator, at)
    assert coordinator.verify(at).ok
    return sorted((row for table in found.tables() for row in table.to_pylist()), key=lambda row: row["id"])


def test_a_dropped_and_a_renamed_column_over_an_older_log(coordinator):
    """Rows written before are read by the new names; those checkpoints keep theirs."""
    before = rows(coordinator)
    write(coordinator, [{"id": 2, "b": 21}], drop=("x",), rename={"a": "b"})
    assert rows(coordinator) == [{"id": 1, "b": 10}, {"id": 2, "b": 21}, {"id": 3, "b": 30}]
    assert rows(coordinator, 2) == before


@pytest.mark.parametrize("fold", [False, True], ids=["log", "base"])
def test_a_dropped_name_of_the_same_type_is_a_new_column_too(coordinator, fold):
    """Though the log then has the same names and types before and after."""
    write(coordinator, [], drop=("x",))
    if fold:
        materialize(coordinator, force=True)
    write(coordinator, [{"id": 1, "a": 11, "x": "new"}])
    assert [row["x"] for row in rows(coordinator)] == ["new", None, None]
    write(coordinator, [{"id": 2, "a": 21, "x": "newer"}], drop=())
    assert [row["x"] for row in rows(coordinator)] == ["new", "newer", None]


@pytest.mark.parametrize("fold", [False, True], ids=["log", "base"])
def test_a_dropped_name_that_comes_back_is_a_new_column(coordinator, fold):
    """Of any type; no old value comes back, over a log or a base, nor in a diff."""
    write(coordinator, [{"id": 2, "a": 21}], drop=("x",))
    if fold:
        materialize(coordinator, force=True)
    write(coordinator, [{"id": 1, "a": 11, "x": 5}], x=pa.int32())
    assert rows(coordinator) == [
        {"id": 1, "a": 11, "x": 5},
        {"id": 2, "a": 21, "x": None},
        {"id": 3, "a": 30, "x": None},
    ]
    for older, newer in ((2, coordinator.latest().checkpoint_id), (coordinator.latest().checkpoint_id, 2)):
        manifests = [coordinator.get(each).manifest for each in (older, newer)]
        found = pa.concat_tables(
            [each.after for each in diff_checkpoints(coordinator.store, *manifests, "op")]
        )
        assert sorted(found.column("id").to_pylist()) == [1, 2]
        assert found.schema.field("x").type == pa.int32()


def test_a_change_without_rows_is_a_checkpoint_of_its_own(coordinator):
    """It keeps positions and changes no row; the next batch, base and quiet checkpoint keep its columns."""
    latest = coordinator.latest()
    made = change_columns(coordinator, latest, "op", ColumnChanges.of(["x"], {"a": "b"}))
    expected = [{"id": 1, "b": 10}, {"id": 2, "b": 20}, {"id": 3, "b": 30}]
    assert made.manifest.changes == 0
    assert rows(coordinator) == expected
    assert list(diff_checkpoints(coordinator.store, latest.manifest, made.manifest, "op")) == []
    Batch.open(coordinator).complete()
    assert rows(coordinator) == expected
    materialize(coordinator, force=True)
    assert rows(coordinator) == expected
    (run,) = coordinator.latest().manifest.operators["op"].runs
    assert run.whole
    write(coordinator, [{"id": 1, "b": 11}])
    assert rows(coordinator) == [{"id": 1, "b": 11}, *expected[1:]]
    newest = coordinator.latest().manifest
    (found,) = diff_checkpoints(coordinator.store, latest.manifest, newest, "op")
    assert (found.before.to_pylist(), found.after.to_pylist()) == ([expected[0]], [{"id": 1, "b": 11}])
    (found,) = diff_checkpoints(coordinator.store, newest, latest.manifest, "op")
    assert found.after.to_pylist() == [{"id": 1, "a": 10}]


def test_a_batch_that_merges_writes_no_dropped_column(coordinator):
    """The runs of the checkpoint of the change have the new columns alone, and nothing older is needed."""
    folding = CheckpointCoordinator(
        "job", coordinator.store, CheckpointOptions(materialize_max_runs=2), owner="test"
    )
    made = write(folding, [{"id": 1, "b": 11}], drop=("x",), rename={"a": "b"})
    entry = made.manifest.operators["op"]
    assert [run.merged for run in entry.runs] == [True, False]
    assert rows(folding) == [{"id": 1, "b": 11}, {"id": 2, "b": 20}, {"id": 3, "b": 30}]
    for handle in entry.handles:
        for stream, _offset in handle.handles_and_offsets:
            assert b"three" not in folding.store.get(stream.name)
    found = state(folding)
    with found.reading() as reader:
        logged = [
            StateSchema.from_bytes(batch.column(1)[0].as_py()).columns.names
            for handle in entry.handles
            for batch in reader.read_batches(handle)
            if batch.column(0)[0].as_py() == -1
        ]
    assert logged
    assert all(names == ["id", "b"] for names in logged)


def test_a_state_that_has_no_rows_yet() -> None:
    """Its columns change like any other's, and it reads as a table without rows."""
    coordinator = CheckpointCoordinator("job", MemoryObjectStore(), owner="test")
    batch = Batch.open(coordinator)
    empty = schema("a").columns.empty_table()
    batch.add(write_rows(empty, batch.attempt, coordinator.store, operator="op", schema=schema("a")))
    made = change_columns(coordinator, batch.complete(), "op", ColumnChanges.of([], {"a": "b"}))
    assert changed_schema(coordinator, made, "op", ColumnChanges()).columns.names == ["id", "b"]
    assert rows(coordinator) == []
    with pytest.raises(NotFoundError) as caught:
        change_columns(coordinator, made, "other", ColumnChanges.of(["a"]))
    assert caught.value.kind == "no_state"


def test_columns_may_swap_names_in_two_steps(coordinator):
    """Ids, not positions or types, tell columns apart: both are whole numbers."""
    write(coordinator, [{"id": 1, "a": 10, "b": 100}])
    write(coordinator, [{"id": 2, "c": 20, "b": 200}], rename={"a": "c"}, c=pa.int64())
    write(coordinator, [{"id": 3, "c": 30, "a": 300}], rename={"b": "a"}, c=pa.int64())
    write(coordinator, [{"id": 4, "b": 40, "a": 400}], rename={"c": "b"})
    found = [{name: row[name] for name in ("id", "a", "b")} for row in rows(coordinator)]
    assert found == [
        {"id": 1, "a": 100, "b": 10},
        {"id": 2, "a": 200, "b": 20},
        {"id": 3, "a": 300, "b": 30},
        {"id": 4, "a": 400, "b": 40},
    ]


def test_a_new_column_of_a_renamed_ones_name_is_compared_in_either_direction(coordinator):
    """By the names of the later checkpoint, which knows both columns."""
    write(coordinator, [{"id": 1, "b": 11}], rename={"a": "b"})
    write(coordinator, [{"id": 2, "b": 21, "a": 7}], a=pa.int64())
    manifests = [coordinator.get(each).manifest for each in (1, coordinator.latest().checkpoint_id)]
    for pair in (manifests, manifests[::-1]):
        found = [each for each in diff_checkpoints(coordinator.store, *pair, "op") if each.rows]
        after = {row["id"]: row for each in found for row in each.after.to_pylist()}
        if pair is manifests:
            assert (after[2]["a"], after[2]["b"]) == (7, 21)
        else:
            assert (after[2]["a"], after[2]["b"]) == (None, 20)


def test_a_restore_to_before_the_change(coordinator):
    """The job has the old columns again, and the same request changes them again."""
    change = {"drop": ("x",), "rename": {"a": "b"}}
    write(coordinator, [{"id": 1, "b": 11}], **change)
    write(coordinator, [{"id": 2, "b": 21}], **change)  # nothing left to do
    coordinator.savepoint(4, "later")
    coordinator.restore(1)
    assert rows(coordinator) == [{"id": 1, "a": 10, "x": "one"}, {"id": 2, "a": 20, "x": "two"}]
    write(coordinator, [{"id": 2, "b": 22}], **change)
    assert rows(coordinator) == [{"id": 1, "b": 10}, {"id": 2, "b": 22}]
    assert rows(coordinator, 4) == [{"id": 1, "b": 11}, {"id": 2, "b": 21}, {"id": 3, "b": 30}]
    manifests = [coordinator.get(each).manifest for each in (4, coordinator.latest().checkpoint_id)]
    (found,) = (
        each for each in diff_checkpoints(coordinator.store, *manifests, "op") if each.removed.num_rows
    )
    assert found.removed.to_pylist() == [{"id": 3, "b": 30}]


def test_history_and_export_have_the_new_columns(coordinator, tmp_path):
    """Of the checkpoint that they are asked of; a look-up reads one key group."""
    write(coordinator, [{"id": 1, "b": 11}], drop=("x",), rename={"a": "b"})
    manifest = coordinator.latest().manifest
    changes = key_history(coordinator.store, manifest, "op", {"id": 1})
    assert [each.row for each in changes] == [{"id": 1, "b": 10}, {"id": 1, "b": 11}]
    assert state(coordinator).row({"id": 3}) == {"id": 3, "b": 30}
    assert state(coordinator, 2).row({"id": 3}) == {"id": 3, "a": 30, "x": "three"}
    done = export_checkpoint(coordinator.store, manifest, "op", LocalObjectStore(tmp_path).uri)
    assert pq.read_schema(done.uris[0].removeprefix("file://")).names == ["id", "b"]


def test_a_key_column_can_be_renamed_and_not_dropped(coordinator):
    """Its hash does not depend on its name."""
    write(coordinator, [{"key": 1, "a": 11, "x": None}], rename={"id": "key"}, key=pa.int64())
    assert state(coordinator).row({"key": 1}) == {"key": 1, "a": 11, "x": None}
    assert state(coordinator).row({"key": 3}) == {"key": 3, "a": 30, "x": "three"}
    materialize(coordinator, force=True)
    assert state(coordinator).row({"key": 3}) == {"key": 3, "a": 30, "x": "three"}
    with pytest.raises(InvalidInputError, match="'key' is a key column and cannot be dropped") as caught:
        change_columns(coordinator, coordinator.latest(), "op", ColumnChanges.of(["key"]))
    assert caught.value.kind == "schema_change"


def test_a_writer_that_does_not_know_what_was_dropped_is_refused(coordinator):
    """Step 4 refuses it: its next reader would see the old values."""
    write(coordinator, [{"id": 1, "b": 11}], drop=("x",), rename={"a": "b"})
    attempt = coordinator.trigger()
    columns = pa.schema({name: TYPES[name] for name in ("id", "a", "x")})
    table = pa.table({"id": [1]}, pa.schema({"id": pa.int64()}))
    elsewhere = StateSchema.of(columns, ["id"], 8)
    report = write_rows(table, attempt, coordinator.store, operator="op", schema=elsewhere)
    with pytest.raises(InvalidInputError, match=r"started with partition columns \('id',\) and now has \(\)"):
        coordinator.record(attempt, [report], [])
    ignorant = StateSchema.of(columns, ["id"], 8, ["id"])
    report = write_rows(table, attempt, coordinator.store, operator="op", schema=ignorant)
    with pytest.raises(InvalidInputError, match="without its state's schema") as caught:
        coordinator.record(attempt, [report])
    assert caught.value.kind == "schema_change"


def test_documents_with_ids_are_read_again(coordinator):
    """A report, a manifest and the schema in a log."""
    before = state(coordinator).schema
    for schema in (before, before.without("x")):
        batch = Batch.open(coordinator)
        table = pa.table({"id": [1]}, pa.schema({"id": pa.int64()}))
        written = write_rows(table, batch.attempt, coordinator.store, operator="op", schema=schema)
        batch.add(written)
        batch.hand_over()
        assert load_report(coordinator.store, batch.attempt).operators == (written,)
        batch.complete()
        assert coordinator.latest().manifest.operators["op"].report == written
        assert StateSchema.from_bytes(schema.to_bytes()) == schema


@pytest.mark.parametrize(
    ("drop", "rename"),
    [
        (["x", "x"], {}),
        (["x"], {"x": "y"}),
        (["x"], {"a": "x"}),
        ([], {"a": "b", "b": "a"}),
        ([], {"a": "a"}),
    ],
)
def test_a_request_that_would_do_something_else_when_asked_again(drop, rename):
    """A swap swaps back; a column renamed to a dropped name would be dropped next time."""
    with pytest.raises(InvalidInputError, match="twice in one request") as caught:
        ColumnChanges.of(drop, rename)
    assert caught.value.kind == "schema_change"


def schema(*names: str) -> StateSchema:
    return StateSchema.of(pa.schema({"id": pa.int64()} | dict.fromkeys(names, pa.string())), ["id"], 8)


def test_what_is_so_already_stays():
    """A writer's request stands for many batches; a person's is about what is there now."""
    changes = ColumnChanges.of(["x"], {"a": "b"})
    once = changes.applied_to(schema("a", "x"))
    assert once.columns.names == ["id", "b"]
    assert changes.applied_to(once) == once
    assert changes.applied_to(schema("y")) == schema("y")
    with pytest.raises(InvalidInputError, match="no column 'x': it has id, b"):
        changes.applied_to(once, strict=True)
    with pytest.raises(InvalidInputError, match="the state has both"):
        changes.applied_to(schema("a", "b", "x"))


def test_the_case_of_a_name():
    """It can be changed, or one of two that differ in nothing else dropped; never another one by accident."""
    cased = ColumnChanges.of([], {"Name": "name"})
    once = cased.applied_to(schema("Name"))
    assert once.columns.names == ["id", "name"]
    assert cased.applied_to(once) == once
    cased.refuse_written(["other"])
    twins = ColumnChanges.of(["Name"])
    assert twins.applied_to(twins.applied_to(schema("Name", "name"))).columns.names == ["id", "name"]
    with pytest.raises(InvalidInputError, match="no column 'NAME': did you mean 'Name'"):
        ColumnChanges.of(["NAME"]).applied_to(schema("Name"))
    with pytest.raises(InvalidInputError, match="differ only in case"):
        ColumnChanges.of([], {"a": "NAME"}).applied_to(schema("a", "Name"))
    both = ColumnChanges.of([], {"a": "NAME"}).applied_to(schema("a", "Name"), case_sensitive=True)
    assert both.columns.names == ["id", "NAME", "Name"]


def test_a_batch_does_not_write_what_it_drops():
    """Else every batch would bring the column back, and the next one drop it."""
    changes = ColumnChanges.of(["x"], {"a": "b"})
    for name in ("x", "A"):
        with pytest.raises(InvalidInputError, match=f"{name!r} is dropped or renamed, and"):
            changes.refuse_written([name])
    changes.refuse_written(["A"], case_sensitive=True)


@pytest.mark.parametrize(
    "ids",
    [
        ColumnIds({"nobody": "a"}, {}),
        ColumnIds({"a": "x"}, {}),
        ColumnIds({"a": "old"}, {"x": "x"}),
        ColumnIds({}, {"id": "id"}),
    ],
)
def test_ids_that_do_not_fit_the_columns_are_a_format_error(ids):
    """An id for no column, for two, or of a dropped one."""
    stored = schema("a", "x")
    with pytest.raises(FormatError):
        StateSchema.from_parts(stored.arrow_message, stored.key_columns, 8, ids)
