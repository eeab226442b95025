"""Each outcome of a commit, what it costs, and what it refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import uuid

import pytest

from dstl_dagster.errors import ConflictError, FormatError, InvalidInputError, NotFoundError
from dstl_dagster.recoverable import (
    CommitState,
    Component,
    FileCommit,
    GSCommitRecoverable,
    GSRecoverableWriter,
    fingerprint_of,
    is_own,
    plan_sweep,
    recoverable_hash,
    temporary_names,
)
from dstl_dagster.recoverable.compose_plan import plan_compose, waves
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage.base import ABSENT, ANY
from dstl_dagster.storage.memory import MemoryObjectStore
from dstl_dagster.testing.fault_schedules import AtRequests, Fault, SimulatedCrash
from dstl_dagster.testing.fault_store import FaultStore

ENTROPY = GSFileSystemOptions(filesink_entropy_enabled=True)
OTHER_BUCKET = GSFileSystemOptions(writer_temporary_bucket_name="temporary")


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore("b")


def write(
    store: MemoryObjectStore, count: int, options: GSFileSystemOptions | None = None
) -> tuple[GSCommitRecoverable, tuple[Component, ...], bytes]:
    stream = GSRecoverableWriter(store, options).open("gs://b/out")
    for number in range(count):
        stream.write(b"%d;" % number)
        stream.sync()
    recoverable = stream.close_for_commit().recoverable
    return recoverable, stream.components, b"".join(b"%d;" % number for number in range(count))


def names(store: MemoryObjectStore) -> list[str]:
    return [stat.name for bucket in ("b", "temporary") for stat in store.in_bucket(bucket).list()]


# -- what it costs


@pytest.mark.parametrize("count", [1, 2, 32, 33, 63, 100, 1000])
def test_requests_of_a_commit(store: MemoryObjectStore, count: int) -> None:
    """n known components: ceil((n-1)/31) composes. If they are several, first a stat of the final name: one
    alone is that look. No list, no delete.
    """
    recoverable, components, payload = write(store, count)
    view = FaultStore(store)
    outcome = FileCommit(view, recoverable, components).commit()
    assert outcome.state is CommitState.PUBLISHED
    assert store.get("out") == payload
    assert names(store) == ["out"]
    methods = [request.method for request in view.requests]
    assert methods.count("stat") == (count > 32)
    assert methods.count("compose") == max(1, -(-(count - 1) // 31))
    assert len(methods) == methods.count("stat") + methods.count("compose")


def test_bare_state_costs_a_stat_per_component(store: MemoryObjectStore) -> None:
    """Components that are not known cost one metadata read each."""
    recoverable, _, _ = write(store, 40)
    view = FaultStore(store)
    FileCommit(view, recoverable).commit()
    methods = [request.method for request in view.requests]
    assert (methods.count("stat"), methods.count("compose")) == (41, 2)


def test_composes_of_a_wave_are_concurrent(store: MemoryObjectStore) -> None:
    """All composes of a wave are in flight at once: none waits for another."""
    recoverable, components, _ = write(store, 128)
    root = plan_compose(recoverable)
    assert root is not None
    first_wave = len(waves(root)[0])
    together = threading.Barrier(first_wave)

    class Meeting(FaultStore):
        def compose(self, sources: object, target: str, **options: object) -> object:
            if target != "out":
                together.wait(30)  # broken unless all are here
            return super().compose(sources, target, **options)

        def in_bucket(self, bucket_name: str) -> Meeting:
            return self

    assert first_wave > 1
    assert FileCommit(Meeting(store), recoverable, components).commit().state is CommitState.PUBLISHED


# -- outcomes


def test_commit_again_finds_it_done(store: MemoryObjectStore) -> None:
    """The final object is recognized by its fingerprint, even without known components."""
    recoverable, components, _ = write(store, 40)
    made = FileCommit(store, recoverable, components).commit().final
    for known in (components, None):
        outcome = FileCommit(store, recoverable, known).commit()
        assert (outcome.state, outcome.final) == (CommitState.ALREADY_PUBLISHED, made)


def test_fingerprint_is_checked_against_the_bytes(store: MemoryObjectStore) -> None:
    """An object with our hash but different bytes is not ours."""
    recoverable, components, _ = write(store, 2)
    fingerprint = fingerprint_of(recoverable, components)
    store.put("out", b"other", precondition=ABSENT, metadata=fingerprint.to_metadata())
    outcome = FileCommit(store, recoverable, components).commit()
    assert outcome.state is CommitState.BLOCKED
    assert not is_own(store.stat("out"), recoverable_hash(recoverable))


def test_blocked_touches_nothing(store: MemoryObjectStore) -> None:
    """A foreign object is reported with its generation; after its removal the same commit publishes."""
    recoverable, components, payload = write(store, 40)
    foreign = store.put("out", b"foreign", precondition=ABSENT)
    before = names(store)
    view = FaultStore(store)
    outcome = FileCommit(view, recoverable, components).commit()
    assert (outcome.state, outcome.foreign_generation) == (CommitState.BLOCKED, foreign.generation)
    assert "foreign" in str(outcome.reason)
    assert names(store) == before
    assert not any(request.changes for request in view.requests)
    store.delete("out", precondition=ANY)
    assert FileCommit(store, recoverable, components).commit().state is CommitState.PUBLISHED
    assert store.get("out") == payload


def test_blocked_in_the_middle_continues_later(store: MemoryObjectStore) -> None:
    """A foreign object that appears after the first wave blocks; the bytes stay, and a repeat continues."""
    recoverable, components, payload = write(store, 40)

    class Late(FaultStore):
        def compose(self, sources: object, target: str, **options: object) -> object:
            if target == "out":
                self.inner.put("out", b"foreign", precondition=ANY)
            return super().compose(sources, target, **options)

        def in_bucket(self, bucket_name: str) -> Late:
            return self

    assert FileCommit(Late(store), recoverable, components).commit().state is CommitState.BLOCKED
    store.delete("out", precondition=ANY)
    for known in (components, None):
        FileCommit(store, recoverable, known).commit()
        assert store.get("out") == payload
        assert names(store) == ["out"]


def test_foreign_object_at_an_intermediate(store: MemoryObjectStore) -> None:
    """A foreign object at an intermediate's name blocks too, and stays."""
    recoverable, components, _ = write(store, 40)
    root = plan_compose(recoverable)
    assert root is not None
    (node,) = waves(root)[0]
    name = f".inprogress/b/out/{node.object_id}"
    foreign = store.put(name, b"foreign", precondition=ABSENT)
    outcome = FileCommit(store, recoverable, components).commit()
    assert (outcome.state, outcome.foreign_generation) == (CommitState.BLOCKED, foreign.generation)
    assert store.stat(name) == foreign


