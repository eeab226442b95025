"""A reader of a few key groups decodes what these need, and not the rest of a long log."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.format import KeyGroupRange, changelog_file
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import MemoryObjectStore

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
    real = changelog_file._body_of

    def counted(compression, stored, size):
        decoded.append(size)
        return real(compression, stored, size)

    monkeypatch.setattr(changelog_file, "_body_of", counted)
    everything = changes(reader, handle)
    whole_bytes = sum(decoded)
    decoded.clear()
    part = changes(reader, handle, KeyGroupRange.of(first, last))
    assert part == [(group, value) for group, value in everything if group == -1 or first <= group <= last]
    assert len(part) == 1 + ROWS * (last - first + 1)
    assert 0 < sum(decoded) < whole_bytes / 2
