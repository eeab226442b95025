"""What steps 3 and 4 cost: a request for each object, not for each change set; one for many components."""

from __future__ import annotations

import dataclasses

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ConflictError, ErrorKind, NotFoundError
from dstl_dagster.storage import ANY, MemoryObjectStore
from tests.unit.checkpoint.counting import Counted

OWN = 12
"""Requests of step 4 for the timeline and the manifest."""


@pytest.fixture
def store():
    return Counted(MemoryObjectStore())


def test_a_file_shared_by_many_sets_is_looked_up_once(store, job_of):
    """Twenty files of twenty-five change sets each: twenty look-ups."""
    job = job_of(store)
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    files = [job.changes(attempt).handles[0] for _ in range(20)]
    report = dataclasses.replace(job.changes(attempt), handles=tuple(files * 25))
    store.spent()
    coordinator.record(attempt, [report])
    assert store.requests["stat"] == 20
    assert store.spent() <= 20 + OWN


def test_many_components_are_looked_up_by_one_listing(store, job_of):
    """Three hundred of them, and the final name."""
    job = job_of(store)
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    file = job.file(attempt, "out/a", *[b"x"] * 300)
    store.spent()
    coordinator.record(attempt, [], [file])
    assert store.spent() <= 2 + OWN


@pytest.mark.parametrize("components", [2, 40])
@pytest.mark.parametrize("recoverable", [False, True])
def test_a_missing_component_is_named(store, job_of, components, recoverable):
    """However it was looked up."""
    job = job_of(store)
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    file = job.file(attempt, "out/a", *[b"x"] * components)
    store.delete(file.components[1].object_name, precondition=ANY)
    with pytest.raises(NotFoundError, match=file.components[1].object_name) as refused:
        coordinator.record(attempt, [], [file.recoverable if recoverable else file])
    assert refused.value.kind == ErrorKind.NOT_WRITTEN


@pytest.mark.parametrize("components", [2, 40])
def test_a_replaced_component_is_found(store, job_of, components):
    job = job_of(store)
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    file = job.file(attempt, "out/a", *[b"x"] * components)
    store.put(file.components[0].object_name, b"y", precondition=ANY)
    with pytest.raises(ConflictError, match=file.components[0].object_name) as refused:
        coordinator.record(attempt, [], [file])
    assert refused.value.kind == ErrorKind.NOT_WRITTEN


def test_two_reports_of_one_file_must_agree(store, job_of):
    """A second handle on the same file with another checksum is checked too."""
    job = job_of(store)
    coordinator: CheckpointCoordinator = job.coordinator()
    attempt = coordinator.trigger()
    right = job.changes(attempt)
    ((stream, offset),) = right.handles[0].handles_and_offsets
    wrong = dataclasses.replace(
        right.handles[0], handles_and_offsets=((dataclasses.replace(stream, crc32c=1), offset),)
    )
    with pytest.raises(ConflictError, match="crc32c"):
        coordinator.record(attempt, [dataclasses.replace(right, handles=(right.handles[0], wrong))])
