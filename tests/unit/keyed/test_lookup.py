"""Keys are looked up by their key groups: which are read, what is fetched for them, what is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.keyed import KeyedState
from dstl_dagster.keyed.read import keyed_state
from dstl_dagster.keyed.read.lookup import KeysToFind
from dstl_dagster.keyed.write.writer import write_rows
from dstl_dagster.state import StateSchema, key_group_of
from dstl_dagster.storage import MemoryObjectStore
from tests.unit.changelog.test_reading_requests import Network

if TYPE_CHECKING:
    from tests.unit.conftest import KeyedJob

SCHEMA = StateSchema.of(pa.schema({"id": pa.int64(), "value": pa.int64(), "noise": pa.binary()}), ["id"], 128)
COUNT, NOISE_BYTES = 100_000, 200


def table_of(ids: np.ndarray, value: int) -> pa.Table:
    # Not made shorter by compression: a file has to be large.
    noise = np.random.default_rng(value).bytes(NOISE_BYTES * len(ids))
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * NOISE_BYTES
    column = pa.Array.from_buffers(pa.binary(), len(ids), [None, pa.py_buffer(offsets), pa.py_buffer(noise)])
    return pa.table({"id": ids, "value": np.full(len(ids), value), "noise": column})


@pytest.fixture(scope="module")
def large() -> MemoryObjectStore:
    """A state of some change sets of 16 MB, and a small log behind it."""
    return MemoryObjectStore()


@pytest.fixture(scope="module")
def state(large: MemoryObjectStore) -> KeyedState:
    from dstl_dagster.checkpoint import CheckpointCoordinator

    coordinator = CheckpointCoordinator("job", large)
    for rows in (table_of(np.arange(COUNT), 1), table_of(np.arange(0, COUNT, 1000), 2)):
        attempt = coordinator.trigger()
        coordinator.record(attempt, [write_rows(rows, attempt, large, operator="op", schema=SCHEMA)])
        manifest = coordinator.confirm(attempt).manifest
    found = KeyedState.of(large, manifest, "op")
    assert found is not None
    return found


def counted(state: KeyedState) -> tuple[KeyedState, Network]:
    store = Network(state.store)
    return KeyedState(store, state.at), store


def test_one_key_of_a_bucket_takes_few_requests_and_bytes(state: KeyedState) -> None:
    """Each large file costs its end, and the frames of the key group; a small one is one request."""
    sizes = {each.name: each.stored_bytes or 0 for handle in state.handles for each in handle.streams}
    assert sorted(size >> 20 for size in sizes.values()) == [0, 4, 15]
    asked, store = counted(state)
    assert asked.row({"id": 1234}) == table_of(np.arange(COUNT), 1).slice(1234, 1).to_pylist()[0]
    small = sum(sorted(sizes.values())[:2])
    assert store.requests == {"get_range": 4}  # two small files; the large one's end, and its key group
    assert store.bytes < small + 700_000
    assert asked.row({"id": COUNT}) is None


def test_keys_that_share_key_groups_cost_no_more(state: KeyedState) -> None:
    """A hundred keys of three key groups are one pass over these."""
    groups = key_group_of(pa.table({"id": np.arange(COUNT)}), SCHEMA)
    ids = np.flatnonzero(np.isin(groups, [5, 6, 90]))[:100]
    asked, store = counted(state)
    found = asked.rows(pa.table({"id": ids}))
    assert sorted(found.column("id").to_pylist()) == ids.tolist()
    assert store.requests == {"get_range": 5}


def test_many_keys_are_found_whatever_their_key_groups(state: KeyedState) -> None:
    """The newest row of each; keys that are not there, or are asked for twice, add none."""
    ids = np.arange(0, COUNT + 5000, 500)
    asked, _ = counted(state)
    found = asked.rows(pa.table({"id": np.append(ids, ids)})).sort_by("id")
    present = ids[ids < COUNT]
    assert found.column("id").to_pylist() == present.tolist()
    assert found.column("value").to_pylist() == np.where(present % 1000, 1, 2).tolist()
    everything = pa.concat_tables(asked.tables())
    assert everything.num_rows == COUNT
    whole = everything.filter(pa.array(np.isin(everything.column("id"), ids)))
    assert found.equals(whole.sort_by("id"))


def test_the_oldest_run_is_read_for_keys_that_no_other_has(
    state: KeyedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a state that does not fit in memory."""
    updated = pa.table({"id": np.arange(0, COUNT, 1000)})
    _, store = counted(state)
    assert KeyedState(store, state.at).rows(updated).num_rows == 100
    at_once = store.bytes
    monkeypatch.setattr(keyed_state, "_SPLIT_BYTES", 1 << 20)
    asked, store = counted(state)
    assert set(asked.rows(updated).column("value").to_pylist()) == {2}
    assert store.bytes < at_once / 100
    both = pa.table({"id": [0, 1, COUNT, 2000]})
    assert sorted(asked.rows(both).column("value").to_pylist()) == [1, 2, 2]


