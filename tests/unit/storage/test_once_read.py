"""Readers that need the same bytes: one request, whoever asks, for as long as they are remembered."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dstl_dagster.storage import (
    ABSENT,
    ANY,
    LocalObjectStore,
    MemoryObjectStore,
    OnceRead,
    ReadMemory,
    shared_reads,
)
from tests.unit.checkpoint.counting import Counted

MIB = 1 << 20


@pytest.fixture
def store():
    return Counted(MemoryObjectStore())


def put(store, name, size):
    stat = store.put(name, bytes(range(256)) * (size // 256), precondition=ABSENT)
    store.requests.clear()
    return stat.generation


def test_a_range_within_one_that_was_read_costs_nothing(store):
    generation = put(store, "a", 1024)
    once = OnceRead(store)
    whole = store.inner.get("a")
    assert once.get_range("a", 100, 500, generation=generation) == whole[100:600]
    assert once.get_range("a", 200, 50, generation=generation) == whole[200:250]
    assert store.spent() == 1
    assert once.get_range("a", 50, 100, generation=generation) == whole[50:150]
    assert store.spent() == 1


@pytest.mark.parametrize("start", [0, 1000])
def test_where_an_object_ends_is_remembered(store, start):
    generation = put(store, "a", 1024)
    once = OnceRead(store)
    for _ in range(2):
        assert len(once.get_range("a", start, 5000, generation=generation)) == 1024 - start
    assert store.spent() == 1


def test_whoever_asks_for_the_same_waits_for_the_first(store):
    """Eight threads, one request: the others ask while it is under way."""
    generation = put(store, "a", 1024)
    asked = threading.Semaphore(0)
    real = store.inner.get_range

    def slow(*place, **how):
        for _ in range(8):
            assert asked.acquire(timeout=30)
        return real(*place, **how)

    store.inner.get_range = slow
    once = OnceRead(store)

    def ask(_):
        asked.release()
        return bytes(once.get_range("a", 0, 1024, generation=generation))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    assert store.spent() == 1


def test_a_failed_request_is_made_again(store):
    generation = put(store, "a", 1024)
    real, store.inner.get_range = store.inner.get_range, None
    once = OnceRead(store)
    with pytest.raises(TypeError):
        once.get_range("a", 0, 10, generation=generation)
    store.inner.get_range = real
    assert len(once.get_range("a", 0, 10, generation=generation)) == 10


def test_memory_is_bounded_and_the_longest_unused_goes_first(store):
    generations = {name: put(store, name, MIB) for name in "abc"}
    once = OnceRead(store, ReadMemory(2 * MIB))
    for name in "abac":  # b is the longest unused when c comes
        once.get_range(name, 0, MIB, generation=generations[name])
    assert store.spent() == 3
    once.get_range("a", 0, MIB, generation=generations["a"])
    assert store.spent() == 0
    once.get_range("b", 0, MIB, generation=generations["b"])
    assert store.spent() == 1


def test_a_memory_that_outlives_an_operation_keeps_generations_only(store):
    """What a name means may change; what a generation holds may not."""
    memory = ReadMemory()
    generation = put(store, "a", 1024)
    for _ in range(2):
        once = OnceRead(store, memory, pinned=True)
        assert len(once.get("a", generation=generation)) == 1024
        assert len(once.get_range("a", 5, 5, generation=generation)) == 5
    assert store.spent() == 1
    assert len(once.get("a")) == 1024
    store.inner.put("a", b"new", precondition=ANY)
    assert once.get("a") == b"new"
    assert once.get_range("a", 0, 10) == b"new"


def test_two_stores_with_one_name_are_two_objects():
    memory = ReadMemory()
    found = []
    for content in (b"one", b"two"):
        store = MemoryObjectStore()
        stat = store.put("a", content, precondition=ABSENT)
        found.append(OnceRead(store, memory, pinned=True).get("a", generation=stat.generation))
    assert found == [b"one", b"two"]


def test_readers_of_one_process_share(store):
    """The second knows nothing of the first; a folder on this machine needs no memory."""
    generation = put(store, "shared", 1024)
    for _ in range(2):
        assert len(shared_reads(store).get("shared", generation=generation)) == 1024
    assert store.spent() == 1


def test_a_folder_is_not_remembered(tmp_path):
    store = LocalObjectStore(tmp_path, durable=False)
    assert shared_reads(store) is store
