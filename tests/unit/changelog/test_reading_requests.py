"""What reading costs on a store behind a network: requests, bytes and memory, counted."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.changelog import (
    ChangelogReader,
    FsStateChangelogStorage,
    FsStateChangelogStorageView,
    HandleRead,
)
from dstl_dagster.changelog.reader.read_plan import END_BYTES, REQUEST_BYTES
from dstl_dagster.concurrency import AHEAD_BYTES
from dstl_dagster.errors import NotFoundError, UnavailableError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import ANY, LocalObjectStore, MemoryObjectStore
from tests.unit.checkpoint.counting import Counted

KIB, MIB = 1 << 10, 1 << 20


class Network(Counted):
    """Counts requests and bytes, and how many requests are in flight or not yet let go."""

    def __init__(self, inner=None):
        super().__init__(inner or MemoryObjectStore())
        self.bytes = 0
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.meet: threading.Barrier | None = None
        self.fetched = []

    def get_range(self, name, start, length, **how):
        with self.lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.bytes += length
        try:
            if self.meet is not None:
                self.meet.wait(30)
            with self.lock:
                fetched = np.frombuffer(super().get_range(name, start, length, **how), np.uint8).copy()
            self.fetched.append(weakref.ref(fetched))
            return memoryview(fetched)
        finally:
            with self.lock:
                self.in_flight -= 1


def written(store, *, files, sets, set_bytes, key_groups=1, compression="none"):
    """One log of so many files, each of so many change sets of one change a key group."""
    numbers = pa.array(range(key_groups), pa.int32())
    options = FsStateChangelogOptions(
        compression=compression,
        preemptive_persist_threshold_in_bytes=1 << 30,
        batch_persist_delay=timedelta(0),
        upload_timeout=timedelta(0),  # 100 MB take longer than a second where everything else does
    )
    with (
        FsStateChangelogStorage("job", store, options) as storage,
        storage.create_writer("op", KeyGroupRange.of(0, 127)) as writer,
    ):
        for file in range(files):
            for number in range(sets):
                noise = random.Random(file * sets + number)  # not made shorter by any compression
                values = [noise.randbytes(set_bytes // key_groups) for _ in range(key_groups)]
                writer.append_batch(numbers, pa.array(values, pa.binary()))
                writer.next_sequence_number()  # ends the change set
            persisted = writer.persist(writer.initial_sequence_number(), 1).result()
    handle = persisted.job_manager_owned_snapshot
    assert len({stream.name for stream in handle.streams}) == files
    assert len(handle.handles_and_offsets) == files * sets
    store.requests.clear()
    return handle


def apart(handle):
    """One handle for each change set: as of so many writers, which share files."""
    return [replace(handle, handles_and_offsets=(each,)) for each in handle.handles_and_offsets]


def rows(batches):
    return [
        row
        for batch in batches
        for row in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    ]


@pytest.mark.parametrize(("files", "sets"), [(100, 5), (20, 25)])
def test_a_file_that_handles_share_is_one_request(files, sets):
    """500 change sets in 100 files are 100 requests, and in 20 files 20; and the bytes of the files."""
    store = Network()
    handle = written(store, files=files, sets=sets, set_bytes=100)
    found = ChangelogReader(store).read_all([HandleRead(each) for each in apart(handle)])
    assert store.requests == {"get_range": files}
    assert store.bytes == sum({each.name: each.stored_bytes for each in handle.streams}.values())
    assert [len(rows(each)) for each in found] == [1] * 500


def test_independent_requests_are_made_together():
    """Each waits until eight are under way."""
    store = Network()
    handle = written(store, files=8, sets=1, set_bytes=100)
    store.meet = threading.Barrier(8)
    assert len(list(ChangelogReader(store).read(handle))) == 8


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_large_file_is_read_in_few_requests(compression):
    """Its end, and what is needed in ranges of up to 8 MiB: nothing once for each change set."""
    store = Network()
    handle = written(store, files=1, sets=40, set_bytes=256 * KIB, key_groups=4, compression=compression)
    (size,) = {stream.stored_bytes for stream in handle.streams}
    assert size > REQUEST_BYTES
    assert len(rows(ChangelogReader(store).read_batches(handle))) == 160
    assert store.requests == {"get_range": 3}
    assert store.bytes <= size + END_BYTES


def test_a_task_of_two_reads_its_part_of_large_files():
    """4 files over 8 MiB, of which every other change set is another task's: 3 requests a file."""
    store = Network()
    handle = written(store, files=4, sets=48, set_bytes=256 * KIB)
    mine = [HandleRead(each) for number, each in enumerate(apart(handle)) if number % 2]
    assert sum(len(rows(each)) for each in ChangelogReader(store).read_all(mine)) == 96
    assert store.requests.total() <= 4 * 4


def test_a_long_footer_that_came_with_the_files_end_is_not_fetched_again():
    """The layouts of 100 change sets of 128 key groups are 150 KB: the file's end and two ranges, no more."""
    store = Network()
    handle = written(store, files=1, sets=100, set_bytes=100 * KIB, key_groups=128)
    assert len(rows(ChangelogReader(store).read_batches(handle))) == 100 * 128
    assert store.requests == {"get_range": 3}


