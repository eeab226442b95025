"""Keyed state as Parquet: once, complete, and never overwriting anything else."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from dstl_dagster.errors import ConflictError, NotFoundError
from dstl_dagster.keyed import export_checkpoint
from dstl_dagster.keyed.read.export import export_state
from dstl_dagster.storage import ABSENT, LocalObjectStore, MemoryObjectStore


def rows_of(folder):
    return sorted((row for row in pq.read_table(folder).to_pylist()), key=repr)


@pytest.fixture
def checkpoint(keyed):
    keyed.changes([{"tail": f"N{number}", "flights": number} for number in range(50)])
    return keyed.changes([{"tail": "N1", "flights": 100}], [{"tail": "N2", "flights": None}])


def test_the_state_is_exported(keyed, checkpoint, tmp_path):
    """Any Parquet reader sees exactly the rows of the checkpoint, and `_SUCCESS` beside them."""
    done = export_checkpoint(keyed.store, checkpoint.manifest, keyed.OPERATOR, tmp_path.as_uri())
    assert rows_of(tmp_path / keyed.OPERATOR) == keyed.rows(checkpoint)
    assert done.rows == len(keyed.rows(checkpoint)) == 49
    assert (tmp_path / keyed.OPERATOR / "_SUCCESS").exists()


@pytest.mark.parametrize(
    ("operator", "folder"),
    [("a/b", "a%2Fb"), ("a%2Fb", "a%252Fb"), ("..", "%2E%2E"), (".", "%2E"), ("..a", "..a"), ("ä b", "ä b")],
)
def test_any_operator_is_exported(keyed, checkpoint, tmp_path, operator, folder):
    """Its folder is one level below the target, and no other operator's."""
    state = keyed.state(checkpoint)
    state = replace(state, at=replace(state.at, operator=operator))
    export_state(state, LocalObjectStore(tmp_path, durable=False))
    assert rows_of(tmp_path / folder) == keyed.rows(checkpoint)


@pytest.mark.parametrize("name", ["aircraft/part-00000.parquet", "aircraft/notes.txt"])
def test_nothing_else_is_overwritten(keyed, checkpoint, name):
    """A foreign object in the folder stops the export before anything is written."""
    target = MemoryObjectStore()
    target.put(name, b"mine", precondition=ABSENT)
    with pytest.raises(ConflictError) as caught:
        export_state(keyed.state(checkpoint), target)
    assert caught.value.kind == "foreign_object"
    assert [stat.name for stat in target.list("")] == [name]


def test_another_export_is_not_mixed_in(keyed, checkpoint):
    """The parts of another checkpoint in the same folder are a conflict, not half of this one."""
    target = MemoryObjectStore()
    export_state(keyed.state(keyed.coordinator.get(1)), target)
    with pytest.raises(ConflictError):
        export_state(keyed.state(checkpoint), target)


def test_an_operator_without_state_is_refused(keyed, checkpoint, tmp_path):
    """Nothing is written."""
    with pytest.raises(NotFoundError, match="no state of operator"):
        export_checkpoint(keyed.store, checkpoint.manifest, "unknown", tmp_path.as_uri())
    assert not list(tmp_path.iterdir())
