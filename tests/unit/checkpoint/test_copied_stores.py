"""Stores that were copied: every object has another generation, and is the same by length and checksum."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dstl_dagster.errors import DstlError, FormatError
from dstl_dagster.storage import ABSENT, ANY, GCSObjectStore, LocalObjectStore, MemoryObjectStore, ObjectStore
from dstl_dagster.testing.gcs_server import GCSServer
from tests.contract.test_gcs_store import make_client

Copied = Callable[[ObjectStore], ObjectStore]


def copy_objects(source: ObjectStore, target: ObjectStore, *, metadata: bool = True) -> ObjectStore:
    """Object by object in any order, as tools that copy buckets do."""
    stats = list(source.list())
    random.Random(7).shuffle(stats)
    for stat in stats:
        pairs = stat.metadata if metadata else {}
        target.put(stat.name, source.get(stat.name), precondition=ABSENT, metadata=pairs)
    return target


@contextmanager
def memory(folder: Path) -> Iterator[tuple[ObjectStore, Copied]]:
    yield MemoryObjectStore(), lambda store: copy_objects(store, MemoryObjectStore())


@contextmanager
def memory_without_metadata(folder: Path) -> Iterator[tuple[ObjectStore, Copied]]:
    yield MemoryObjectStore(), lambda store: copy_objects(store, MemoryObjectStore(), metadata=False)


@contextmanager
def bucket(folder: Path) -> Iterator[tuple[ObjectStore, Copied]]:
    with GCSServer() as server:
        server.create_bucket("from")
        server.create_bucket("to")
        client = make_client(server)
        yield (
            GCSObjectStore(client, "from"),
            lambda store: copy_objects(store, GCSObjectStore(client, "to")),
        )
        client.close()


@contextmanager
def folder_with_records(folder: Path) -> Iterator[tuple[ObjectStore, Copied]]:
    yield (
        LocalObjectStore(folder / "from", durable=False),
        lambda store: LocalObjectStore(shutil.copytree(folder / "from", folder / "to"), durable=False),
    )


@contextmanager
def folder_of_the_job(folder: Path) -> Iterator[tuple[ObjectStore, Copied]]:
    def copied(_: ObjectStore) -> ObjectStore:
        records = shutil.ignore_patterns(".dstl-store")
        shutil.copytree(folder / "from", folder / "to", ignore=records)
        return LocalObjectStore(folder / "to", durable=False)

    yield LocalObjectStore(folder / "from", durable=False), copied


WAYS = [memory, memory_without_metadata, bucket, folder_with_records, folder_of_the_job]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def stores(request, tmp_path):
    with request.param(tmp_path) as both:
        yield both


def three_checkpoints(keyed, job):
    """Of state, and of a file each."""
    for number in range(3):
        attempt = keyed.coordinator.trigger()
        report = keyed.report(
            attempt, [{"tail": f"N{number}", "flights": number}, {"tail": "all", "flights": number}]
        )
        file = job.file(attempt, f"out/{number}.txt", b"part", b"part")
        keyed.coordinator.record(attempt, [report], [file], {"source": number})
        keyed.coordinator.confirm(attempt)
        keyed.coordinator.compose_commit()
    return keyed


def test_a_copy_reads_and_verifies(keyed_on, job_on, stores):
    """State is read at any checkpoint, verify and audit find nothing, and each checkpoint can be restored."""
    store, copied = stores
    three_checkpoints(keyed_on(store), job_on(store))
    copy = keyed_on(copied(store))
    for checkpoint_id in (1, 2, 3):
        checkpoint = copy.coordinator.get(checkpoint_id)
        assert len(copy.rows(checkpoint)) == checkpoint_id + 1
        found = copy.coordinator.verify(checkpoint_id)
        assert (found.ok, found.problems, found.notes) == (True, (), ())
    assert copy.coordinator.audit().in_order
    assert copy.coordinator.restore(2).checkpoint_id == 2


def test_a_copy_goes_on(keyed_on, job_on, stores):
    """The next checkpoint is appended to the state, and what is not needed any more is deleted."""
    store, copied = stores
    three_checkpoints(keyed_on(store), job_on(store))
    copy = keyed_on(copied(store))
    copy.changes([{"tail": "new", "flights": 1}])
    assert len(copy.rows()) == 5
    copy.coordinator.clean_up()
    assert copy.coordinator.audit().in_order


def test_a_damaged_copy_is_damaged(keyed_on, job_on, stores):
    """One bit of a changelog file: neither read nor verified."""
    store, copied = stores
    three_checkpoints(keyed_on(store), job_on(store))
    target = copied(store)
    copy = keyed_on(target)
    stream = (
        copy.coordinator.get(3).manifest.operators[copy.OPERATOR].report.handles[0].handles_and_offsets[0][0]
    )
    payload = bytearray(target.get(stream.name))
    payload[len(payload) // 2] ^= 1
    target.put(stream.name, payload, precondition=ANY)
    with pytest.raises(DstlError):
        copy.rows()
    (problem,) = {found.object_name for found in copy.coordinator.verify(3).problems}
    assert problem == stream.name
    with pytest.raises(FormatError, match="is damaged"):
        copy.coordinator.restore(3)


def test_a_file_of_a_copy_that_was_not_published(keyed_on, job_on, stores):
    """A copy in which step 6 was due: verify says that it cannot tell the component from a twin."""
    store, copied = stores
    keyed, job = keyed_on(store), job_on(store)
    attempt = keyed.coordinator.trigger()
    file = job.file(attempt, "out/due.txt", b"part")
    keyed.coordinator.record(attempt, [keyed.report(attempt, [{"tail": "a", "flights": 1}])], [file])
    keyed.coordinator.confirm(attempt)
    target = copied(store)
    copy = keyed_on(target)
    (component,) = file.components
    same = (
        target.in_bucket(component.bucket_name).stat(component.object_name).generation == component.generation
    )
    found = copy.coordinator.verify()
    assert [problem.object_name for problem in found.problems] == ([] if same else [component.object_name])
    assert len(copy.rows()) == 1