def test_a_file_in_a_folder_is_not_read_whole_for_a_part_of_it(tmp_path):
    """It is opened, and read where it is; only a small one is read at once."""
    store = Network(LocalObjectStore(tmp_path, durable=False))
    large = written(store, files=2, sets=1, set_bytes=MIB, key_groups=8)
    small = written(store, files=1, sets=1, set_bytes=10 * KIB, key_groups=8)
    for handle, fetched in ((large, 0), (small, 1)):
        store.requests.clear()
        found = rows(ChangelogReader(store).read_batches(handle, key_group_range=KeyGroupRange.of(3, 3)))
        assert {group for group, _ in found} == {3}
        assert store.requests["get_range"] == fetched


def test_change_sets_that_are_not_needed_are_not_fetched():
    """A range of key groups that a large file does not have costs its end alone."""
    store = Network()
    handle = written(store, files=1, sets=40, set_bytes=256 * KIB, key_groups=4)
    elsewhere = KeyGroupRange.of(90, 99)
    assert rows(ChangelogReader(store).read_batches(handle, key_group_range=elsewhere)) == []
    assert store.requests == {"get_range": 1}


def test_several_ranges_open_a_file_once():
    """As a look-up of scattered keys does; each gets its own changes."""
    store = Network()
    handle = written(store, files=3, sets=2, set_bytes=800, key_groups=8)
    wanted = [KeyGroupRange.of(0, 0), KeyGroupRange.of(3, 4), KeyGroupRange.of(7, 7)]
    found = ChangelogReader(store).read_all([HandleRead(handle, (each,)) for each in wanted])
    assert store.requests == {"get_range": 3}
    assert [sorted({group for group, _ in rows(each)}) for each in found] == [[0], [3, 4], [7]]


def test_changes_come_in_the_order_of_the_log():
    """Also where a log comes back to a file."""
    store = Network()
    handle = written(store, files=2, sets=2, set_bytes=100, key_groups=2)
    one, two, three, four = handle.handles_and_offsets
    mixed = replace(handle, handles_and_offsets=(three, one, four, two))
    reader = ChangelogReader(store)
    single = [rows(reader.read_batches(each)) for each in apart(mixed)]
    store.spent()
    assert rows(reader.read_batches(mixed)) == [row for each in single for row in each]
    assert store.spent() == 2


def test_memory_ahead_is_bounded():
    """A reader that stops at the first change has no more than the limit under way."""
    store = Network()
    handle = written(store, files=12, sets=1, set_bytes=7 * MIB)
    with closing(ChangelogReader(store).read_batches(handle)) as batches:
        next(batches)
    assert store.bytes <= AHEAD_BYTES
    assert not [each for each in threading.enumerate() if each.name.startswith("dstl-read")]


def test_the_ranges_of_one_file_run_ahead_within_the_limit():
    store = Network()
    handle = written(store, files=1, sets=14, set_bytes=7 * MIB)
    with closing(ChangelogReader(store).read_batches(handle)) as batches:
        next(batches)
    assert store.requests.total() >= 4
    assert store.bytes <= AHEAD_BYTES + END_BYTES + 1


def test_what_is_kept_is_not_the_file():
    """One small change set of a file does not keep the rest of it in memory."""
    store = Network()
    handle = written(store, files=1, sets=70, set_bytes=100 * KIB)
    first = apart(handle)[0]
    ((batch,),) = ChangelogReader(store).read_all([HandleRead(first, views=True)])
    gc.collect()
    assert batch.num_rows == 1
    assert [each() for each in store.fetched] == [None]


def test_an_outage_is_met_once_where_the_reader_is():
    """The changes before it are there, the error is raised, and the request is not made again."""
    store = Network()
    handle = written(store, files=2, sets=1, set_bytes=100)
    reader = ChangelogReader(store)
    first = handle.handles_and_offsets[0][0].name
    real = store.inner.get_range

    def down(name, *place, **how):
        if name != first:
            raise UnavailableError("the service is down")
        return real(name, *place, **how)

    store.inner.get_range = down
    batches = reader.read_batches(handle)
    assert len(rows([next(batches)])) == 1
    with pytest.raises(UnavailableError, match="is down"):
        next(batches)
    assert store.spent() == 2


def test_a_deleted_file_is_named():
    store = Network()
    handle = written(store, files=3, sets=1, set_bytes=100)
    gone = handle.handles_and_offsets[1][0].name
    store.inner.delete(gone, precondition=ANY)
    with pytest.raises(NotFoundError, match=gone):
        list(ChangelogReader(store).read(handle))


def test_a_recovery_downloads_in_large_parts(tmp_path, monkeypatch):
    """Each file once, though read twice; 8 MiB a request, several files at once."""
    store = Network()
    handle = written(store, files=2, sets=36, set_bytes=256 * KIB)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with FsStateChangelogStorageView(store) as view:
        for _ in range(2):
            assert len(list(view.create_reader().read(handle))) == 72
    assert store.requests == {"get_range": 4}
