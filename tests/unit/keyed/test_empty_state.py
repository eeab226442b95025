"""A state whose operator has written no row yet: it has columns, and is read like any other."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import dstl_dagster
from dstl_dagster.checkpoint import (
    Batch,
    CheckpointCoordinator,
    change_columns,
    materialize,
)
from dstl_dagster.cli import main
from dstl_dagster.keyed import KeyedState, diff_checkpoints, export_checkpoint, key_history, write_rows
from dstl_dagster.state import ColumnChanges, StateSchema
from dstl_dagster.storage import LocalObjectStore

SCHEMA = StateSchema.of(pa.schema({"id": pa.int64(), "a": pa.int64()}), ["id"], 8)


def write(coordinator: CheckpointCoordinator, rows: list[dict[str, Any]]) -> int:
    batch = Batch.open(coordinator)
    schema = batch.schema("op") or SCHEMA
    table = pa.Table.from_pylist(rows, schema.columns)
    batch.add(write_rows(table, batch.attempt, coordinator.store, operator="op", schema=schema, partitions=2))
    return batch.complete().checkpoint_id


@pytest.fixture
def job(tmp_path) -> CheckpointCoordinator:
    """One checkpoint, of a batch without rows."""
    store = LocalObjectStore(tmp_path / "store", durable=False)
    made = CheckpointCoordinator("job", store, owner="test")
    assert write(made, []) == 1
    return made


def test_it_has_its_columns_and_no_row(job, tmp_path):
    """In every way of reading; by each of them also at a later checkpoint without rows."""
    write(job, [])
    for at in (1, 2):
        manifest = job.get(at).manifest
        scan = dstl_dagster.read_state(job.store.uri, "job", "op", at)
        assert (scan.schema, scan.to_arrow().num_rows) == (SCHEMA.columns, 0)
        assert scan.to_arrow_batch_reader().read_all().num_rows == 0
        state = KeyedState.of(job.store, manifest, "op")
        assert (state.row({"id": 1}), list(state.tables())) == (None, [])
        assert key_history(job.store, manifest, "op", {"id": 1}) == []
        done = export_checkpoint(job.store, manifest, "op", (tmp_path / f"out{at}").as_uri())
        assert done.rows == 0
        assert job.verify(at).ok


def test_it_is_one_side_of_a_diff(job):
    """Of both directions."""
    write(job, [{"id": 1, "a": 10}])
    first, second = (job.get(each).manifest for each in (1, 2))
    (found,) = diff_checkpoints(job.store, first, second, "op")
    assert found.added.to_pylist() == [{"id": 1, "a": 10}]
    (found,) = diff_checkpoints(job.store, second, first, "op")
    assert found.removed.to_pylist() == [{"id": 1, "a": 10}]
    assert list(diff_checkpoints(job.store, first, first, "op")) == []


def test_its_columns_change_and_it_is_folded(job):
    """A column is renamed before there is any row; nothing is worth a base of its own."""
    assert materialize(job, force=True) is None
    change_columns(job, job.latest(), "op", ColumnChanges.of((), {"a": "b"}))
    assert job.read_state("op").schema.names == ["id", "b"]
    batch = Batch.open(job)
    table = pa.table({"id": [1], "b": [10]})
    batch.add(
        write_rows(table, batch.attempt, job.store, operator="op", schema=batch.schema("op"), partitions=1)
    )
    batch.complete()
    assert job.read_state("op").to_arrow().to_pylist() == [{"id": 1, "b": 10}]


def test_the_command_reads_it(job):
    """`diff`, `history` and `export` as of any other."""

    def run(*words: str) -> str:
        store = ["--store", job.store.uri, "--job", "job"]
        done = CliRunner().invoke(main, ["checkpoints", *words, *store], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    write(job, [{"id": 1, "a": 10}])
    assert "1 added" in run("diff", "1", "2")
    assert "has no change of id=1" in run("history", "id=1", "--at", "1")
    assert json.loads(run("export", "1", f"{job.store.uri}-out", "--json"))["rows"] == 0
