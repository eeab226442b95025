"""Reading a whole object: large requests, the next one under way, and nothing else asked."""

from __future__ import annotations

import threading

import pytest

from dstl_dagster.errors import UnavailableError
from dstl_dagster.storage import ABSENT, LocalObjectStore, MemoryObjectStore, read_parts
from dstl_dagster.storage.whole_object import PART_BYTES
from tests.unit.checkpoint.counting import Counted


def content(size):
    return bytes(range(251)) * (size // 251) + bytes(size % 251)


@pytest.mark.parametrize(
    ("size", "requests"), [(0, 0), (1, 1), (PART_BYTES, 1), (PART_BYTES + 1, 2), (3 * PART_BYTES, 3)]
)
def test_an_object_is_read_in_parts(size, requests):
    store = Counted(MemoryObjectStore())
    stat = store.put("a", content(size), precondition=ABSENT)
    store.requests.clear()
    assert b"".join(read_parts(store, "a", size, stat.generation)) == content(size)
    assert store.requests.total() == store.requests["get_range"] == requests


@pytest.mark.parametrize("pinned", [False, True])
def test_a_near_or_unpinned_object_is_a_stream(tmp_path, pinned):
    store = Counted(LocalObjectStore(tmp_path, durable=False) if pinned else MemoryObjectStore())
    stat = store.put("a", content(3000), precondition=ABSENT)
    store.requests.clear()
    assert b"".join(read_parts(store, "a", 3000, stat.generation if pinned else None)) == content(3000)
    assert store.requests == {"open_read": 1}


def test_a_reader_that_stops_leaves_no_thread_and_asks_for_three_parts_at_most():
    store = Counted(MemoryObjectStore())
    stat = store.put("a", content(5 * PART_BYTES), precondition=ABSENT)
    store.requests.clear()
    parts = read_parts(store, "a", 5 * PART_BYTES, stat.generation)
    next(parts)
    parts.close()
    assert store.requests["get_range"] <= 3
    assert not [each for each in threading.enumerate() if each.name.startswith("dstl-parts")]


def test_an_outage_is_raised():
    store = MemoryObjectStore()
    stat = store.put("a", content(2 * PART_BYTES), precondition=ABSENT)

    def down(*_place, **_how):
        raise UnavailableError("the service is down")

    store.get_range = down
    with pytest.raises(UnavailableError):
        list(read_parts(store, "a", 2 * PART_BYTES, stat.generation))
