"""A large key group is written in slices by the hash of the key, and a look-up decodes one of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.changelog import FsStateChangelogWriter
from dstl_dagster.checkpoint import CheckpointCoordinator, materialize
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.format.changelog_file import change_set_parts, encoding
from dstl_dagster.keyed import (
    KeyedState,
    OperatorReport,
    key_history,
    open_attempt_changelog,
    write_range,
    write_rows,
)
from dstl_dagster.settings import JobOptions
from dstl_dagster.state import ChangeEncoder, EncodedChanges, StateSchema, changes, key_group_of, replay
from dstl_dagster.storage import MemoryObjectStore
from dstl_dagster.timeline import Attempt
from tests.doubles.encoded import encode_changes

COLUMNS = pa.schema({"id": pa.int64(), "name": pa.string(), "value": pa.int64()})
FEW, ONE = (StateSchema.of(COLUMNS, ["id", "name"], key_groups) for key_groups in (4, 1))
KEYS = 400


def rows_of(ids: list[int], value: int) -> pa.Table:
    names = [None if each % 7 == 0 else f"name-{each}" for each in ids]
    return pa.table({"id": ids, "name": names, "value": [value + each for each in ids]}, COLUMNS)


def in_chunks(
    attempt: Attempt,
    store: MemoryObjectStore,
    options: JobOptions,
    schema: StateSchema,
    rows: pa.Table,
    choose: random.Random,
) -> OperatorReport:
    """As a task of Spark's: batches of rows come, and chunks of changes go."""
    encoder = ChangeEncoder(schema, chunk_bytes=choose.choice([1000, 9000, 1 << 20]))

    def encoded() -> Iterator[EncodedChanges | None]:
        for start in range(0, rows.num_rows, 90):
            batch = rows.slice(start, 90)
            yield encoder.add(batch, key_group_of(batch, schema))
        yield encoder.finish()

    with open_attempt_changelog(store, attempt, options) as storage:
        handle = write_range(
            storage, attempt, "op", schema, KeyGroupRange.of(0, schema.max_parallelism - 1), encoded()
        )
    empty = write_rows(rows.slice(0, 0), attempt, store, operator="op", schema=schema)
    handle = replace(handle, slices=encoder.slices or 1)
    return replace(empty, handles=(handle,), upserts=rows.num_rows)


def check_found(state: KeyedState, choose: random.Random) -> None:
    """By keys, what a read of everything has of them."""
    everything = {row["id"]: row for table in state.tables() for row in table.to_pylist()}
    for count in (1, 1, 5, 60):
        ids = choose.sample(range(KEYS + 50), count)
        found = state.rows(rows_of(ids, 0).select(["id", "name"])).to_pylist()
        assert {row["id"]: row for row in found} == {key: everything[key] for key in ids if key in everything}
        assert len(found) == len({row["id"] for row in found})


