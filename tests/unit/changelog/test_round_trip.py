"""The whole way: append, persist, hand the handle over as JSON, read back in another storage."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.changelog import FsStateChangelogStorage, FsStateChangelogStorageView
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StateChange
from dstl_dagster.settings import FsStateChangelogOptions, LocalRecoveryConfig
from dstl_dagster.storage import LocalObjectStore, MemoryObjectStore, ObjectStore

ALL = KeyGroupRange.of(0, 127)
ROWS = 5_000


def _store(kind: str, directory: Path) -> ObjectStore:
    if kind == "memory":
        return MemoryObjectStore()
    return LocalObjectStore(directory / "store")


def _columns() -> tuple[pa.Array, pa.Array]:
    key_groups = np.random.default_rng(2).integers(0, 128, ROWS).astype(np.int32)
    values = [b"%d" % row * (row % 30) for row in range(ROWS)]
    return pa.array(key_groups), pa.array(values, pa.binary())


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_what_is_appended_is_read_back_in_order(kind: str, compression: str, tmp_path: Path) -> None:
    """Rows, batches and metadata mixed in one writer come back grouped, in their order, on every path."""
    store = _store(kind, tmp_path)
    options = FsStateChangelogOptions(compression=compression)  # type: ignore[arg-type]  # parametrised text
    local = LocalRecoveryConfig.enabled(tmp_path / "copies")
    key_groups, values = _columns()
    with FsStateChangelogStorage("job", store, options, base_path="a/b", local_recovery=local) as storage:
        with storage.create_writer("operator", ALL) as writer:
            writer.append_meta(b"schema")
            writer.append(3, b"first")
            writer.append_batch(key_groups, values)
            writer.append(3, b"last")
            snapshot = writer.persist(writer.initial_sequence_number(), 7).result()
            writer.confirm(writer.initial_sequence_number(), writer.next_sequence_number(), 7)
        rows = zip(key_groups.to_pylist(), values.to_pylist(), strict=True)
        expected = sorted([(-1, b"schema"), (3, b"first"), *rows, (3, b"last")], key=lambda row: row[0])
        assert snapshot.job_manager_owned_snapshot is not None
        sent = json.dumps(snapshot.job_manager_owned_snapshot.to_json())
        assert snapshot.task_local_snapshot is not None
        assert list(storage.create_reader().read(snapshot.task_local_snapshot)) == expected

    handle = ChangelogStateHandle.from_json(json.loads(sent))
    assert handle.handles_and_offsets[0][0].name.startswith("a/b/job/dstl/")
    with FsStateChangelogStorageView(store, options) as view:
        reader = view.create_reader()
        assert list(reader.read(handle)) == [StateChange(*row) for row in expected]
        for views in (False, True):
            table = pa.Table.from_batches(reader.read_batches(handle, views=views))
            assert (
                list(zip(table["key_group"].to_pylist(), table["change"].to_pylist(), strict=True))
                == expected
            )
        wanted = list(reader.read(handle, key_group_range=KeyGroupRange.of(3, 9)))
        assert wanted == [row for row in expected if row[0] == -1 or 3 <= row[0] <= 9]


def test_no_thread_outlives_a_storage() -> None:
    """After close every thread that the storage started is gone."""
    before = set(threading.enumerate())
    storage = FsStateChangelogStorage("job", MemoryObjectStore())
    with storage.create_writer("operator", ALL) as writer:
        writer.append(1, b"x")
        writer.persist(writer.initial_sequence_number(), 1).result()
        assert set(threading.enumerate()) - before
    storage.close()
    assert set(threading.enumerate()) <= before
