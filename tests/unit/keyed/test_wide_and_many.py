"""States of unusual shape are read in bounded requests and memory: many key groups, wide, long, lopsided."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.keyed import KeyedState, write_rows
from dstl_dagster.keyed.read import keyed_state
from dstl_dagster.state import StateSchema, key_group_of
from dstl_dagster.storage import MemoryObjectStore
from dstl_dagster.testing.fault_store import FaultStore
from tests.unit.changelog.test_reading_requests import Network

MIB = 1 << 20


def stored(schema: StateSchema, *tables: pa.Table, partitions: int = 1) -> tuple[KeyedState, Network]:
    """The state after these checkpoints, on a store behind a network that counts."""
    memory = MemoryObjectStore()
    coordinator = CheckpointCoordinator("job", memory)
    for rows in tables:
        attempt = coordinator.trigger()
        report = write_rows(rows, attempt, memory, operator="op", schema=schema, partitions=partitions)
        coordinator.record(attempt, [report])
        manifest = coordinator.confirm(attempt).manifest
    store = Network(memory)
    state = KeyedState.of(store, manifest, "op")
    assert state is not None
    store.requests.clear()
    store.bytes = 0
    return state, store


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """Arrow's memory, counted from here on."""
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    yield counted
    pa.set_memory_pool(before)


def test_as_many_key_groups_as_there_may_be() -> None:
    """32,768 of them, most with one row: all are read in a request a file, and one key in no more."""
    schema = StateSchema.of(pa.schema({"id": pa.int64(), "value": pa.int64()}), ["id"], 32_768)
    ids = np.arange(10_000)
    state, store = stored(schema, *(pa.table({"id": ids, "value": ids * n}) for n in (1, 2)), partitions=2)
    assert state.row({"id": 77}) == {"id": 77, "value": 154}
    assert store.requests == {"get_range": 2}
    assert state.rows(pa.table({"id": ids[::100]})).num_rows == 100
    found = pa.concat_tables(state.tables()).sort_by("id")
    assert found.column("value").to_pylist() == (ids * 2).tolist()
    assert store.requests == {"get_range": 2 + 2}  # a file is kept for whoever reads it next


def test_fifty_columns_with_nested_values_and_long_text() -> None:
    """What is looked up is what was written, column by column."""
    nested = pa.list_(pa.struct({"at": pa.timestamp("us"), "tags": pa.map_(pa.string(), pa.int32())}))
    numbers = {f"n{at}": pa.float64() for at in range(46)}
    columns = {"id": pa.string(), "flag": pa.bool_(), "text": pa.string(), "events": nested, **numbers}
    schema = StateSchema.of(pa.schema(columns), ["id"], 64)
    assert len(schema.columns) == 50
    rows = [
        {
            "id": f"key-{at}",
            "flag": None if at % 3 else True,
            "text": chr(65 + at % 26) * 1024,
            "events": [{"at": None, "tags": [("a", at)]}] * (at % 4) or None,
            **{f"n{column}": at / (column + 1) for column in range(46)},
        }
        for at in range(1000)
    ]
    table = pa.Table.from_pylist(rows, schema=schema.columns)
    state, store = stored(schema, table, table.slice(0, 10))
    found = state.rows([{"id": "key-999"}, {"id": "key-5"}, {"id": "key-1000"}])
    assert sorted(found.to_pylist(), key=lambda row: str(row["id"])) == [
        table.slice(at, 1).to_pylist()[0] for at in (5, 999)
    ]
    assert store.requests == {"get_range": 2}
    assert sum(each.num_rows for each in state.tables()) == 1000


def test_one_row_of_a_hundred_megabytes(pool: pa.MemoryPool) -> None:
    """It is found, and others are found without it: a frame is read, not the change set."""
    schema = StateSchema.of(pa.schema({"id": pa.int64(), "value": pa.binary()}), ["id"], 16)
    large = np.random.default_rng(1).bytes(MIB) * 100
    ids = np.arange(200)
    groups = key_group_of(pa.table({"id": ids}), schema)
    values = pa.array([large if at == 7 else b"small" for at in ids], pa.binary())
    state, store = stored(schema, pa.table({"id": ids, "value": values}))
    elsewhere = int(np.flatnonzero(groups != groups[7])[0])
    before = pool.max_memory()
    assert state.row({"id": elsewhere}) == {"id": elsewhere, "value": b"small"}
    assert pool.max_memory() == before
    assert store.bytes < 2 * MIB
    held = pool.bytes_allocated()
    row = state.row({"id": 7})
    assert row is not None
    assert row["value"] == large
    assert store.bytes < 105 * MIB
    assert pool.max_memory() - held < 450 * MIB


def test_a_key_group_of_half_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read at once; the rest, in parts: all rows come, once, and a file is fetched once a part."""
    schema = StateSchema.of(pa.schema({"id": pa.int64(), "value": pa.int64()}), ["id"], 128)
    ids = np.arange(400_000)
    groups = key_group_of(pa.table({"id": ids}), schema)
    crowded = ids[groups == 5]
    chosen = np.append(crowded, ids[groups != 5][: len(crowded)])
    state, store = stored(schema, pa.table({"id": chosen, "value": chosen}), pa.table({"id": crowded[:10]}))
    monkeypatch.setattr(keyed_state, "_SPLIT_BYTES", sum(each.state_size for each in state.handles) // 8)
    assert len(state.ranges()) == 9
    found = pa.concat_tables(state.tables()).sort_by("id")
    assert found.column("id").to_pylist() == np.sort(chosen).tolist()
    assert found.column("value").null_count == 10
    assert store.requests.total() <= 2 * 9
    assert state.rows(pa.table({"id": crowded})).num_rows == len(crowded)


def test_a_small_batch_costs_little_in_as_many_key_groups_as_there_may_be() -> None:
    """A request, a handle and a manifest as with few of them; two hundred bytes for each that occurs."""
    ids = np.arange(1000)
    written = {}
    for groups in (128, 32_768):
        store = FaultStore(MemoryObjectStore())
        coordinator = CheckpointCoordinator("job", store)
        schema = StateSchema.of(pa.schema({"id": pa.int64(), "value": pa.int64()}), ["id"], groups)
        attempt = coordinator.trigger()
        seen = len(store.requests)
        report = write_rows(pa.table({"id": ids, "value": ids}), attempt, store, operator="op", schema=schema)
        assert [each.method for each in store.requests[seen:]] == ["put"]
        assert len(report.handles) == 1
        coordinator.record(attempt, [report])
        coordinator.confirm(attempt)
        (manifest,) = store.list("dstl/job/manifests/")
        written[groups] = (report.payload_bytes, report.stored_bytes, manifest.size)
    few, many = written[128], written[32_768]
    assert many[0] - few[0] < 1000 * 250
    assert many[1] < 4 * few[1]
    assert many[2] < few[2] + 32
