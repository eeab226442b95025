"""Rivals, zombies, crashes and lost answers around one commit; upstream's algorithm fails the same checks."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable

import pytest

from dstl_dagster.errors import ConflictError, DstlError, UnavailableError
from dstl_dagster.recoverable import CommitState, GSCommitRecoverable, GSRecoverableWriter
from dstl_dagster.recoverable.commit import FileCommit
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage.base import ABSENT, ANY, ObjectStore
from dstl_dagster.storage.memory import MemoryObjectStore
from dstl_dagster.storage.policy.retry import Retries, RetryPolicy
from dstl_dagster.testing.fault_schedules import (
    AtRequests,
    Fault,
    SeededFaults,
    SimulatedCrash,
)
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.testing.upstream_commit import UpstreamCommitter
from dstl_dagster.testing.virtual_clock import VirtualClock
from tests.doubles.interleaving import Interleaving
from tests.doubles.retrying_store import RetryingStore

FINAL = "out/part-1"
PLAIN = GSFileSystemOptions()
ENTROPY = GSFileSystemOptions(filesink_entropy_enabled=True)
OTHER_BUCKET = GSFileSystemOptions(writer_temporary_bucket_name="temporary")

Commit = Callable[[ObjectStore, GSFileSystemOptions, GSCommitRecoverable], None]


def ours(store: ObjectStore, options: GSFileSystemOptions, recoverable: GSCommitRecoverable) -> None:
    outcome = FileCommit(store, recoverable, options=options, parallelism=1).commit()
    if outcome.state is CommitState.BLOCKED:
        raise ConflictError(str(outcome.reason))


def upstream(store: ObjectStore, options: GSFileSystemOptions, recoverable: GSCommitRecoverable) -> None:
    UpstreamCommitter(store, options, recoverable).commit_after_recovery()


def write(
    store: ObjectStore, count: int, options: GSFileSystemOptions = PLAIN, name: str = FINAL, tag: bytes = b"c"
) -> tuple[GSCommitRecoverable, bytes]:
    """Components `<tag>0;<tag>1;...`, and the bytes that the final object must have."""
    stream = GSRecoverableWriter(store, options).open(store.uri_of(name))
    pieces = [b"%s%d;" % (tag, number) for number in range(count)]
    for piece in pieces:
        stream.write(piece)
        stream.persist()
    return stream.close_for_commit().recoverable, b"".join(pieces)


def faulty(
    store: ObjectStore, seed: int, turn: Callable[[], None], views: list[FaultStore] | None = None
) -> ObjectStore:
    """A process's view with one request in ten failing, retried like a real store."""
    view = FaultStore(store, SeededFaults(seed, 0.1), before_request=turn)
    if views is not None:
        views.append(view)
    policy = RetryPolicy(max_attempts=3, total_seconds=None)
    return RetryingStore(view, Retries(policy, clock=VirtualClock(), random_unit=lambda: 1.0))


def temporary_objects(store: ObjectStore) -> list[str]:
    everywhere = [
        *(stat.name for stat in store.list()),
        *(stat.name for stat in store.in_bucket("temporary").list()),
    ]
    return [name for name in everywhere if ".inprogress/" in name]


def run_until_done(act: Callable[[], None], deadline: int = 200) -> None:
    for _ in range(deadline):
        try:
            act()
        except UnavailableError:
            continue
        return
    raise AssertionError("never done")


# -- the guarantees, each as a check that a commit passes or not


