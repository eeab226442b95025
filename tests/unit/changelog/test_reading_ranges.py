"""A reader of a few key groups decodes what these need, and not the rest of a long log."""

from __future__ import annotations

import random
from datetime import timedelta

import pyarrow as pa
import pytest

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.errors import ClosedError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.format.changelog_file import reader as changelog_file
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import LocalObjectStore, MemoryObjectStore
from dstl_dagster.storage.local.reading import LocalReading

ROWS, VALUE_BYTES = 100, 4096


@pytest.fixture(params=["none", "snappy", "zstd"])
def log(request):
    """Metadata, then one key group after another, as a base is written; a change set holds some of them."""
    store = MemoryObjectStore()
    options = FsStateChangelogOptions(
        compression=request.param, preemptive_persist_threshold_in_bytes=2 * ROWS * VALUE_BYTES
    )
    with (
        FsStateChangelogStorage("job", store, options) as storage,
        storage.create_writer("op", KeyGroupRange.of(0, 15)) as writer,
    ):
        writer.append_meta(b"schema")
        for key_group in range(16):
            noise = random.Random(key_group)  # not made shorter by any compression
            values = pa.array([noise.randbytes(VALUE_BYTES) for _ in range(ROWS)], pa.binary())
            writer.append_batch(pa.array([key_group] * ROWS, pa.int32()), values)
        handle = writer.persist(writer.initial_sequence_number(), 1).result().job_manager_owned_snapshot
        reader = storage.create_reader()
    return reader, handle


def changes(reader, handle, key_groups=None):
    return [
        (group, value)
        for batch in reader.read_batches(handle, key_group_range=key_groups)
        for group, value in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


@pytest.mark.parametrize(("first", "last"), [(0, 0), (7, 8), (15, 15)])
def test_a_range_decodes_its_part(log, first, last, monkeypatch):
    """The same changes as a whole read filtered, from a fraction of the bytes; metadata always."""
    reader, handle = log
    decoded = []
    real = changelog_file.decode_change_set

    def counted(body, layout):
        decoded.append(len(body))
        return real(body, layout)

    monkeypatch.setattr(changelog_file, "decode_change_set", counted)
    everything = changes(reader, handle)
    whole_bytes = sum(decoded)
    decoded.clear()
    part = changes(reader, handle, KeyGroupRange.of(first, last))
    assert part == [(group, value) for group, value in everything if group == -1 or first <= group <= last]
    assert len(part) == 1 + ROWS * (last - first + 1)
    assert 0 < sum(decoded) < whole_bytes / 2


def test_a_large_local_file_is_opened_once(tmp_path, monkeypatch):
    """However many change sets are read of it; and then it is closed."""
    store = LocalObjectStore(tmp_path, durable=False)
    opened = []
    real = LocalReading.open

    def counted(reading, name, generation, start=0):
        opened.append(real(reading, name, generation, start))
        return opened[-1]

    monkeypatch.setattr(LocalReading, "open", counted)
    one_file = FsStateChangelogOptions(
        preemptive_persist_threshold_in_bytes=4 << 20,
        batch_persist_size_threshold_bytes=12 << 20,
        batch_persist_delay=timedelta(minutes=5),
    )
    values = pa.array([bytes([row % 251]) * (1 << 20) for row in range(12)], pa.binary())
    with (
        FsStateChangelogStorage("job", store, one_file) as storage,
        storage.create_writer("op", KeyGroupRange.of(0, 3)) as writer,
    ):
        for start in range(0, 12, 4):
            writer.append_batch(pa.array([0, 1, 2, 3], pa.int32()), values.slice(start, 4))
        handle = writer.persist(writer.initial_sequence_number(), 1).result().job_manager_owned_snapshot
        assert changes(storage.create_reader(), handle) == [
            (row % 4, value) for row, value in enumerate(values.to_pylist())
        ]
    assert len(handle.handles_and_offsets) == 3
    (reader,) = opened
    with pytest.raises(ClosedError):
        reader.read_range(0, 1)
