"""Small ranges of key groups share files: which do, how many files and requests that takes, what is read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator, Manifest, OperatorReport
from dstl_dagster.errors import InvalidInputError, UnavailableError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.jobs import merge_frame, write_frame
from dstl_dagster.keyed import KeyedState, SharedFiles, held_if_small
from dstl_dagster.keyed.documents.reports import stored_bytes
from dstl_dagster.keyed.write import shared_files
from dstl_dagster.keyed.write.shared_files import (
    FILE_BYTES,
    FILE_RANGES,
    SMALL_BYTES,
    SmallRange,
    files_of,
)
from dstl_dagster.settings import CheckpointOptions, JobOptions
from dstl_dagster.state import EncodedChanges, StateSchema, key_group_of
from dstl_dagster.storage import MemoryObjectStore, ObjectStore
from dstl_dagster.testing.fault_store import FaultStore
from tests.doubles.encoded import encode_changes

SCHEMA = StateSchema.of(pa.schema({"id": pa.int64(), "value": pa.int64()}), ["id"], 8)
EVERY = KeyGroupRange.of(0, 7)
OPTIONS = JobOptions()


def encoded(count: int, value: int = 0) -> EncodedChanges:
    rows = pa.table({"id": np.arange(count), "value": np.full(count, value)})
    groups = key_group_of(rows, SCHEMA)
    order = np.argsort(groups, kind="stable")
    return encode_changes(SCHEMA, rows.take(pa.array(order)), groups[order])


def small(operator: str, count: int, value: int = 0, options: JobOptions = OPTIONS) -> SmallRange:
    return SmallRange(operator, EVERY, SCHEMA.to_bytes(), encoded(count, value), options)


def report(operator: str, *handles: ChangelogStateHandle, upserts: int = 0) -> OperatorReport:
    return OperatorReport(operator, handles, ("id",), 8, SCHEMA.arrow_message, upserts)


def coordinator_on(store: ObjectStore, **options: object) -> CheckpointCoordinator:
    return CheckpointCoordinator("job", store, CheckpointOptions(**options), owner="test")  # type: ignore[arg-type]


def checkpoint(
    coordinator: CheckpointCoordinator, operators: Sequence[str], value: int, rows: int = 20
) -> Manifest:
    """One of small changes of each operator, as the driver of a batch adds them."""
    batch = Batch.open(coordinator)
    for name in operators:
        batch.add(report(name, batch.shared_files.add(small(name, rows, value)), upserts=rows))
    batch.merge_due_runs()
    return batch.complete().manifest


def changelog_files(store: MemoryObjectStore) -> list[str]:
    return [each.name for each in store.list("dstl/job/") if "/changelog/" in each.name]


def rows_of(store: ObjectStore, manifest: Manifest, operator: str) -> pa.Table:
    state = KeyedState.of(store, manifest, operator)
    assert state is not None
    return pa.concat_tables(state.tables()).sort_by("id")


def changelog_requests(store: FaultStore, seen: int) -> Counter[str]:
    return Counter(each.method for each in store.requests[seen:] if "/changelog/" in each.name)


@pytest.mark.parametrize(("count", "ranges"), [(40, 16), pytest.param(1000, 256, marks=pytest.mark.soak)])
def test_many_operators_make_few_files_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, count: int, ranges: int
) -> None:
    """Merges and changes alike; each operator has its own rows, and bytes that add up to the files."""
    monkeypatch.setattr(shared_files, "FILE_RANGES", ranges)
    memory = MemoryObjectStore()
    store = FaultStore(memory)
    coordinator = coordinator_on(store, materialize_max_runs=3)
    names = [f"op-{number:04}" for number in range(count)]
    before = 0
    for value in range(1, 5):
        seen = len(store.requests)
        manifest = checkpoint(coordinator, names, value, 2)
        files, before = len(changelog_files(memory)) - before, len(changelog_files(memory))
        merged = sum(entry.merged_bytes > 0 for entry in manifest.operators.values())
        assert merged in (0, count)
        shared = math.ceil(count / ranges)
        assert files == (2 * shared if merged else shared)
        assert changelog_requests(store, seen)["stat"] == files
    assert merged
    own = {s.name: s for e in manifest.operators.values() for h in e.handles for s in h.streams}
    sizes = sum(stream.stored_bytes or 0 for stream in own.values())
    assert sizes - 2 * count <= manifest.state_bytes <= sizes  # each share is rounded down
    for name in (names[0], names[37]):
        assert rows_of(memory, manifest, name).column("value").to_pylist() == [4, 4]


@pytest.mark.parametrize("ranges", [1, 3])
def test_one_operator_costs_no_more_than_a_file_of_its_own(ranges: int) -> None:
    """One file, one request that writes it and one that looks it up, however many tasks wrote."""
    memory = MemoryObjectStore()
    store = FaultStore(memory)
    batch = Batch.open(coordinator_on(store))
    seen = len(store.requests)
    handles = [batch.shared_files.add(small("op", 10, number)) for number in range(ranges)]
    batch.add(report("op", *handles))
    assert changelog_requests(store, seen) == {}
    manifest = batch.complete().manifest
    writing = changelog_requests(store, seen)
    assert writing.pop("stat") == 1
    assert sum(writing.values()) == 1
    (name,) = changelog_files(memory)
    found = manifest.operators["op"].report.handles
    assert {stream.name for handle in found for stream in handle.streams} == {name}
    assert (found[0].share_bytes is None) == (ranges == 1)
    assert stored_bytes(found) in range(len(memory.get(name)) - ranges + 1, len(memory.get(name)) + 1)


def test_rows_in_memory_share_a_file() -> None:
    """Those of each operator that a batch writes or merges, without Spark; many rows have a file at once."""
    memory = MemoryObjectStore()
    coordinator = coordinator_on(memory)
    rows = pa.table({"id": [1, 2], "value": [3, 4]})
    batch = Batch.open(coordinator)
    for name in ("written", "also"):
        batch.add(write_frame(rows, batch, operator=name, keys=["id"], max_parallelism=8))
    update = {"value": "coalesce(old.value, 0) + new.value"}
    schema = "id BIGINT, value BIGINT"
    batch.add(merge_frame(rows, batch, operator="merged", keys=["id"], update=update, schema=schema))
    assert changelog_files(memory) == []
    many = pa.table({"id": np.arange(SMALL_BYTES // 4), "value": np.zeros(SMALL_BYTES // 4)})
    batch.add(write_frame(many, batch, operator="many", keys=["id"]))
    assert len(changelog_files(memory)) == 1
    manifest = batch.complete().manifest
    assert len(changelog_files(memory)) == 2
    for name in ("written", "also", "merged"):
        assert rows_of(memory, manifest, name).equals(rows)
    assert rows_of(memory, manifest, "many").num_rows == many.num_rows


def test_a_report_that_waits_is_refused_outside_of_its_batch() -> None:
    """It is in no file yet: the sentence says what to do with it."""
    coordinator = coordinator_on(MemoryObjectStore())
    batch = Batch.open(coordinator)
    waiting = report("op", batch.shared_files.add(small("op", 10)))
    with pytest.raises(
        InvalidInputError, match="add the report to that batch, and end it by hand_over or complete"
    ):
        coordinator.record(batch.attempt, [waiting])


def test_what_was_not_flushed_leaves_nothing_and_what_was_is_collected() -> None:
    """A driver that dies before the end of step 3 wrote no file; one that dies after it, garbage."""
    memory = MemoryObjectStore()
    coordinator = coordinator_on(memory)
    batch = Batch.open(coordinator)
    batch.add(report("op", batch.shared_files.add(small("op", 10))))
    assert changelog_files(memory) == []
    batch.hand_over()
    assert len(changelog_files(memory)) == 1
    coordinator.abort(batch.attempt)
    coordinator.clean_up()
    assert changelog_files(memory) == []


def test_an_upload_that_fails_aborts_the_batch() -> None:
    """Nothing is confirmed with changes that are nowhere."""
    memory = MemoryObjectStore()
    coordinator = coordinator_on(memory)
    batch = Batch.open(coordinator)

    class Full(SharedFiles):
        def flush(self) -> None:
            raise UnavailableError("the disk is full")

    batch._shared_files = Full(memory, batch.attempt)
    batch.add(report("op", batch.shared_files.add(small("op", 10))))
    with pytest.raises(UnavailableError, match="full"):
        batch.complete()
    assert coordinator.latest() is None
    assert coordinator.timeline.tail().open_attempt is None


def test_the_driver_holds_a_bounded_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above it, what waits is written, and what comes later goes into another file."""
    memory = MemoryObjectStore()
    batch = Batch.open(coordinator_on(memory))
    monkeypatch.setattr(shared_files, "HELD_BYTES", 3 * small("op", 10).size_bytes)
    handles = [batch.shared_files.add(small("op", 10, number)) for number in range(4)]
    assert len(changelog_files(memory)) == 1
    batch.add(report("op", *handles))
    found = batch.complete().manifest.operators["op"].report.handles
    assert len(changelog_files(memory)) == 2
    assert [handle.share_bytes is None for handle in found] == [False, False, False, True]


