"""Every storage request of two checkpoints fails, in every way: the objects end up as without the fault.

The oracle inspects the objects themselves, and shares no code with the coordinator.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, FileReport, OperatorReport
from dstl_dagster.checkpoint.steps import compose_commit
from dstl_dagster.errors import DstlError, UnavailableError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StreamStateHandle
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import ABSENT, MemoryObjectStore, ObjectStore
from dstl_dagster.testing.fault_schedules import AtRequests, Fault, SeededFaults, SimulatedCrash
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.timeline import Completed, TimelineView, decisions
from tests.doubles.interleaving import Interleaving

DAYS = (1, 2)
OPTIONS = CheckpointOptions(num_retained=1, reader_grace=timedelta(0), commit_threads=1)
FAULTS = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.ERROR_BEFORE, Fault.LOST_ANSWER, Fault.LATE_EFFECT)


def job(store: ObjectStore) -> None:
    """What a scheduler repeats until it succeeds: each day once, then a clean-up."""
    coordinator = CheckpointCoordinator("sim", store, OPTIONS, owner="run")
    for day in DAYS:
        if coordinator.applied(f"day-{day}") is None:
            attempt = coordinator.trigger(idempotency_key=f"day-{day}")
            coordinator.record(
                attempt, [changes(store, attempt, day)], files(store, attempt, day), {"day": day}
            )
            coordinator.confirm(attempt)
        coordinator.compose_commit()
        coordinator.clean_up()


def changes(store: ObjectStore, attempt: Attempt, day: int) -> OperatorReport:
    payload = f"changes of day {day}".encode()
    name = f"{attempt.names.changelog_base_path(attempt.attempt)}/sim/dstl/{uuid.uuid4()}"
    stat = store.put(name, payload, precondition=ABSENT)
    stream = StreamStateHandle(name, len(payload), stat.generation, stat.crc32c, stat.size)
    handle = ChangelogStateHandle(((stream, 0),), KeyGroupRange.of(0, 0), len(payload), len(payload))
    return OperatorReport("totals", (handle,), ("key",), 1, b"", upserts=1)


def files(store: ObjectStore, attempt: Attempt, day: int) -> list[FileReport]:
    reports = []
    for name in ("a", "b"):
        stream = GSRecoverableWriter(store, attempt=attempt.attempt).open(store.uri_of(f"out/{day}/{name}"))
        for part in range(2):
            stream.write(f"{day}{name}{part};".encode())
            stream.sync()
        committer = stream.close_for_commit()
        reports.append(FileReport(committer.recoverable, tuple(committer.components)))
    return reports


def until_it_ends(store: ObjectStore, *, tries: int = 5) -> None:
    for _ in range(tries):
        try:
            job(store)
        except UnavailableError:
            continue
        return
    raise AssertionError(f"the job did not end in {tries} tries")


def broken_promises(store: ObjectStore) -> list[str]:
    """Every difference between the bare objects and what two checkpoints leave."""
    found = {stat.name: store.get(stat.name) for stat in store.list()}
    wrong = [
        f"{name}: {found.get(name)!r}"
        for day in DAYS
        for name, want in ((f"out/{day}/{each}", f"{day}{each}0;{day}{each}1;".encode()) for each in "ab")
        if found.get(name) != want
    ]
    records = [
        json.loads(body.partition(b"\n")[2]) for name, body in sorted(found.items()) if "/timeline/" in name
    ]
    completed = [
        (record["checkpoint_id"], record["batch"]["key"])
        for record in records
        if record["kind"] == "completed"
    ]
    if completed != [(1, "day-1"), (2, "day-2")]:
        wrong.append(f"completed: {completed}")
    manifests = {
        json.loads(found[record["manifest"]].partition(b"\n")[2])["checkpoint_id"]: record["manifest"]
        for record in records
        if record["kind"] == "completed" and record["manifest"] in found
    }
    needed = set(manifests.values())
    for manifest in manifests.values():
        runs = json.loads(found[manifest].partition(b"\n")[2])["operators"]["totals"]["runs"]
        needed |= {runs["folders"][folder] + name for folder, name, *_ in runs["files"]}
    if set(manifests) != {2}:
        wrong.append(f"manifests of {set(manifests)}: the second names all that it needs")
    wrong += [f"missing: {name}" for name in needed - set(found)]
    apart = ("out/", "dstl/sim/timeline/", "dstl/sim/clean-up/")
    left = {name for name in found if not name.startswith(apart)} - needed
    wrong += [f"left behind: {name}" for name in left]
    return wrong


def run_with(fault: Fault, index: int) -> tuple[MemoryObjectStore, bool]:
    """Run once with the fault at that request, then without faults; also whether the fault was reached."""
    store = MemoryObjectStore()
    faulty = FaultStore(store, AtRequests({index: fault}))
    try:
        until_it_ends(faulty)
    except SimulatedCrash:
        until_it_ends(store)
    faulty.deliver_late_effects()  # a request still in flight arrives at last
    job(store)
    return store, index < len(faulty.requests)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.value)
def test_any_request_may_fail(fault):
    """Whichever request fails, and however, the job ends with each thing once and nothing left behind."""
    for index in count():
        store, reached = run_with(fault, index)
        assert broken_promises(store) == [], f"{fault.value} at request {index}"
        if not reached:
            break
    assert index > 50, "two checkpoints make more requests than that"


@pytest.mark.parametrize("seed", range(40))
def test_rivals_make_each_checkpoint_once(seed):
    """Three processes that all believe they own the job, requests interleaved and failing by the seed."""
    store = MemoryObjectStore()
    views: list[FaultStore] = []

    def actor(number: int) -> Callable[[Callable[[], None]], None]:
        def act(turn: Callable[[], None]) -> None:
            view = FaultStore(store, SeededFaults(3 * seed + number, 0.05), before_request=turn)
            views.append(view)
            for _ in range(4):  # a fenced zombie comes back, as a retried step does
                with contextlib.suppress(DstlError):
                    job(view)

        return act

    raised = Interleaving(seed).run([actor(number) for number in range(3)])
    assert raised == [None, None, None]
    for view in views:
        view.deliver_late_effects()
    until_it_ends(store)
    job(store)
    assert broken_promises(store) == []


@pytest.mark.parametrize(
    "broken",
    [
        (decisions, "to_complete", lambda view, attempt, **said: _complete_anyway(view, attempt, **said)),
        (decisions, "to_fence", lambda view, owner, take_over: None),
    ],
    ids=["a fenced attempt completes", "nobody fences"],
)
def test_rivals_find_broken_rules(monkeypatch, broken):
    """Each rule is needed: without it some seed of the rivals' test ends wrong or not at all."""
    monkeypatch.setattr(*broken)
    with pytest.raises((AssertionError, DstlError)):
        _all_seeds()


def _all_seeds() -> None:
    for seed in range(40):
        test_rivals_make_each_checkpoint_once(seed)


def _complete_anyway(view: TimelineView, attempt: Attempt, **said: Any) -> Completed | None:
    if view.completed_by(attempt.attempt, attempt.checkpoint_id) is not None:
        return None
    return Completed(
        attempt=attempt.attempt,
        checkpoint_id=attempt.checkpoint_id,
        parent=attempt.parent,
        batch=attempt.batch,
        **{**said, "files": tuple(said["files"])},
    )


def test_the_oracle_finds_a_commit_that_composes_nothing(monkeypatch):
    """If `committed` is written without composing, the oracle reports the missing files."""

    class Nothing:
        published = ()
        blocked = ()

    monkeypatch.setattr(compose_commit, "_publish_files", lambda *_arguments, **_options: Nothing())
    store = MemoryObjectStore()
    job(store)
    assert any(line.startswith("out/1/a") for line in broken_promises(store))
