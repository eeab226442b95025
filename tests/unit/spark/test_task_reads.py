"""What the tasks of one Python worker fetch: each file once, whichever task asks, without Spark."""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.changelog import ReadCache
from dstl_dagster.checkpoint import Attempt
from dstl_dagster.format import ranges_of_tasks
from dstl_dagster.keyed import StateAt
from dstl_dagster.keyed.write.writer import write_rows
from dstl_dagster.spark import stores
from dstl_dagster.spark.dataframes import merge_tasks
from dstl_dagster.spark.dataframes.merge_tasks import LookUpTask
from dstl_dagster.spark.dataframes.state_tasks import ReadStateTask
from dstl_dagster.state import StateSchema, key_group_of, pieces
from dstl_dagster.storage import MemoryObjectStore
from tests.unit.checkpoint.counting import Counted

SCHEMA = StateSchema.of(pa.schema({"id": pa.int64(), "value": pa.int64()}), ["id"], 128)
CHECKPOINTS, IDS = 6, 200


@pytest.fixture
def store(monkeypatch):
    """Behind a network; every task opens it again."""
    store = Counted(MemoryObjectStore())
    monkeypatch.setattr(stores, "open_store", lambda _uri, _options: store)
    return store


@pytest.fixture
def state(store):
    """All rows, rewritten by each checkpoint; a file for each."""
    handles = []
    for number in range(1, CHECKPOINTS + 1):
        attempt = Attempt(number, uuid.uuid4(), None, "job", store.uri)
        rows = pa.table({"id": np.arange(IDS), "value": np.arange(IDS) * number})
        handles += write_rows(rows, attempt, store, operator="op", schema=SCHEMA).handles
    assert len({stream.name for each in handles for stream in each.streams}) == CHECKPOINTS
    store.spent()
    return StateAt(store.uri, "job", CHECKPOINTS, "op", SCHEMA, tuple(handles))


def test_tasks_that_follow_each_other_share_what_was_fetched(store, state):
    """Eight tasks of one worker, each with its own key groups of every file."""
    ranges = ranges_of_tasks(8, 128)
    rows = []
    for number in range(8):
        for batch in ReadStateTask(state, ranges)(iter([pa.record_batch([pa.array([number])], ["id"])])):
            rows += batch.to_pylist()
    assert sorted(row["value"] for row in rows) == [CHECKPOINTS * number for number in range(IDS)]
    assert store.spent() == CHECKPOINTS


def test_a_look_up_of_scattered_keys_opens_a_file_once(store, state, monkeypatch):
    """Also without the memory that tasks share: all its key groups are read in one pass."""
    monkeypatch.setattr(merge_tasks, "process_cache", lambda: ReadCache(0))
    groups = key_group_of(pa.table({"id": np.arange(IDS)}), SCHEMA)
    wanted = [0, 57, 199]
    assert len(set(groups[wanted])) == 3
    new = pa.StructArray.from_arrays([pa.array(wanted, pa.int64())], ["id"])
    batch = pa.record_batch([new, pa.array(groups[wanted], pa.int32())], ["new", "key_group"])
    found = [row for each in LookUpTask(state)(iter([batch])) for row in each.to_pylist()]
    assert [row["old"]["value"] for row in found] == [CHECKPOINTS * number for number in wanted]
    assert store.spent() == CHECKPOINTS


@pytest.mark.parametrize(
    ("piece_bytes", "text_bytes"), [(500, 600), pytest.param(None, 900 << 20, marks=pytest.mark.soak)]
)
def test_a_look_up_beside_any_text(store, monkeypatch, piece_bytes, text_bytes):
    """Of more than one array of Arrow's holds: in pieces, each row beside its own of the state."""
    if piece_bytes is not None:
        monkeypatch.setattr(pieces, "PIECE_BYTES", piece_bytes)
    attempt = Attempt(1, uuid.uuid4(), None, "job", store.uri)
    schema = StateSchema.of(pa.schema({"id": pa.int64(), "note": pa.string()}), ["id"], 128)
    known = pa.table({"id": [1, 2], "note": ["old of 1" * 8, "old of 2" * 8]})
    handles = write_rows(known, attempt, store, operator="op", schema=schema).handles
    note = pa.array(["x" * text_bytes])
    given = []
    for number in range(3):
        new = pa.StructArray.from_arrays([pa.array([number]), note], ["id", "note"])
        groups = key_group_of(pa.table({"id": [number]}), schema)
        given.append(pa.record_batch([new, pa.array(groups, pa.int32())], ["new", "key_group"]))
    task = LookUpTask(StateAt(store.uri, "job", 1, "op", schema, tuple(handles)))
    found = list(task(iter(given)))
    assert len(found) == 3
    assert [batch.column("new").field("id")[0].as_py() for batch in found] == [0, 1, 2]
    assert [len(batch.column("new").field("note")[0].as_buffer()) for batch in found] == [text_bytes] * 3
    olds = [old for batch in found for old in batch.column("old").to_pylist()]
    assert olds == [None, *known.to_pylist()]