def test_ranges_of_other_options_have_other_files() -> None:
    """Compression is a file's."""
    memory = MemoryObjectStore()
    batch = Batch.open(coordinator_on(memory))
    zstd = JobOptions.of({"dstl.dfs.compression": "zstd"})
    batch.add(report("a", batch.shared_files.add(small("a", 10))))
    batch.add(report("b", batch.shared_files.add(small("b", 10, 5, zstd))))
    manifest = batch.complete().manifest
    assert len(changelog_files(memory)) == 2
    assert rows_of(memory, manifest, "b").column("value").to_pylist() == [5] * 10


def test_which_ranges_share_a_file() -> None:
    """By bytes, and by number; a range is never split."""
    assert list(files_of([])) == []
    assert list(files_of([FILE_BYTES * 2])) == [(0, 1)]
    assert list(files_of([FILE_BYTES // 2, FILE_BYTES // 2, 1])) == [(0, 2), (2, 3)]
    assert list(files_of([1, FILE_BYTES, 1])) == [(0, 1), (1, 2), (2, 3)]
    assert list(files_of([1] * (FILE_RANGES + 3))) == [(0, FILE_RANGES), (FILE_RANGES, FILE_RANGES + 3)]


def test_changes_are_held_while_they_are_few() -> None:
    """Otherwise they come one by one, and no more is held than proves it; nothing is taken twice or lost."""
    few, many = encoded(10), encoded(8000)
    assert held_if_small([None, few, None], EVERY, OPTIONS)[0] == few
    empty, rest = held_if_small([], EVERY, OPTIONS)
    assert empty is not None
    assert len(empty.key_groups) == 0
    assert list(rest) == []
    taken = []

    def changes() -> Iterator[EncodedChanges]:
        for each in (few, many, few, many):
            taken.append(each)
            yield each

    held, rest = held_if_small(changes(), EVERY, OPTIONS)
    assert held is None
    assert taken == [few, many]
    assert list(rest) == [few, many, few, many]
    assert many.changes.nbytes > SMALL_BYTES


def test_a_change_of_another_range_is_refused() -> None:
    """As a writer of that range refuses it."""
    with pytest.raises(InvalidInputError, match="key group 4 is outside the writer's range"):
        held_if_small([encoded(100)], KeyGroupRange.of(0, 3), OPTIONS)


def test_a_writer_that_uploads_early_hands_nothing_over() -> None:
    """Below the pre-emptive threshold nothing waits: the user asked for files then."""
    eager = JobOptions.of({"dstl.dfs.preemptive-persist-threshold": "1 b"})
    assert held_if_small([encoded(10)], EVERY, eager)[0] is None


def test_a_share_is_optional_in_a_handle() -> None:
    """A handle may have none; where there is one, it counts in place of the whole file."""
    batch = Batch.open(coordinator_on(MemoryObjectStore()))
    handle = batch.shared_files.add(small("op", 10))
    plain = replace(handle, share_bytes=None)
    assert ChangelogStateHandle.from_json(plain.to_json()) == plain
    assert ChangelogStateHandle.from_json(handle.to_json()) == handle
    assert stored_bytes([replace(handle, share_bytes=7), replace(handle, share_bytes=5)]) == 12