@pytest.mark.parametrize("options", [None, ENTROPY, OTHER_BUCKET], ids=["plain", "entropy", "other-bucket"])
def test_a_removed_file_is_never_recreated(
    store: MemoryObjectStore, options: GSFileSystemOptions | None
) -> None:
    """A file that was published and removed is reported as `taken_away`, and nothing is recreated."""
    recoverable, components, _ = write(store, 40, options)
    FileCommit(store, recoverable, components, options=options).commit()
    store.delete("out", precondition=ANY)
    for known in (components, None):
        outcome = FileCommit(store, recoverable, known, options=options).commit()
        assert outcome.state is CommitState.TAKEN_AWAY
        assert names(store) == []
    committer = GSRecoverableWriter(store, options).recover_for_commit(recoverable)
    assert committer.commit_after_recovery().state is CommitState.TAKEN_AWAY
    with pytest.raises(NotFoundError):
        committer.commit()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("commit", ["commit", "commit_after_recovery"])
def test_lost_component_is_no_success(store: MemoryObjectStore, commit: str, known: bool) -> None:
    """Each commit reports a component that was deleted, and leaves the others as they are."""
    recoverable, components, _ = write(store, 3)
    store.delete(components[1].object_name, precondition=ANY)
    committer = GSRecoverableWriter(store).recover_for_commit(recoverable, components if known else None)
    with pytest.raises(NotFoundError, match=r"some components .* are gone, and others are there"):
        getattr(committer, commit)()
    assert names(store) == sorted([components[0].object_name, components[2].object_name])


# -- bytes


def test_wrong_bytes_keep_their_sources(store: MemoryObjectStore) -> None:
    """A compose whose result lacks the combined checksum is refused before any source is deleted."""
    recoverable, components, _ = write(store, 3)
    wrong = (components[0], dataclasses.replace(components[1], crc32c=1), components[2])
    before = names(store)
    with pytest.raises(FormatError):
        FileCommit(store, recoverable, wrong).commit()
    assert names(store) == before


def test_another_generation_is_not_composed(store: MemoryObjectStore) -> None:
    """A component that has been replaced is not composed, and the file is not called published."""
    recoverable, components, _ = write(store, 2)
    store.put(components[0].object_name, b"0;", precondition=ANY)
    outcome = FileCommit(store, recoverable, components).commit()
    assert outcome.state is CommitState.BLOCKED
    assert store.stat("out") is None
    assert len(names(store)) == 2


# -- places


