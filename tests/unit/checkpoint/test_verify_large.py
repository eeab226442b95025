"""Verification of changelog files over 8 MiB: each byte is fetched once, and damage is found anywhere."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.keyed import write_rows
from dstl_dagster.settings import JobOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ANY, MemoryObjectStore
from dstl_dagster.storage.whole_object import PART_BYTES
from tests.unit.checkpoint.counting import Counted
from tests.unit.conftest import Job

SCHEMA = StateSchema.of(pa.schema({"key": pa.int64(), "value": pa.binary()}), ["key"], 128)
ROWS, VALUE_BYTES = 1_800, 10_000


class Fetched(Counted):
    """Notes which bytes of which object were asked for."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.ranges: Counter[tuple[str, int]] = Counter()

    def get_range(self, name: str, start: int, length: int, **how: Any) -> bytes | memoryview:
        self.ranges[name, start] += 1
        return super().get_range(name, start, length, **how)


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    octets = np.random.default_rng(1).bytes(ROWS * VALUE_BYTES)  # which do not compress
    values = [octets[at : at + VALUE_BYTES] for at in range(0, len(octets), VALUE_BYTES)]
    return pa.table({"key": np.arange(ROWS), "value": values}, SCHEMA.columns)


@pytest.fixture
def store(rows: pa.Table) -> Fetched:
    """A job with one checkpoint of one file of 18 MB: three blocks."""
    store = Fetched(MemoryObjectStore())
    coordinator = Job(store).coordinator()
    attempt = coordinator.trigger()
    whole = JobOptions.of({"dstl.dfs.preemptive-persist-threshold": "100 mb"})
    report = write_rows(rows, attempt, store, operator="op", schema=SCHEMA, partitions=1, options=whole)
    coordinator.record(attempt, [report])
    coordinator.confirm(attempt)
    coordinator.compose_commit()
    assert len(files(store)) == 1
    assert 2 * PART_BYTES < files(store)[0].size < 3 * PART_BYTES
    store.spent()
    store.ranges.clear()
    return store


def files(store: Fetched) -> list[Any]:
    return [stat for stat in store.list("dstl/orders/attempts/") if "/changelog/" in stat.name]


def damage(store: Fetched, at: int) -> None:
    (stat,) = files(store)
    octets = bytearray(store.get(stat.name))
    octets[at] ^= 1
    store.put(stat.name, bytes(octets), precondition=ANY)


def test_each_byte_is_fetched_once(store: Fetched) -> None:
    """Three requests for 18 MB, whoever wants the bytes: the checksum of the file, or its rows."""
    (stat,) = files(store)
    found = Job(store).coordinator().verify()
    assert found.ok
    assert found.bytes >= stat.size
    assert store.ranges == {(stat.name, block * PART_BYTES): 1 for block in range(3)}


@pytest.mark.parametrize("at", [0, PART_BYTES - 1, PART_BYTES + 7, -1])
def test_a_flipped_bit_is_found_in_every_block(store: Fetched, at: int) -> None:
    """Also where it is in what no handle needs to read."""
    (stat,) = files(store)
    damage(store, at)
    problems = Job(store).coordinator().verify().problems
    assert stat.name in {name for problem in problems for name in problem.object_name.split(", ")}


def test_a_missing_file_is_named_once(store: Fetched) -> None:
    (stat,) = files(store)
    store.delete(stat.name, precondition=ANY)
    (problem,) = Job(store).coordinator().verify().problems
    assert (problem.object_name, problem.what) == (stat.name, "is missing")


def test_a_shorter_file_is_named(store: Fetched) -> None:
    """Overwritten by a part of itself."""
    (stat,) = files(store)
    store.put(stat.name, store.get(stat.name)[: PART_BYTES + 3], precondition=ANY)
    assert any("was overwritten" in each.what for each in Job(store).coordinator().verify().problems)
