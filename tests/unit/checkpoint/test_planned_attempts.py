"""Step 1 in two halves: one process plans the attempt, any of those that share it opens it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ConflictError, FencedError
from dstl_dagster.storage import MemoryObjectStore

if TYPE_CHECKING:
    from tests.unit.conftest import CountingStore

TASKS = 8


def coordinator(store: MemoryObjectStore, owner: str = "query") -> CheckpointCoordinator:
    return CheckpointCoordinator("job", store, owner=owner)


def kinds(store: MemoryObjectStore) -> list[str]:
    return [record.kind for record in coordinator(store).timeline.records()]


def complete(store: MemoryObjectStore, owner: str = "query") -> int:
    steps = coordinator(store, owner)
    attempt = steps.trigger()
    steps.record(attempt)
    steps.confirm(attempt)
    (done,) = steps.compose_commit()
    return done.checkpoint_id


def test_many_tasks_open_one_attempt() -> None:
    """All at once: one record, whoever wins; a plan alone leaves no trace."""
    store = MemoryObjectStore()
    planned, parent = coordinator(store).plan()
    assert parent is None
    assert kinds(store) == []
    together = threading.Barrier(TASKS)

    def task(_: int) -> None:
        together.wait(30)
        coordinator(store).begin(planned)

    with ThreadPoolExecutor(TASKS) as pool:
        list(pool.map(task, range(TASKS)))
    assert kinds(store) == ["opened"]
    coordinator(store).record(planned.attempt)
    assert coordinator(store).confirm(planned.attempt).checkpoint_id == 1


def test_an_attempt_that_is_open_costs_one_request(counting_store: CountingStore) -> None:
    """The tasks after the first read the record that it wrote."""
    for _ in range(3):
        complete(counting_store)
    planned, _ = coordinator(counting_store).plan()
    coordinator(counting_store).begin(planned)
    counting_store.read.clear()
    coordinator(counting_store).begin(planned)
    assert len(counting_store.read) == 1


@pytest.mark.parametrize(
    ("between", "kind"),
    [
        (lambda store: complete(store), "moved"),
        (lambda store: (complete(store), coordinator(store).restore(1)), "moved"),
        (lambda store: coordinator(store, "other").trigger(), "attempt_open"),
        (lambda store: coordinator(store).trigger(), "attempt_open"),
    ],
    ids=["completed", "restored", "another's attempt", "its own next attempt"],
)
def test_what_came_after_the_plan_is_never_ended(
    between: Callable[[MemoryObjectStore], object], kind: str
) -> None:
    """Whoever owns it, and although it may take over: the plan is stale, not the rival dead."""
    store = MemoryObjectStore()
    complete(store)
    planned, _ = coordinator(store).plan()
    between(store)
    before = kinds(store)
    with pytest.raises(ConflictError) as refused:
        coordinator(store).begin(planned, take_over=True)
    assert refused.value.kind == kind
    assert kinds(store) == before


def test_what_was_open_before_the_plan_is_fenced_as_in_a_trigger() -> None:
    """Its own attempt always, another owner's with take-over."""
    store = MemoryObjectStore()
    coordinator(store).trigger()
    coordinator(store).begin(coordinator(store).plan()[0])
    assert kinds(store) == ["opened", "fenced", "opened"]
    planned, _ = coordinator(store).plan()
    with pytest.raises(ConflictError, match="take_over=True"):
        coordinator(store, "other").begin(planned)
    coordinator(store, "other").begin(planned, take_over=True)
    assert kinds(store)[3:] == ["fenced", "opened"]


def test_an_attempt_that_ended_is_not_opened_again() -> None:
    """A task that starts late, after its attempt was aborted and another one finished."""
    store = MemoryObjectStore()
    steps = coordinator(store)
    planned, _ = steps.plan()
    early = replace(planned, slot=planned.slot + 1)  # so that it does not see the record of the opening
    steps.begin(planned)
    steps.abort(planned.attempt)
    with pytest.raises(FencedError, match="aborted"):
        coordinator(store).begin(early)
    assert kinds(store) == ["opened", "aborted"]


def test_a_restore_is_finished_before_a_planned_attempt_opens() -> None:
    """It leaves files to retract, here none: a task finds that itself, as a trigger does."""
    store = MemoryObjectStore()
    complete(store)
    complete(store)
    coordinator(store).restore(1)
    planned, parent = coordinator(store).plan()
    assert parent is not None
    assert (planned.attempt.parent, planned.attempt.checkpoint_id) == (1, 3)
    coordinator(store).begin(planned)
    assert kinds(store)[-2:] == ["restored", "opened"]
