"""A key is found in a large change by the frames that hold it, whatever the other columns are."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import FormatError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StreamStateHandle, framed_changes
from dstl_dagster.format.footer import Frames
from dstl_dagster.keyed import KeyedState, keyed_state, write_rows
from dstl_dagster.keyed.kept_log import kept_handles
from dstl_dagster.keyed.lookup import touched_ranges
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import LocalObjectStore, ObjectStore
from dstl_dagster.testing.fault_store import FaultStore
from tests.unit.changelog.test_reading_requests import Network
from tests.unit.keyed.test_wide_and_many import stored

NESTED = pa.list_(pa.struct({"at": pa.timestamp("us"), "tags": pa.map_(pa.string(), pa.int32())}))
COLUMNS = pa.schema(
    {
        "number": pa.int64(),
        "total": pa.int64(),
        "flag": pa.bool_(),
        "name": pa.string(),
        "price": pa.decimal128(21, 2),
        "day": pa.date32(),
        "raw": pa.binary(),
        "text": pa.string(),
        "events": NESTED,
    }
)
BY_NUMBER = StateSchema.of(COLUMNS, ["number"], 4)
BY_TEXT_AND_NUMBER = StateSchema.of(COLUMNS, ["text", "number"], 4)
COUNT = 40_000


def rows_of(numbers: np.ndarray, salt: int = 0) -> pa.Table:
    """Of every kind; nulls in each column that is not a key, long text that differs from row to row."""
    places = range(len(numbers))
    columns = {
        "number": numbers,
        "total": numbers * 3 + salt,
        "flag": pa.array([None if at % 5 == 0 else at % 2 == 0 for at in places]),
        "name": pa.array(
            [None if at % 7 == 0 else f"name {number * salt}" for at, number in enumerate(numbers)]
        ),
        "price": pa.array([None if at % 3 == 0 else at for at in places], pa.int64()).cast(
            pa.decimal128(21, 2)
        ),
        "day": pa.array([datetime.date(2026, 1, 1 + at % 28) for at in places]),
        "raw": pa.array([None if at % 11 == 0 else bytes([at % 256]) * (at % 40) for at in places]),
        "text": pa.array([f"key {number}" for number in numbers]),
        "events": pa.array([[{"at": None, "tags": [("a", at)]}] * (at % 3) or None for at in places], NESTED),
    }
    return pa.table(columns, COLUMNS)


@pytest.fixture(scope="module")
def everything() -> pa.Table:
    return rows_of(np.arange(COUNT), salt=1)


@pytest.fixture(scope="module", params=[BY_NUMBER, BY_TEXT_AND_NUMBER], ids=["by number", "by text too"])
def state(request: pytest.FixtureRequest, everything: pa.Table) -> KeyedState:
    """A state whose changes are of some megabytes, and a large log behind it."""
    found, _ = stored(request.param, everything, rows_of(np.arange(0, COUNT, 3), salt=2))
    return found


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many frames each call decompressed."""
    counts: list[int] = []
    verified = framed_changes.verified_frames

    def counted(compression: object, frames: Frames, first: int, stop: int, stored: object) -> pa.Buffer:
        counts.append(stop - first)
        return verified(compression, frames, first, stop, stored)  # type: ignore[arg-type]

    monkeypatch.setattr(framed_changes, "verified_frames", counted)
    return counts


@pytest.fixture(scope="module")
def customers() -> KeyedState:
    """200,000 rows of four columns, in four key groups of 35 frames each."""
    schema = StateSchema.of(
        pa.schema({"id": pa.int64(), "total": pa.int64(), "events": pa.int64(), "name": pa.string()}),
        ["id"],
        4,
    )
    ids = np.random.default_rng(1).permutation(200_000)
    names = pa.array(np.char.add("customer-", np.char.zfill(ids.astype(str), 8)))
    return stored(schema, pa.table({"id": ids, "total": ids * 3, "events": ids % 97, "name": names}))[0]


def of_columns(keys: pa.Table, state: KeyedState) -> pa.Table:
    return keys.select(list(state.schema.key_columns))


@pytest.mark.parametrize("step", [1, 2, 97, 20_001], ids="every {}".format)
def test_what_is_sought_is_what_is_read(state: KeyedState, everything: pa.Table, step: int) -> None:
    """Value for value, whether most rows of a change are wanted, some, or one."""
    wanted = everything.slice(5, COUNT - 5).take(pa.array(np.arange(0, COUNT - 5, step)))
    opened = state.at.opened(state.store)
    found = opened.rows(of_columns(wanted, state)).sort_by("number")
    numbers = set(wanted.column("number").to_pylist())
    everywhere = pa.concat_tables(opened.tables()).sort_by("number")
    mask = pa.array([number in numbers for number in everywhere.column("number").to_pylist()])
    assert found.equals(everywhere.filter(mask))
    assert found.num_rows == wanted.num_rows


def test_one_row_takes_few_frames(customers: KeyedState, frames: list[int]) -> None:
    """The key columns', and of each other column the frame with its value."""
    for number in (7, 123_456, 199_999):
        frames.clear()
        row = {"id": number, "total": number * 3, "events": number % 97, "name": f"customer-{number:08d}"}
        assert customers.row({"id": number}) == row
        # Of 35 of its key group: 7 of the key column; the metadata; head, numbers, text, delete flag.
        assert sum(frames) <= 15
    frames.clear()
    assert customers.row({"id": -1}) is None
    assert sum(frames) <= 10


