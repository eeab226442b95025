"""The commit of one of a checkpoint's files: without a look at its final name, and its copy's source last."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from dstl_dagster.recoverable import (
    CommitState,
    Component,
    FileCommit,
    GSCommitRecoverable,
    GSRecoverableWriter,
    delete_copied,
)
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ABSENT, ANY, MemoryObjectStore
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.testing.virtual_clock import VirtualClock

PLAIN = GSFileSystemOptions()
OTHER_BUCKET = GSFileSystemOptions(writer_temporary_bucket_name="temporary")


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets take one change of an object a second."""
    declared = MemoryObjectStore.capabilities.fget  # type: ignore[attr-defined] # of a property
    monkeypatch.setattr(
        MemoryObjectStore,
        "capabilities",
        property(lambda store: replace(declared(store), seconds_between_updates=1.0)),
    )


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore("b")


def write(
    store: MemoryObjectStore, count: int, options: GSFileSystemOptions = PLAIN, name: str = "out"
) -> tuple[GSCommitRecoverable, tuple[Component, ...], bytes]:
    stream = GSRecoverableWriter(store, options).open(f"gs://b/{name}")
    for number in range(count):
        stream.write(b"%d;" % number)
        stream.sync()
    recoverable = stream.close_for_commit().recoverable
    return recoverable, stream.components, b"".join(b"%d;" % number for number in range(count))


def names(store: MemoryObjectStore) -> list[str]:
    return [stat.name for bucket in ("b", "temporary") for stat in store.in_bucket(bucket).list()]


@pytest.mark.parametrize(
    ("count", "options", "expected"),
    [
        (1, PLAIN, {"compose": 1}),
        (32, PLAIN, {"compose": 1}),
        (40, PLAIN, {"compose": 2}),
        (300, PLAIN, {"compose": 10}),
        (1, OTHER_BUCKET, {"copy": 1, "delete": 1}),
        (2, OTHER_BUCKET, {"compose": 1, "copy": 1, "delete": 1}),
        (40, OTHER_BUCKET, {"compose": 2, "copy": 1, "delete": 1}),
    ],
)
def test_requests_of_one_of_many(
    store: MemoryObjectStore, count: int, options: GSFileSystemOptions, expected: dict[str, int]
) -> None:
    """The composes alone; to another bucket a copy, and the deletion of what was copied."""
    recoverable, components, payload = write(store, count, options)
    view = FaultStore(store)
    outcome, copied = FileCommit(view, recoverable, components, options=options, parallelism=8).compose()
    delete_copied(copied, VirtualClock(), threads=8)
    assert Counter(request.method for request in view.requests) == expected
    assert (outcome.state, store.get("out")) == (CommitState.PUBLISHED, payload)
    assert names(store) == ["out"]


@pytest.mark.parametrize("options", [PLAIN, OTHER_BUCKET], ids=["plain", "other-bucket"])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_foreign_object_costs_no_byte(
    store: MemoryObjectStore, count: int, options: GSFileSystemOptions
) -> None:
    """Found late, it stays; once it is gone a repeat publishes, and discarding leaves nothing."""
    for discard in (False, True):
        recoverable, components, payload = write(store, count, options)
        foreign = store.put("out", b"foreign", precondition=ABSENT)
        for _ in range(2):
            outcome, copied = FileCommit(
                store, recoverable, components, options=options, parallelism=1
            ).compose()
            assert (outcome.state, outcome.foreign_generation, copied) == (
                CommitState.BLOCKED,
                foreign.generation,
                [],
            )
        assert store.stat("out") == foreign
        if discard:
            FileCommit(store, recoverable, components, options=options).discard()
            assert names(store) == ["out"]
        else:
            store.delete("out", precondition=ANY)
            FileCommit(store, recoverable, components, options=options).commit()
            assert store.get("out") == payload
        store.delete("out", precondition=ANY)
        assert names(store) == []


@pytest.mark.parametrize("options", [PLAIN, OTHER_BUCKET], ids=["plain", "other-bucket"])
@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("taken_away", [False, True])
def test_a_repeat_changes_nothing(
    store: MemoryObjectStore, count: int, options: GSFileSystemOptions, taken_away: bool
) -> None:
    """A published file is not written again, be it there or moved away."""
    recoverable, components, _ = write(store, count, options)
    made, copied = FileCommit(store, recoverable, components, options=options, parallelism=1).compose()
    delete_copied(copied, VirtualClock(), threads=1)
    if taken_away:
        store.delete("out", precondition=ANY)
    outcome, copied = FileCommit(store, recoverable, components, options=options, parallelism=1).compose()
    delete_copied(copied, VirtualClock(), threads=1)
    if taken_away:
        assert (outcome.state, names(store)) == (CommitState.TAKEN_AWAY, [])
    else:
        assert (outcome.final, names(store)) == (made.final, ["out"])


@pytest.mark.parametrize("count", [1, 2])
def test_a_kill_before_the_deletion_is_made_good(store: MemoryObjectStore, count: int) -> None:
    """What was copied is still there: the next run finds the final object and deletes it."""
    recoverable, components, _ = write(store, count, OTHER_BUCKET)
    FileCommit(store, recoverable, components, options=OTHER_BUCKET, parallelism=1).compose()
    assert len(names(store)) == 2
    FileCommit(store, recoverable, components, options=OTHER_BUCKET).commit()
    assert names(store) == ["out"]


@pytest.mark.parametrize("count", [1, 2])
def test_one_wait_for_all_files(count: int, limited: None) -> None:
    """Not before the youngest of what goes is a second old, by the bucket's clock; then in one batch."""
    bucket, ours = VirtualClock(), VirtualClock()
    store = MemoryObjectStore("b", clock=bucket)
    files = []
    for number in range(3):
        files.append(write(store, count, OTHER_BUCKET, f"out{number}"))
        bucket.advance(0.25)
    view = FaultStore(store)
    copied = []
    for recoverable, components, _ in files:
        bucket.advance(0.125)
        copied += FileCommit(view, recoverable, components, options=OTHER_BUCKET, parallelism=1).compose()[1]
    delete_copied(copied, ours, threads=8)
    # A component is as old as it is; what was composed is as young as its compose.
    assert ours.monotonic_seconds() == (1.0 - 0.25 - 3 * 0.125 if count == 1 else 1.0)
    assert names(store) == ["out0", "out1", "out2"]