def test_known_components_outlive_changed_options(store: MemoryObjectStore) -> None:
    """With components on record, a changed temporary bucket or entropy option strands nothing."""
    for made_with in (None, ENTROPY, OTHER_BUCKET):
        for committed_with in (None, ENTROPY, OTHER_BUCKET):
            recoverable, components, payload = write(store, 40, made_with)
            view = FaultStore(store, AtRequests({2: Fault.LOST_ANSWER}))
            FileCommit(view, recoverable, components, options=committed_with).commit()
            assert store.get("out") == payload
            assert names(store) == ["out"]
            store.delete("out", precondition=ANY)


def test_components_of_another_recoverable(store: MemoryObjectStore) -> None:
    """Components that are not the recoverable's, or not in its order, are refused before any request."""
    recoverable, components, _ = write(store, 2)
    other = GSCommitRecoverable(recoverable.final_blob_identifier, [uuid.uuid4(), uuid.uuid4()])
    moved = (components[0], dataclasses.replace(components[1], bucket_name="elsewhere"))
    view = FaultStore(store)
    for state, given in (
        (other, components),
        (recoverable, components[::-1]),
        (recoverable, components[:1]),
        (recoverable, moved),
        (GSCommitRecoverable(recoverable.final_blob_identifier, []), components),
    ):
        with pytest.raises(InvalidInputError):
            FileCommit(view, state, given).commit()
    assert view.requests == ()


# -- undoing


@pytest.mark.parametrize("known", [True, False])
def test_discard_takes_exactly_the_sources(store: MemoryObjectStore, known: bool) -> None:
    """Sources go, by generation; a neighbour's, and a newer object at a component's name, stay."""
    recoverable, components, _ = write(store, 3)
    neighbour, _, _ = write(store, 2)
    given = components if known else None
    assert FileCommit(store, recoverable, given).discard() == 3
    assert FileCommit(store, recoverable, given).discard() == 0
    assert len(names(store)) == len(neighbour.component_object_ids)
    anew = store.put(components[0].object_name, b"anew", precondition=ABSENT)
    if known:
        assert FileCommit(store, recoverable, components).discard() == 0
        assert store.stat(anew.name) == anew


@pytest.mark.parametrize("options", [None, ENTROPY, OTHER_BUCKET], ids=["plain", "entropy", "other-bucket"])
@pytest.mark.parametrize("requests", range(6))
def test_retract_at_any_point_of_a_commit(
    store: MemoryObjectStore, options: GSFileSystemOptions | None, requests: int
) -> None:
    """However far a commit got, a retraction leaves nothing of it, and spares a foreign final object."""
    recoverable, components, _ = write(store, 70, options)
    view = FaultStore(store, AtRequests({requests: Fault.CRASH_AFTER}))
    with contextlib.suppress(SimulatedCrash):
        FileCommit(view, recoverable, components, options=options, parallelism=1).commit()
    FileCommit(store, recoverable, components, options=options).retract()
    assert names(store) == []
    foreign = store.put("out", b"foreign", precondition=ABSENT)
    assert FileCommit(store, recoverable, components, options=options).retract() is False
    assert store.stat("out") == foreign


def test_temporary_names_are_all_there_ever_are(store: MemoryObjectStore) -> None:
    """Every temporary object of a commit is among the names that clean-up spares."""
    recoverable, components, _ = write(store, 70, OTHER_BUCKET)
    spared = {blob.object_name for blob in temporary_names(recoverable, components)}
    view = FaultStore(store)
    FileCommit(view, recoverable, components).commit()
    made = {request.name for request in view.requests if request.changes} - {"out"}
    assert made <= spared
    assert {component.object_name for component in components} <= spared


def test_sweep_spares_a_commit_in_progress(store: MemoryObjectStore) -> None:
    """A kept state keeps the intermediates of its commit too."""
    recoverable, components, payload = write(store, 40)
    view = FaultStore(store, AtRequests({2: Fault.CRASH_BEFORE}))
    with pytest.raises(SimulatedCrash):
        FileCommit(view, recoverable, components, parallelism=1).commit()
    assert plan_sweep(store, "b", keep=[recoverable]) == []
    assert len(plan_sweep(store, "b")) == 32  # 31 components, and an intermediate of 9
    assert FileCommit(store, recoverable, components).commit().state is CommitState.PUBLISHED
    assert store.get("out") == payload


def test_conflict_names_the_way_out(store: MemoryObjectStore) -> None:
    """The message of a refused commit names the obstacle and the remedy."""
    recoverable, _, _ = write(store, 1)
    store.put("out", b"", precondition=ABSENT)
    committer = GSRecoverableWriter(store).recover_for_commit(recoverable)
    with pytest.raises(ConflictError, match="commit_after_recovery") as raised:
        committer.commit()
    assert raised.value.kind == "foreign_object"
    with pytest.raises(ConflictError) as raised:
        committer.commit_after_recovery()
    assert raised.value.kind == "foreign_object"