@pytest.mark.parametrize("split_bytes", [32 << 20, 1 << 20], ids=["in one pass", "in a pass each"])
def test_few_keys_take_few_frames(
    customers: KeyedState, frames: list[int], monkeypatch: pytest.MonkeyPatch, split_bytes: int
) -> None:
    """Also where the state is read in passes, which share its files."""
    monkeypatch.setattr(keyed_state, "_SPLIT_BYTES", split_bytes)
    ids = [7, 11, 123_456, 199_999]
    assert len(touched_ranges(pa.table({"id": ids}), customers.schema)) > 1
    store = Network(customers.store)
    found = customers.at.opened(store).rows(pa.table({"id": ids}))
    assert sorted(found.column("total").to_pylist()) == [number * 3 for number in ids]
    assert 0 < sum(frames) <= 4 * 15
    assert (
        store.bytes < 0.7 * customers.handles[0].checkpointed_size
    )  # two of four key groups, and the footer


def test_many_keys_are_read_with_what_is_between_them(customers: KeyedState, frames: list[int]) -> None:
    """Nearly every frame has one of them: all at once is less work."""
    ids = np.arange(0, 200_000, 1_000)
    assert customers.rows(pa.table({"id": ids})).num_rows == len(ids)
    assert not frames


class Damaged(Network):
    """One byte of a file is another one."""

    def __init__(self, inner: ObjectStore, name: str, place: int) -> None:
        super().__init__(inner)
        self._name, self._place = name, place

    def get_range(self, name: str, start: int, length: int, **how: Any) -> memoryview:
        found = np.frombuffer(super().get_range(name, start, length, **how), np.uint8).copy()
        if name == self._name and start <= self._place < start + length:
            found[self._place - start] ^= 1
        return memoryview(found)


def test_damage_is_named_when_it_is_met() -> None:
    """With the file, though its frames are verified after it was read; no row is found in a damaged frame."""
    ids = np.arange(100_000)
    schema = StateSchema.of(pa.schema({"id": pa.int64(), "noise": pa.int64()}), ["id"], 2)
    noise = np.random.default_rng(2).integers(-(2**62), 2**62, len(ids))
    state, store = stored(schema, pa.table({"id": ids, "noise": noise}))
    ((stream,),) = [handle.streams for handle in state.handles]
    refused: list[FormatError] = []
    for place in range(1000, stream.stored_bytes - 5000, 40_000):
        damaged = KeyedState(Damaged(store, stream.name, place), state.at)
        for number in (1, 2, 50_000, 99_999):
            try:
                assert damaged.row({"id": number}) == {"id": number, "noise": int(noise[number])}
            except FormatError as error:
                refused.append(error)
    assert len(refused) > 10
    assert {error.kind for error in refused} == {"checksum"}
    assert all(stream.name in error.message for error in refused)


def test_the_next_key_opens_no_small_file_again(tmp_path: Path) -> None:
    """A state that is open keeps its log and the footers of its base: what is left is the base's frames."""
    store = FaultStore(LocalObjectStore(tmp_path, durable=False))
    ids = np.random.default_rng(3).permutation(200_000)
    schema = StateSchema.of(pa.schema({"id": pa.int64(), "value": pa.int64()}), ["id"], 2)
    coordinator = CheckpointCoordinator("job", store)
    for number, each in enumerate((ids, ids[:50], ids[:60])):
        attempt = coordinator.trigger()
        table = pa.table({"id": each, "value": each + number})
        coordinator.record(attempt, [write_rows(store, attempt, "op", schema, table)])
        manifest = coordinator.confirm(attempt).manifest
    state = KeyedState.of(store, manifest, "op")
    assert state is not None
    requests = []
    for number in (*ids[:3].tolist(), *ids[55:58].tolist(), *ids[100:103].tolist()):
        seen = len(store.requests)
        value = number + (2 if number in ids[:60] else 0)
        assert state.row({"id": number}) == {"id": number, "value": value}
        requests.append(sorted(each.method for each in store.requests[seen:]))
    first, *following = requests
    assert first == ["get_range", "get_range", "open_ranges", "read", "read", "read"]
    # The schema's frame, and the key group's, which follow it or do not.
    assert all(each in (["open_ranges", "read"], ["open_ranges", "read", "read"]) for each in following)
    assert len(following) == 8


def handle_of(stored_bytes: int | None, state_size: int) -> ChangelogStateHandle:
    stream = StreamStateHandle("file", state_size, stored_bytes=stored_bytes)
    return ChangelogStateHandle(((stream, 0),), KeyGroupRange.of(0, 3), state_size, state_size)


def test_which_handles_are_kept() -> None:
    """The smallest first, as many as fit; none of a large file, or of one whose length is not known."""
    small, larger, large, unknown = (
        handle_of(*each) for each in ((100, 10), (100, 30), (2 << 20, 20), (None, 5))
    )
    assert kept_handles([small, larger, large, unknown, small], 50) == {0, 1, 4}
    assert kept_handles([small, larger, large, unknown, small], 49) == {0, 4}
    assert kept_handles([]) == frozenset()
