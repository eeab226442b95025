"""A long chain of manifests is read in few rounds, and damage in it is still reported."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from dstl_dagster.checkpoint import record
from dstl_dagster.errors import FormatError, NotFoundError
from dstl_dagster.storage import ANY, MemoryObjectStore

CHECKPOINTS = 60


class RoundsStore(MemoryObjectStore):
    """Counts blocking loads of manifests; those fetched ahead, concurrently, are not counted."""

    def __init__(self):
        super().__init__()
        self.lists = 0
        self.singles = 0

    def get(self, name, *, generation=None):
        if "/manifests/" in name and not threading.current_thread().name.startswith("dstl-read-ahead"):
            self.singles += 1
        return super().get(name, generation=generation)

    def list(self, prefix="", *, start_offset=None):
        self.lists += prefix.endswith("/manifests/")
        return super().list(prefix, start_offset=start_offset)


@pytest.fixture
def long(keyed_on, monkeypatch):
    """A chain that names each manifest, as where the reports are too large to be repeated."""
    monkeypatch.setattr(record, "MAX_CARRIED_BYTES", 0)
    keyed = keyed_on(RoundsStore(), num_retained=2, reader_grace=timedelta(0))
    for number in range(CHECKPOINTS):
        keyed.changes([{"tail": f"N{number}", "flights": number}])
    return keyed


def middle(keyed):
    return next(name for name in keyed.names("dstl/orders/manifests/") if "/0000000030-" in name)


def test_a_long_chain_is_read_in_few_rounds(long):
    """Every row is there; the waits are a fraction of the manifests."""
    long.store.singles = long.store.lists = 0
    assert len(long.rows()) == CHECKPOINTS
    assert long.store.singles <= 12
    assert long.store.lists <= 4


def test_clean_up_keeps_the_whole_chain(long):
    """What retained checkpoints build on stays, read in few rounds; dead attempts' manifests are deleted."""
    attempt = long.coordinator.trigger()
    long.coordinator.record(attempt, [long.report(attempt, [{"tail": "dead", "flights": 0}])])
    long.coordinator.abort(attempt)
    rows = long.rows()
    long.store.singles = 0
    long.coordinator.clean_up()
    assert long.store.singles <= 16
    assert long.rows() == rows
    assert len(long.names("dstl/orders/manifests/")) == CHECKPOINTS


@pytest.mark.parametrize(("damage", "error"), [("cut", FormatError), ("gone", NotFoundError)])
def test_damage_in_the_middle_is_reported(long, damage, error):
    """By the name of the manifest, though it was fetched ahead with others."""
    name = middle(long)
    if damage == "cut":
        long.store.put(name, b"dstl/manifest", precondition=ANY)
    else:
        long.store.delete(name, precondition=ANY)
    with pytest.raises(error, match=name):
        long.rows()
    with pytest.raises(error, match=name):
        long.coordinator.clean_up()
