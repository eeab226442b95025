"""A writer that dies at any simulated request, and is resumed. Real kills are in `tests/process`."""

from __future__ import annotations

import uuid

import pytest

from dstl_dagster.recoverable import GSRecoverableWriter, plan_sweep, sweep
from dstl_dagster.storage.base import ANY, ObjectStore
from dstl_dagster.storage.memory import MemoryObjectStore
from dstl_dagster.testing.fault_schedules import AtRequests, Fault, SimulatedCrash
from dstl_dagster.testing.fault_store import FaultStore

COUNT = 100
PERSIST_EVERY = 10
PAYLOAD = b"".join(b"%05d" % number for number in range(COUNT))


class Notes:
    """What a checkpoint would keep: the last resume state, then the commit state."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}

    def keep(self, **kept: str) -> None:
        self._kept = kept

    def get(self, key: str) -> str | None:
        return self._kept.get(key)


def write_and_commit(store: ObjectStore, uri: str, notes: Notes) -> None:
    """Resume from the notes, up to the published object."""
    writer = GSRecoverableWriter(store)
    commit = notes.get("commit")
    if commit is None:
        resume = notes.get("resume")
        serializer = writer.resume_recoverable_serializer
        stream = (
            writer.open(uri)
            if resume is None
            else writer.recover(serializer.deserialize(0, bytes.fromhex(resume)))
        )
        for number in range(stream.tell() // 5, COUNT):
            stream.write(b"%05d" % number)
            stream.sync()
            if number % PERSIST_EVERY == 0:
                notes.keep(resume=serializer.serialize(stream.persist()).hex())
        committer = stream.close_for_commit()
        notes.keep(commit=writer.commit_recoverable_serializer.serialize(committer.recoverable).hex())
    serialized = bytes.fromhex(str(notes.get("commit")))
    recoverable = writer.commit_recoverable_serializer.deserialize(0, serialized)
    writer.recover_for_commit(recoverable).commit_after_recovery()


def check_result(store: ObjectStore) -> None:
    assert store.get("out/part") == PAYLOAD
    sweep(store, plan_sweep(store, store.bucket_name))
    assert [stat.name for stat in store.list()] == ["out/part"]


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER], ids=lambda fault: fault.value)
@pytest.mark.parametrize("step", [18, pytest.param(1, marks=pytest.mark.soak)])
def test_killed_at_every_request(fault: Fault, step: int) -> None:
    """Killed before or after each request of a 100-component file and resumed by another process, the
    object is right byte for byte, and after one sweep nothing temporary is left.
    """
    index = 0
    while True:
        store = MemoryObjectStore()
        notes = Notes()
        view = FaultStore(store, AtRequests({index: fault}))
        uri = store.uri_of("out/part")
        try:
            write_and_commit(view, uri, notes)
        except SimulatedCrash:
            write_and_commit(store, uri, notes)
        check_result(store)
        if not view.crashed:
            return
        # Most requests are alike: only the end, where the commit is, is covered request by request.
        index += step if index < 2 * COUNT - 2 else 1


def test_sweep_deletes_what_is_not_kept() -> None:
    """A sweep spares components of kept states and attempts, and anything but temporary objects."""
    store = MemoryObjectStore("b")
    attempt = uuid.uuid4()
    wanted = GSRecoverableWriter(store).open("gs://b/x")
    living = GSRecoverableWriter(store, attempt=attempt).open("gs://b/x/y")
    dead = GSRecoverableWriter(store).open("gs://b/x")
    for stream in (wanted, living, dead):
        stream.write(b"1")
        stream.sync()
    store.put(".inprogress/b/x/readme", b"", precondition=ANY)
    store.put(f"data/.inprogress/b/x/{uuid.uuid4()}", b"", precondition=ANY)
    keep = [wanted.persist()]
    plan = plan_sweep(store, "b", keep=keep, keep_attempts=[attempt])
    assert [leftover.object_id for leftover in plan] == list(dead.persist().component_object_ids)
    assert plan_sweep(store, "b", keep=keep, keep_attempts=[attempt], object_prefix="z") == []
    assert sweep(store, plan) == 1
    assert sweep(store, plan) == 0
    assert len(list(store.list())) == 4
