"""The copies of records that a listing brings: each is decoded once, and none is taken on trust."""

from __future__ import annotations

import uuid

import pytest

from dstl_dagster.checkpoint import Timeline
from dstl_dagster.format.names import JobNames
from dstl_dagster.storage import ANY, MemoryObjectStore
from dstl_dagster.timeline import Opened, tail
from dstl_dagster.timeline.record_codec import copy_in_metadata, encode_record


def slot_of(store: MemoryObjectStore) -> str:
    """The second one."""
    timeline = Timeline("orders", store)
    timeline.tail()
    return timeline.names.slot(2)


def opened(number: int) -> Opened:
    return Opened(attempt=uuid.UUID(int=number << 64), checkpoint_id=1, parent=None, owner="test")


def attempts(store: MemoryObjectStore) -> list[int]:
    """As a process reads them that has read nothing yet."""
    return [record.attempt.int >> 64 for record in Timeline("orders", store)._tail_reader.records()]


@pytest.fixture
def store() -> MemoryObjectStore:
    tail._decoded.cache_clear()
    store = MemoryObjectStore()
    timeline = Timeline("orders", store)
    for number in (1, 2, 3):
        timeline.append(opened(number))
    return store


def test_a_copy_is_decoded_once(store, monkeypatch):
    """However often a process lists the tail, and however many timelines it has."""
    decoded = []
    tail._decoded.cache_clear()
    decode = tail.decode_record
    monkeypatch.setattr(tail, "decode_record", lambda *given: decoded.append(given) or decode(*given))
    for _ in range(4):
        assert attempts(store) == [1, 2, 3]
    assert len(decoded) == 3


@pytest.mark.parametrize("copied", ["bytes of another slot", "no record", "half"])
def test_a_copy_that_became_wrong_is_not_remembered_as_right(store, copied):
    """Metadata may be edited where bytes may not: then the bytes are read, whatever was listed before."""
    assert attempts(store) == [1, 2, 3]
    slot = slot_of(store)
    payload = store.get(slot)
    ((key, copy),) = copy_in_metadata(payload).items()
    metadata = {
        "bytes of another slot": store.stat(JobNames("orders").slot(1)).metadata,
        "no record": {key: "1 2 3 4 5"},
        "half": {key: copy[: len(copy) // 2]},
    }[copied]
    store.put(slot, payload, precondition=ANY, metadata=metadata)
    assert attempts(store) == [1, 2, 3]


def test_another_record_in_a_slot_is_seen(store):
    """What is remembered is what some bytes mean, not what a slot holds."""
    assert attempts(store) == [1, 2, 3]
    replaced = encode_record(Opened(**{**vars(opened(7)), "slot": 2}))
    store.put(slot_of(store), replaced, precondition=ANY, metadata=copy_in_metadata(replaced))
    assert attempts(store) == [1, 7, 3]
