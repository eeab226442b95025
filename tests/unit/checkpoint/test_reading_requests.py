"""What it costs to look at a job: each object once, and nothing after another that need not be."""

from __future__ import annotations

import threading

import pytest

from dstl_dagster.keyed import diff_checkpoints, key_history
from dstl_dagster.storage import MemoryObjectStore
from tests.unit.checkpoint.counting import Counted

CHECKPOINTS = 40


class Waits(Counted):
    """Counts by itself what the calling thread waits for, one after another."""

    def __init__(self, inner):
        super().__init__(inner)
        self.waits = 0

    def get(self, name, **how):
        self.waits += threading.current_thread() is threading.main_thread()
        return super().get(name, **how)

    def get_range(self, name, start, length, **how):
        self.waits += threading.current_thread() is threading.main_thread()
        return super().get_range(name, start, length, **how)


@pytest.fixture
def keyed(keyed_on):
    keyed = keyed_on(Waits(MemoryObjectStore()), num_retained=CHECKPOINTS, snapshot_interval=9_999)
    for number in range(CHECKPOINTS):
        keyed.changes([{"tail": "all", "flights": number}])
    keyed.coordinator.timeline.tail()
    keyed.store.spent()
    keyed.store.waits = 0
    return keyed


def test_a_list_reads_its_manifests_at_once(keyed):
    assert len(keyed.coordinator.list()) == CHECKPOINTS
    assert keyed.store.spent() == CHECKPOINTS + 2
    assert keyed.store.waits == 1, "for the tail, and the first slot beside it"


def test_a_timeline_is_read_at_once(keyed):
    """Each record by one request; the first few, and the end, are waited for."""
    records = list(keyed.coordinator.timeline.records())
    assert [record.slot for record in records] == list(range(1, 3 * CHECKPOINTS + 1))
    assert keyed.store.spent() <= 3 * CHECKPOINTS + 4
    assert keyed.store.waits <= 10


def test_a_history_reads_each_object_once(keyed):
    """The files that hold the key's changes; the manifest names all of them."""
    manifest = keyed.coordinator.get(CHECKPOINTS).manifest
    keyed.store.spent()
    keyed.store.waits = 0
    changes = key_history(keyed.store, manifest, keyed.OPERATOR, {"tail": "all"})
    assert [change.row["flights"] for change in changes] == list(range(CHECKPOINTS))
    assert keyed.store.spent() == CHECKPOINTS
    assert keyed.store.waits == 0


def test_a_diff_reads_what_both_have_once(keyed):
    """The files of both states."""
    older, newer = (keyed.coordinator.get(each).manifest for each in (CHECKPOINTS - 1, CHECKPOINTS))
    keyed.store.spent()
    (found,) = diff_checkpoints(keyed.store, older, newer, keyed.OPERATOR)
    assert found.rows == 1
    assert keyed.store.spent() == CHECKPOINTS