def live(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some checkpoints by any writer, with key groups in slices of any size, cut anywhere."""
    choose = random.Random(seed)
    monkeypatch.setattr(changes, "_SLICE_BYTES", choose.choice([400, 2000]))
    monkeypatch.setattr(encoding, "FRAME_BYTES", choose.choice([500, 4000]))
    monkeypatch.setattr(
        "dstl_dagster.changelog.writer.writer.SMALLEST_PIECE_BYTES", choose.choice([1, 2000, 9000])
    )
    options = JobOptions.of(
        {
            "dstl.dfs.compression": choose.choice(["zstd", "zstd", "snappy", "none"]),
            "dstl.dfs.preemptive-persist-threshold": choose.choice(["1kb", "4kb", "1mb"]),
        }
    )
    schema, store = choose.choice([FEW, ONE]), MemoryObjectStore()
    coordinator = CheckpointCoordinator("job", store, options.checkpoint)
    for number in range(1, 4):
        rows = rows_of(choose.sample(range(KEYS), choose.choice([20, 200, KEYS])), 1000 * number)
        attempt = coordinator.trigger()
        if choose.random() < 0.5:
            report = in_chunks(attempt, store, options, schema, rows, choose)
        else:
            tasks = choose.randint(1, min(2, schema.max_parallelism))
            report = write_rows(
                rows, attempt, store, operator="op", schema=schema, partitions=tasks, options=options
            )
        coordinator.record(attempt, [report])
        manifest = coordinator.confirm(attempt).manifest
        if choose.random() < 0.3:
            merged = materialize(coordinator, force=True)
            manifest = manifest if merged is None else merged.manifest
        state = KeyedState.of(store, manifest, "op", options)
        assert state is not None
        check_found(state, choose)


@pytest.mark.parametrize("seed", range(12))
def test_keys_are_found_in_slices(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wrote the slices, wherever a change set was cut, and once they are merged."""
    live(seed, monkeypatch)


def test_slices_that_are_sought_elsewhere_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lives can fail: some of them does."""
    slices_of = change_set_parts.slices_of
    monkeypatch.setattr(change_set_parts, "slices_of", lambda hashes, count: slices_of(hashes + 2**30, count))
    with pytest.raises(AssertionError, match="id"):
        [live(seed, monkeypatch) for seed in range(20)]


def found_of_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many keys are found by two chunks of one key group in three slices, each cut behind the second.

    The end of the first and the beginning of the second have three changes together.
    """
    rows = [rows_of(list(range(start, start + 300)), 0) for start in (0, 300)]
    chunks = [encode_changes(ONE, each, np.zeros(300, np.int32), slices=3).changes for each in rows]
    two_slices = sum(len(chunks[0][slice_].as_py()) for slice_ in (0, 1))
    monkeypatch.setattr("dstl_dagster.changelog.writer.writer.SMALLEST_PIECE_BYTES", 1)
    monkeypatch.setattr(encoding, "FRAME_BYTES", 500)
    options = JobOptions.of({"dstl.dfs.preemptive-persist-threshold": str(two_slices - 500)})
    store = MemoryObjectStore()
    coordinator = CheckpointCoordinator("job", store)
    attempt = coordinator.trigger()
    encoded = [EncodedChanges(pa.array([0] * 3, pa.int32()), each) for each in chunks]
    with open_attempt_changelog(store, attempt, options) as storage:
        handle = write_range(storage, attempt, "op", ONE, KeyGroupRange.of(0, 0), encoded)
    assert len(handle.handles_and_offsets) >= 3
    report = write_rows(rows[0].slice(0, 0), attempt, store, operator="op", schema=ONE)
    coordinator.record(attempt, [replace(report, handles=(replace(handle, slices=3),), upserts=600)])
    state = KeyedState.of(store, coordinator.confirm(attempt).manifest, "op")
    assert state is not None
    keys = pa.concat_tables(rows).select(["id", "name"])
    return sum(state.rows(keys.slice(at, 1)).num_rows for at in range(0, 600, 20))


def test_a_change_set_has_slices_of_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a part of two could pass for the whole of one, and keys would be lost."""
    assert found_of_chunks(monkeypatch) == 30
    monkeypatch.setattr(FsStateChangelogWriter, "next_sequence_number", lambda _: None)
    assert found_of_chunks(monkeypatch) < 30


def test_a_look_up_decodes_a_slice_of_a_large_key_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not all of its rows; a read of everything does."""
    monkeypatch.setattr(changes, "_SLICE_BYTES", 1 << 10)
    monkeypatch.setattr(encoding, "FRAME_BYTES", 1 << 10)
    decoded: list[int] = []

    def counted(schema: StateSchema, payloads: list[pa.Buffer]) -> tuple[pa.Table, np.ndarray]:
        rows, counts = changes.decode_changes(schema, payloads)
        decoded.append(rows.num_rows)
        return rows, counts

    monkeypatch.setattr(replay, "decode_changes", counted)
    store = MemoryObjectStore()
    coordinator = CheckpointCoordinator("job", store)
    attempt = coordinator.trigger()
    rows = rows_of(list(range(20_000)), 0)
    coordinator.record(attempt, [write_rows(rows, attempt, store, operator="op", schema=FEW)])
    manifest = coordinator.confirm(attempt).manifest
    state = KeyedState.of(store, manifest, "op")
    assert state is not None
    assert state.row({"id": 5, "name": "name-5"}) == {"id": 5, "name": "name-5", "value": 5}
    assert 0 < sum(decoded) < 100
    assert key_history(store, manifest, "op", {"id": 6, "name": "name-6"})[0].row is not None
    assert sum(decoded) < 200
    assert sum(table.num_rows for table in state.tables()) == 20_000
