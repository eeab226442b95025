"""Checksums, the two readback rules, the loop of attempts, and what opens what."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dstl_dagster.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.storage.base import ABSENT, Generation
from dstl_dagster.storage.memory import MemoryObjectStore
from dstl_dagster.storage.open import open_store
from dstl_dagster.storage.policy.retry import Retries, RetryPolicy
from dstl_dagster.storage.readback import Expected, put_own
from dstl_dagster.testing.fault_schedules import AtRequests, Fault, SeededFaults, SimulatedCrash
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.testing.virtual_clock import VirtualClock
from tests.doubles.interleaving import Interleaving
from tests.doubles.retrying_store import RetryingStore

# -- readback


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.ERROR_BEFORE, Fault.LATE_EFFECT])
def test_put_own_is_one_write(fault: Fault) -> None:
    """Repeated with the same writer id until it is known, a put makes one object and is told as success."""
    store = MemoryObjectStore()
    view = FaultStore(store, AtRequests({0: fault}))
    for _ in range(2):
        try:
            made = put_own(view, "a", b"x", writer_id="w1")
            break
        except UnavailableError:
            continue
    view.deliver_late_effects()
    assert store.stat("a") == made


def test_put_own_loses_to_a_rival() -> None:
    """A rival's object is a conflict, also with the same bytes, also after a lost answer."""
    store = MemoryObjectStore()
    put_own(store, "a", b"same", writer_id="rival")
    for faults in ({}, {0: Fault.LOST_ANSWER}, {0: Fault.ERROR_BEFORE}):
        with pytest.raises(ConflictError):
            put_own(FaultStore(store, AtRequests(faults)), "a", b"same", writer_id="w1")


def test_replacement_is_open_while_the_old_lives() -> None:
    """After a lost answer of a replacement that did not come, the old generation is no rival's."""
    store = MemoryObjectStore()
    old = store.put("a", b"old", precondition=ABSENT)
    view = FaultStore(store, AtRequests({0: Fault.ERROR_BEFORE}))
    with pytest.raises(UnavailableError):
        put_own(view, "a", b"new", writer_id="w1", precondition=Generation(old.generation))
    put_own(view, "a", b"new", writer_id="w1", precondition=Generation(old.generation))
    with pytest.raises(ConflictError):
        put_own(view, "a", b"newer", writer_id="w2", precondition=Generation(old.generation))


def test_an_empty_stamp_proves_nothing() -> None:
    """Without a stamp no object is ours, whatever its bytes."""
    store = MemoryObjectStore()
    made = store.put("a", b"x", precondition=ABSENT)
    assert not Expected({}, made.size, made.crc32c).matches(made)
    assert not Expected({"k": "v"}).matches(made)


# -- retries


def test_retries_stop_by_number_and_time() -> None:
    """No attempt beyond the number, none beyond the time; only UnavailableError is asked again."""
    clock = VirtualClock()
    asked: list[int] = []

    def fail(attempt: object) -> None:
        asked.append(attempt.number)
        raise UnavailableError("no")

    with pytest.raises(UnavailableError):
        Retries(RetryPolicy(max_attempts=4), clock=clock).run(fail)
    assert asked == [1, 2, 3, 4]
    asked.clear()
    began = clock.monotonic_seconds()
    with pytest.raises(UnavailableError):
        Retries(RetryPolicy(total_seconds=10.0), clock=clock, random_unit=lambda: 1.0).run(fail)
    assert clock.monotonic_seconds() - began <= 10.0
    assert len(asked) > 4

    def refuse(attempt: object) -> None:
        asked.append(0)
        raise ConflictError("no")

    asked.clear()
    with pytest.raises(ConflictError):
        Retries(clock=clock).run(refuse)
    assert asked == [0]