def test_keys_may_be_mappings_or_a_table_of_other_types(keyed: KeyedJob) -> None:
    """A table's keys are cast, its other columns ignored; deleted keys have no row; no keys, no rows."""
    keyed.changes([{"tail": tail, "flights": at} for at, tail in enumerate(["a", "b", None, "d"])])
    keyed.changes([{"tail": "b", "flights": 9}], [{"tail": "d"}])
    state = keyed.state()
    keys: list[dict[str, object]] = [{"tail": "b"}, {"tail": None}, {"tail": "d"}, {"tail": "nobody"}]
    expected = [{"tail": "b", "flights": 9}, {"tail": None, "flights": 2}]
    assert sorted(state.rows(keys).to_pylist(), key=str, reverse=True) == sorted(
        expected, key=str, reverse=True
    )
    typed = pa.table({"tail": pa.array(["b", None, "d"], pa.large_string()), "other": [1, 2, 3]})
    assert state.rows(typed).num_rows == 2
    assert state.rows([]).schema == state.schema.columns
    assert state.rows([]).num_rows == 0


@pytest.mark.parametrize("keys", [[{}], [{"tail": "a", "more": 1}], pa.table({"other": ["a"]})])
def test_keys_without_the_key_columns_are_refused(keyed: KeyedJob, keys: object) -> None:
    """Before anything is read."""
    keyed.changes([{"tail": "a", "flights": 1}])
    with pytest.raises(InvalidInputError, match="key"):
        keyed.state().rows(keys)  # type: ignore[arg-type]


def test_a_value_of_another_type_is_named() -> None:
    """With its column and the type that it should have."""
    with pytest.raises(InvalidInputError, match="'id' does not fit its type int64"):
        KeyedState(MemoryObjectStore(), _nothing()).rows(pa.table({"id": ["x"]}))
    with pytest.raises(InvalidInputError, match=r"'id': 1\.5 is not a int64"):
        KeyedState(MemoryObjectStore(), _nothing()).row({"id": 1.5})


def _nothing():  # type: ignore[no-untyped-def]
    from dstl_dagster.keyed import StateAt

    return StateAt("memory:", "job", 1, "op", SCHEMA, ())


def test_key_groups_that_are_read() -> None:
    """Those of the keys and no other, neighbours together."""
    ids = np.arange(2000)
    groups = key_group_of(pa.table({"id": ids}), SCHEMA)
    for touched in ([5], [3, 9], [0, 1, 50, 51, 52, 127]):
        keys = pa.table({"id": ids[np.isin(groups, touched)]})
        found = [group for each in KeysToFind.of(keys, SCHEMA).touched_ranges() for group in each]
        assert found == touched
    together = pa.table({"id": ids[np.isin(groups, [0, 1, 50])]})
    assert len(KeysToFind.of(together, SCHEMA).touched_ranges()) == 2
    assert KeysToFind.of(pa.table({"id": pa.array([], pa.int64())}), SCHEMA).touched_ranges() == ()
