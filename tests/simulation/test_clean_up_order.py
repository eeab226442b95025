"""The order in which a clean-up lists, reads and deletes, by its requests and by what it leaves alone.

These rules are a second line of defence: garbage stays garbage, an object of an unknown attempt is kept, and
what an attempt left is found by its name. So a single run that breaks them still ends well, and the order
itself has to be checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dstl_dagster.checkpoint.job import Job
from dstl_dagster.checkpoint.steps import clean_up
from dstl_dagster.storage import ANY
from dstl_dagster.testing.fault_schedules import Request
from tests.simulated import actions
from tests.simulated.process import Process, Setting
from tests.simulated.world import World

TIMELINE, MANIFESTS, MARKS = "dstl/sim/timeline/", "dstl/sim/manifests/", "dstl/sim/clean-up/"
ROOT = f"{TIMELINE}{1:020d}"
PLACES = {".inprogress/", "dstl/sim/attempts/", MANIFESTS}
SETTING = Setting(num_retained=1)


@pytest.fixture
def world() -> World:
    """Three checkpoints, of which two can be subsumed, and an aborted attempt."""
    world = World()
    for batch in (1, 2, 3):
        actions.whole_batch(batch, base=True, clean=False)(Process(world, SETTING, f"{batch}"), {})
    notes = actions.append(4)(Process(world, SETTING, "4"), {})
    actions.abort()(Process(world, SETTING, "abort"), notes)
    return world


def requests_of_a_clean_up(world: World) -> Sequence[Request]:
    process = Process(world, SETTING, "clean up")
    actions.clean_up(process, {})
    return process.store.requests


def reads_before_it_deletes(requests: Sequence[Request]) -> bool:
    """Whether the timeline is read between the last listing and each deletion."""
    listed = read = False
    places: set[str] = set()
    for request in requests:
        if request.method == "list" and request.name not in (TIMELINE, MARKS):
            listed, read = True, False
        elif request.method == "get" and request.name.startswith(TIMELINE) and request.name != ROOT:
            read = True
        elif request.method == "delete" and not request.name.startswith(MARKS):
            if listed and not read:
                return False
            places.add(next(place for place in PLACES if request.name.startswith(place)))
    assert places == PLACES, "components, attempts and manifests have garbage"
    return True


def deletes_manifests_last(requests: Sequence[Request]) -> bool:
    deletions = [
        each.name for each in requests if each.method == "delete" and not each.name.startswith(MARKS)
    ]
    deleted = [name.startswith(MANIFESTS) for name in deletions]
    assert True in deleted
    assert False in deleted
    return deleted == sorted(deleted)


def test_the_timeline_is_read_after_objects_are_listed(world):
    assert reads_before_it_deletes(requests_of_a_clean_up(world))


def test_a_timeline_read_before_the_listing_is_caught(world, monkeypatch):
    class ReadOnce:
        def __init__(self, timeline: Any) -> None:
            self._view = timeline.tail()
            self.names, self.home = timeline.names, timeline.home

        def tail(self) -> Any:
            return self._view

        seen = tail

    right = clean_up.collect_garbage

    def collect_garbage(job: Job, **how: Any) -> Any:
        job.timeline = ReadOnce(job.timeline)  # type: ignore[assignment] # what collecting needs
        return right(job, **how)

    monkeypatch.setattr(clean_up, "collect_garbage", collect_garbage)
    assert not reads_before_it_deletes(requests_of_a_clean_up(world))


def test_manifests_are_deleted_after_what_they_name(world):
    assert deletes_manifests_last(requests_of_a_clean_up(world))


def test_manifests_that_go_first_are_caught(world, monkeypatch):
    right = clean_up._places
    monkeypatch.setattr(clean_up, "_places", lambda *arguments: right(*arguments)[::-1])
    assert not deletes_manifests_last(requests_of_a_clean_up(world))


def survives_its_replacement(world: World) -> bool:
    """Whether an object that replaces listed garbage, just before it is deleted, survives."""
    process = Process(world, SETTING, "clean up")
    (doomed, *_) = [name for name in world.names("dstl/sim/attempts/") if name.endswith("/report")]
    delete = process.store.inner.delete

    def delete_late(name: str, **how: Any) -> bool:
        if name == doomed:
            world.store.put(name, b"somebody else's", precondition=ANY)
        return delete(name, **how)

    with pytest.MonkeyPatch.context() as racing, world.unwatched():
        racing.setattr(process.store.inner, "delete", delete_late)
        actions.clean_up(process, {})
    return world.payload(doomed) == b"somebody else's"


def test_only_the_listed_generation_is_deleted(world):
    assert survives_its_replacement(world)


def test_a_deletion_of_any_generation_is_caught(world, monkeypatch):
    monkeypatch.setattr(clean_up, "Generation", lambda generation: ANY)
    assert not survives_its_replacement(world)