def test_pauses_grow_to_their_cap() -> None:
    """Each pause is at most twice the one before, up to the cap, and differs between callers."""
    policy = RetryPolicy(first_pause_seconds=1.0, max_pause_seconds=5.0)
    assert [policy.pause_seconds(number) for number in range(1, 6)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_retrying_store_reads_back() -> None:
    """A stamped put whose answer was lost is told as success; an unstamped one as the conflict it meets."""
    store = MemoryObjectStore()
    view = FaultStore(store, AtRequests({0: Fault.LOST_ANSWER, 3: Fault.LOST_ANSWER}))
    retrying = RetryingStore(view, Retries(clock=VirtualClock()))
    made = retrying.put("a", b"x", precondition=ABSENT, metadata={"dstl-writer-id": "w"})
    assert store.stat("a") == made
    with pytest.raises(ConflictError):
        retrying.put("b", b"x", precondition=ABSENT)


def test_retrying_list_goes_on_where_it_was() -> None:
    """A list that breaks off is begun again after the last name told: all once, in order."""
    store = MemoryObjectStore()
    for number in range(2500):
        store.put(f"{number:05d}", b"", precondition=ABSENT)
    view = FaultStore(store, AtRequests({1: Fault.ERROR_BEFORE, 3: Fault.ERROR_BEFORE}))
    retrying = RetryingStore(view, Retries(clock=VirtualClock()))
    assert [stat.name for stat in retrying.list()] == [f"{number:05d}" for number in range(2500)]


# -- the fault store itself: a check that cannot fail is none


def test_faults_do_what_they_say() -> None:
    """Each fault has its effect, or none, and the answer it promises."""
    store = MemoryObjectStore()
    faults = [
        Fault.ERROR_BEFORE,
        Fault.LOST_ANSWER,
        Fault.LATE_EFFECT,
        Fault.DELAY,
        Fault.CRASH_AFTER,
    ]
    clock = VirtualClock()
    view = FaultStore(store, AtRequests(dict(enumerate(faults))), clock=clock)
    for name in ("error", "lost", "late"):
        with pytest.raises(UnavailableError):
            view.put(name, b"", precondition=ABSENT)
    view.put("delayed", b"", precondition=ABSENT)
    assert clock.monotonic_seconds() == 30.0
    with pytest.raises(SimulatedCrash):
        view.put("crash", b"", precondition=ABSENT)
    with pytest.raises(SimulatedCrash):
        view.stat("dead")
    assert [stat.name for stat in store.list()] == ["crash", "delayed", "lost"]
    view.deliver_late_effects()
    assert [stat.name for stat in store.list()] == ["crash", "delayed", "late", "lost"]
    assert [request.method for request in view.requests] == ["put"] * 5


def test_seeds_replay() -> None:
    """The same seed gives the same faults and the same order of turns."""

    def run(seed: int) -> tuple[list[str], list[str]]:
        store, order, told = MemoryObjectStore(), [], []

        def act(name: str, turn: object) -> None:
            view = FaultStore(store, SeededFaults(seed, 0.3), before_request=turn)
            for number in range(6):
                try:
                    view.put(f"{name}{number}", b"", precondition=ABSENT)
                except UnavailableError as error:
                    told.append(str(error))
                order.append(name)

        Interleaving(seed).run([lambda turn: act("a", turn), lambda turn: act("b", turn)])
        return order, told

    assert run(4) == run(4)
    assert any(run(seed) != run(4) for seed in range(5, 9))


def test_corrupt_reads_are_corrupt() -> None:
    """A CORRUPT fault turns a bit of what is read."""
    store = MemoryObjectStore()
    store.put("a", b"right", precondition=ABSENT)
    view = FaultStore(store, AtRequests({0: Fault.CORRUPT}))
    assert view.get_range("a", 0, 5) != b"right"
    assert view.get_range("a", 0, 5) == b"right"


# -- opening


def test_memory_is_shared_by_its_name() -> None:
    """memory://bucket is one place in this process; a store alone is private, and opens by its uri."""
    name = f"shared-{random.getrandbits(60)}"
    open_store(f"memory://{name}").put("a", b"x", precondition=ABSENT)
    assert open_store(f"memory://{name}").get("a") == b"x"
    private = MemoryObjectStore(name)
    assert private.stat("a") is None
    private.put("b", b"y", precondition=ABSENT)
    assert open_store(private.uri).get("b") == b"y"
    gone = MemoryObjectStore().uri
    with pytest.raises(NotFoundError):
        open_store(gone)


@pytest.mark.parametrize("uri", ["", "nothing", "s3://b", "gs://", "memory://", "file://", None])
def test_what_is_no_store(uri: str) -> None:
    """Any other URI is InvalidInputError."""
    with pytest.raises(InvalidInputError):
        open_store(uri)


@pytest.mark.parametrize(
    ("uri", "advice"),
    [
        ("gs:/bucket/x", "did you mean gs://bucket/x"),
        ("file:folder/x", "did you mean file:///folder/x"),
        ("s3://bucket/x", "there is no store for s3://; use gs://"),
        ("/data/state", "did you mean the folder file:///data/state"),
        ("data", f"did you mean the folder {Path.cwd().as_uri()}/data"),
        ("  ", "use gs://bucket/prefix or file:///absolute/folder"),
        ("file:///", "is the root of the file system"),
        ("file:////", "is the root of the file system"),
    ],
)
def test_what_to_write_instead(uri: str, advice: str) -> None:
    """The likely meaning of what was written."""
    with pytest.raises(InvalidInputError, match=re.escape(advice)):
        open_store(uri)


def test_imports_are_light() -> None:
    """Importing our modules loads neither Google's client, nor dagster, nor pyspark."""
    code = (
        "import sys, dstl_dagster.storage.open, dstl_dagster.storage.local.store, "
        "dstl_dagster.storage.memory, dstl_dagster.storage.policy.retry, "
        "dstl_dagster.recoverable, dstl_dagster.testing.fault_store\n"
        "bad = [m for m in ('google.cloud.storage', 'dagster', 'pyspark', 'requests') if m in sys.modules]\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