def check_overwrite_race(commit: Commit, seeds: range) -> None:
    """Of two rivals for one name one wins and the other gets an error; the bytes are the winner's."""
    for seed in seeds:
        store = MemoryObjectStore()
        # Mostly small files, and now and then one of two waves.
        counts = (1 + seed % 3, 34 if seed % 8 == 0 else 1 + seed // 3 % 3)
        rivals = [write(store, count, tag=tag) for count, tag in zip(counts, (b"a", b"b"), strict=True)]
        outcomes: list[str] = ["", ""]

        def rival(
            number: int, turn: Callable[[], None], store=store, rivals=rivals, outcomes=outcomes, seed=seed
        ):
            view = FaultStore(store, SeededFaults(seed * 2 + number, 0.08), before_request=turn)
            try:
                run_until_done(lambda: commit(view, PLAIN, rivals[number][0]))
                outcomes[number] = "won"
            except ConflictError:
                outcomes[number] = "lost"

        raised = Interleaving(seed).run(
            [lambda turn, rival=rival: rival(0, turn), lambda turn, rival=rival: rival(1, turn)]
        )
        assert raised == [None, None], (seed, raised)
        assert sorted(outcomes) == ["lost", "won"], (seed, outcomes)
        assert store.get(FINAL) == rivals[outcomes.index("won")][1], seed


def check_foreign_object_stays(commit: Commit) -> None:
    """A foreign object at the final name is reported, and neither it nor the sources are touched."""
    store = MemoryObjectStore()
    recoverable, _ = write(store, 3)
    foreign = store.put(FINAL, b"foreign", precondition=ABSENT)
    sources = temporary_objects(store)
    with pytest.raises(ConflictError):
        commit(store, PLAIN, recoverable)
    assert store.stat(FINAL) == foreign
    assert temporary_objects(store) == sources


def check_neighbour_below_stays(commit: Commit) -> None:
    """A commit of `foo` leaves the live components of `foo/bar` alone, and those of a rival for `foo`."""
    store = MemoryObjectStore()
    neighbour, neighbour_bytes = write(store, 2, name="foo/bar")
    rival, _ = write(store, 2, name="foo", tag=b"r")
    recoverable, _ = write(store, 2, name="foo")
    commit(store, PLAIN, recoverable)
    kept = [*neighbour.component_blob_ids(PLAIN), *rival.component_blob_ids(PLAIN)]
    assert temporary_objects(store) == sorted(blob.object_name for blob in kept)
    commit(store, PLAIN, neighbour)
    assert store.get("foo/bar") == neighbour_bytes


def check_entropy_leaves_nothing(commit: Commit) -> None:
    """With entropy names, too, no temporary object is left after a commit."""
    store = MemoryObjectStore()
    recoverable, payload = write(store, 40, ENTROPY)
    commit(store, ENTROPY, recoverable)
    assert store.get(FINAL) == payload
    assert temporary_objects(store) == []


def check_retries_leave_nothing(commit: Commit, options: GSFileSystemOptions, count: int) -> None:
    """A commit killed at any request, and run again elsewhere, leaves nothing but the object."""
    index = 0
    while True:
        store = MemoryObjectStore()
        recoverable, payload = write(store, count, options)
        view = FaultStore(store, AtRequests({index: Fault.CRASH_AFTER}))
        with contextlib.suppress(SimulatedCrash):
            commit(view, options, recoverable)
        commit(store, options, recoverable)
        assert store.get(FINAL) == payload, index
        assert temporary_objects(store) == [], index
        if not view.crashed:
            return
        index += 1


def check_zombies_leave_nothing(commit: Commit, seeds: range) -> None:
    """Two commits of one recoverable at the same time leave the object and no intermediate of either."""
    for seed in seeds:
        store = MemoryObjectStore()
        recoverable, payload = write(store, 70)

        def act(
            turn: Callable[[], None],
            store: ObjectStore = store,
            recoverable: GSCommitRecoverable = recoverable,
        ) -> None:
            commit(FaultStore(store, before_request=turn), PLAIN, recoverable)

        Interleaving(seed).run([act, act])
        assert store.get(FINAL) == payload, seed
        assert temporary_objects(store) == [], seed


# -- ours passes them all


@pytest.mark.parametrize(
    "seeds", [range(300), pytest.param(range(300, 1_000), marks=pytest.mark.soak)], ids=str
)
def test_one_of_two_rivals_wins(seeds: range) -> None:
    """Seeded races with lost answers, errors and late effects have one winner, whose bytes stay."""
    check_overwrite_race(ours, seeds)


def test_foreign_object_stays() -> None:
    """A foreign object at the final name blocks the commit and nothing is touched."""
    check_foreign_object_stays(ours)


def test_neighbour_below_stays() -> None:
    """Clean-up takes exactly what the recoverable names."""
    check_neighbour_below_stays(ours)


def test_entropy_leaves_nothing() -> None:
    """Entropy names are cleaned up."""
    check_entropy_leaves_nothing(ours)


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 60), marks=pytest.mark.soak)], ids=str)
def test_zombies_leave_nothing(seeds: range) -> None:
    """Intermediates have one name each, and the last of two zombies leaves none."""
    check_zombies_leave_nothing(ours, seeds)


@pytest.mark.parametrize("options", [PLAIN, ENTROPY, OTHER_BUCKET], ids=["plain", "entropy", "other-bucket"])
@pytest.mark.parametrize("count", [0, 1, 2, 33, 70])
def test_killed_at_any_request_then_run_again(options: GSFileSystemOptions, count: int) -> None:
    """Killed after any request and run again, a commit ends with the right object and no leftover."""
    check_retries_leave_nothing(ours, options, count)


# -- and upstream's algorithm is caught by each


@pytest.mark.parametrize(
    "check",
    [
        lambda: check_overwrite_race(upstream, range(100)),
        lambda: check_foreign_object_stays(upstream),
        lambda: check_neighbour_below_stays(upstream),
        lambda: check_entropy_leaves_nothing(upstream),
        lambda: check_zombies_leave_nothing(upstream, range(100)),
    ],
    ids=["overwrite", "foreign", "neighbour", "entropy", "leftovers"],
)
def test_upstream_is_caught(check: Callable[[], None]) -> None:
    """Upstream's commit fails each check, so each check can fail."""
    with pytest.raises((AssertionError, DstlError, pytest.fail.Exception)):
        check()


# -- crash, zombie and consumer


FAULTS = [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_ANSWER, Fault.LATE_EFFECT, Fault.ERROR_BEFORE]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.value)
@pytest.mark.parametrize("options", [PLAIN, OTHER_BUCKET], ids=["plain", "other-bucket"])
def test_any_fault_at_any_request(fault: Fault, options: GSFileSystemOptions) -> None:
    """With one fault at any request of a 35-component commit, a second run ends right, and the late
    effect of the first changes nothing any more, not even after a consumer took the file away.
    """
    index = 0
    while True:
        store = MemoryObjectStore()
        recoverable, payload = write(store, 35, options)
        view = FaultStore(store, AtRequests({index: fault}))
        with contextlib.suppress(SimulatedCrash, UnavailableError):
            ours(view, options, recoverable)
        ours(store, options, recoverable)
        assert store.get(FINAL) == payload, index
        assert temporary_objects(store) == [], index
        store.delete(FINAL, precondition=ANY)
        view.deliver_late_effects()
        outcome = FileCommit(store, recoverable, options=options).commit()
        assert outcome.state is CommitState.TAKEN_AWAY
        assert list(store.list()) == [], index
        assert temporary_objects(store) == [], index
        if index >= len(view.requests):
            return
        index += 1


def zombies_and_consumer(seed: int) -> None:
    """Two concurrent commits of one file, with faults, and a consumer that takes it once it is published."""
    store = MemoryObjectStore()
    options = (PLAIN, ENTROPY, OTHER_BUCKET)[seed % 3]
    recoverable, payload = write(store, (1, 2, 33, 40, 64)[seed % 5], options)
    views: list[FaultStore] = []
    taken: list[bytes] = []

    def committer(turn: Callable[[], None], fault_seed: int) -> None:
        view = faulty(store, fault_seed, turn, views)
        states = []
        run_until_done(
            lambda: states.append(
                FileCommit(view, recoverable, options=options, parallelism=1).commit().state
            )
        )
        assert states[0] is not CommitState.BLOCKED
        # Both may report it: a twin's object is as good as one's own. The consumer comes once.
        if states[0] is CommitState.PUBLISHED and not taken:
            # What `published` promises: from now on the file is a consumer's.
            assert temporary_objects(store) == []
            taken.append(store.get(FINAL))
            store.delete(FINAL, precondition=ANY)

    raised = Interleaving(seed).run(
        [
            lambda turn: committer(turn, seed),
            lambda turn: committer(turn, seed + 10**6),
        ]
    )
    assert raised == [None, None], (seed, raised)
    for view in views:
        view.deliver_late_effects()
    if taken:
        assert taken == [payload], seed
        assert store.stat(FINAL) is None, seed
    else:
        assert store.get(FINAL) == payload, seed
    outcome = FileCommit(store, recoverable, options=options).commit()
    assert outcome.state is (CommitState.TAKEN_AWAY if taken else CommitState.ALREADY_PUBLISHED)
    assert temporary_objects(store) == [], seed


@pytest.mark.parametrize("seeds", [range(50), pytest.param(range(50, 3000), marks=pytest.mark.soak)])
def test_zombies_publish_once(seeds: range) -> None:
    """Two concurrent commits of one file publish it once; once removed it never comes back."""
    for seed in seeds:
        zombies_and_consumer(seed)


def test_retract_beside_a_commit_leaves_nothing() -> None:
    """A retraction repeated after the end of a concurrent commit leaves nothing of the file."""
    from dstl_dagster.recoverable import FileCommit

    for seed in range(90):
        store = MemoryObjectStore()
        recoverable, _ = write(store, (1, 33, 40)[seed % 3])
        neighbour = store.put("out/part-2", b"other", precondition=ABSENT)

        def commit(turn: Callable[[], None], store=store, recoverable=recoverable, seed=seed) -> None:
            view = faulty(store, seed, turn)
            run_until_done(lambda: FileCommit(view, recoverable, parallelism=1).commit())

        def retract(turn: Callable[[], None], store=store, recoverable=recoverable, seed=seed) -> None:
            view = faulty(store, seed + 10**6, turn)
            run_until_done(lambda: FileCommit(view, recoverable, parallelism=1).retract())

        raised = Interleaving(seed).run([commit, retract])
        assert raised == [None, None], (seed, raised)
        FileCommit(store, recoverable).retract()
        assert list(store.list()) == [neighbour], seed


def test_writer_ids_make_components_unique() -> None:
    """The upper half of every temporary id is the attempt's, intermediates included."""
    from dstl_dagster.recoverable import temporary_names
    from dstl_dagster.recoverable.recoverables import attempt_of

    attempt = uuid.uuid4()
    store = MemoryObjectStore()
    stream = GSRecoverableWriter(store, attempt=attempt).open(store.uri_of(FINAL))
    for number in range(40):
        stream.write(b"%d" % number)
        stream.persist()
    names = temporary_names(stream.close_for_commit().recoverable)
    ids = [uuid.UUID(name.object_name.rpartition("/")[2]) for name in names]
    assert {attempt_of(object_id) for object_id in ids} == {attempt.int >> 64}
    assert len(set(ids)) == len(ids)
