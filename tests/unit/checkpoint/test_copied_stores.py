"""Stores that were copied: every object has another generation, and is the same by length and checksum."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import DstlError, FormatError
from dstl_dagster.format import JobNames
from dstl_dagster.jobs import drop_job
from dstl_dagster.settings import JobOptions
from dstl_dagster.storage import (
    ABSENT,
    ANY,
    GCSObjectStore,
    LocalObjectStore,
    MemoryObjectStore,
    ObjectStore,
    open_store,
)
from dstl_dagster.testing.gcs_server import GCSServer
from dstl_dagster.testing.virtual_clock import VirtualClock
from tests.contract.test_gcs_store import make_client

NOBODY = 65_534
Copied = Callable[[ObjectStore], ObjectStore]


def copy_objects(source: ObjectStore, target: ObjectStore, *, metadata: bool = True) -> ObjectStore:
    """Object by object in any order, as tools that copy buckets do."""
    stats = list(source.list())
    random.Random(7).shuffle(stats)
    for stat in stats:
        pairs = stat.metadata if metadata else {}
        target.put(stat.name, source.get(stat.name), precondition=ABSENT, metadata=pairs)
    return target


def later_memory() -> ObjectStore:
    """An empty store whose generations are none of a store's that has few objects."""
    store = MemoryObjectStore()
    for _ in range(500):
        store.put("x", b"", precondition=ANY)
    store.delete("x", precondition=ANY)
    return store


@contextmanager
def memory(folder: Path) -> Iterator[tuple[ObjectStore, Copied]]:
    yield MemoryObjectStore(), lambda store: copy_objects(store, later_memory())


@contextmanager
def memory_without_metadata(folder: Path) -> Iterator[tuple[ObjectStore, Copied]]:
    yield MemoryObjectStore(), lambda store: copy_objects(store, later_memory(), metadata=False)


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
def bucket_below_a_prefix(folder: Path) -> Iterator[tuple[ObjectStore, Copied]]:
    """As `gcloud storage cp -r gs://from/* gs://to/2026-11-25/` does."""
    with GCSServer() as server:
        server.create_bucket("from")
        server.create_bucket("to")
        client = make_client(server)
        yield (
            GCSObjectStore(client, "from"),
            lambda store: copy_objects(store, GCSObjectStore(client, "to", "2026-11-25/")),
        )
        client.close()


@contextmanager
def folder_with_records(folder: Path) -> Iterator[tuple[ObjectStore, Copied]]:
    yield (
        LocalObjectStore(folder / "from", durable=False),
        lambda store: LocalObjectStore(shutil.copytree(folder / "from", folder / "to"), durable=False),
    )


@contextmanager
def folder_with_records_and_new_times(folder: Path) -> Iterator[tuple[ObjectStore, Copied]]:
    """As `cp -r` does."""
    yield (
        LocalObjectStore(folder / "from", durable=False),
        lambda store: LocalObjectStore(
            shutil.copytree(folder / "from", folder / "to", copy_function=shutil.copyfile), durable=False
        ),
    )


@contextmanager
def folder_of_the_job(folder: Path) -> Iterator[tuple[ObjectStore, Copied]]:
    def copied(_: ObjectStore) -> ObjectStore:
        records = shutil.ignore_patterns(".dstl-store")
        shutil.copytree(folder / "from", folder / "to", ignore=records)
        return LocalObjectStore(folder / "to", durable=False)

    yield LocalObjectStore(folder / "from", durable=False), copied


def synchronized(source: Path, target: Path) -> None:
    """As `rsync -a --delete`: what has another length or time is replaced by a rename, in order of names."""
    wanted = sorted(path.relative_to(source) for path in source.rglob("*"))
    there = sorted(path.relative_to(target) for path in target.rglob("*")) if target.exists() else []
    for name in reversed([each for each in there if each not in wanted]):
        (target / name).rmdir() if (target / name).is_dir() else (target / name).unlink()
    for name in wanted:
        new, old = source / name, target / name
        if new.is_dir():
            old.mkdir(parents=True, exist_ok=True)
        elif not old.exists() or (old.stat().st_size, old.stat().st_mtime_ns) != (
            new.stat().st_size,
            new.stat().st_mtime_ns,
        ):
            beside = old.with_name(f".{old.name}.Xa3k9Q")
            shutil.copy2(new, beside)
            beside.replace(old)


WAYS = [
    memory,
    memory_without_metadata,
    bucket,
    bucket_below_a_prefix,
    folder_with_records,
    folder_with_records_and_new_times,
    folder_of_the_job,
]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def stores(request, tmp_path):
    with request.param(tmp_path) as both:
        yield both


def three_checkpoints(keyed, job, first=0):
    """Of state, and of a file each."""
    for number in range(first, first + 3):
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


def test_a_folder_that_is_synchronized_again_and_again(keyed_on, job_on, tmp_path):
    """Between two runs of it the job goes on, goes back, and cleans up; the copy is looked at after each."""
    store = LocalObjectStore(tmp_path / "from", durable=False)
    keyed = keyed_on(store, num_retained=2, reader_grace=timedelta(0))
    for last in (3, 6):
        three_checkpoints(keyed, job_on(store), first=last)
        synchronized(tmp_path / "from", tmp_path / "to")
        copy = keyed_on(LocalObjectStore(tmp_path / "to", durable=False))
        assert copy.coordinator.latest().checkpoint_id == last
        assert copy.coordinator.verify().ok
        assert copy.coordinator.audit().in_order
        keyed.coordinator.clean_up()
        keyed.coordinator.restore(last - 1)
        synchronized(tmp_path / "from", tmp_path / "to")
        copy = keyed_on(LocalObjectStore(tmp_path / "to", durable=False))
        assert copy.coordinator.verify().ok
        assert copy.coordinator.latest().checkpoint_id == last - 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(os.getuid() != 0, reason="root alone becomes another user")
def test_a_copy_that_another_user_may_only_read(keyed_on, job_on, tmp_path):
    """As a backup that is mounted read-only: it is read and verified, and a trigger is refused."""
    store = LocalObjectStore(tmp_path / "from", durable=False)
    three_checkpoints(keyed_on(store), job_on(store))
    with tempfile.TemporaryDirectory(dir="/tmp") as open_to_all:  # pytest's own is not
        folder = Path(shutil.copytree(tmp_path / "from", Path(open_to_all) / "to"))
        for path in (folder.parent, folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)

        def look() -> None:
            os.setuid(NOBODY)
            copy = keyed_on(LocalObjectStore(folder, durable=False))
            assert len(copy.rows()) == 4
            assert copy.coordinator.verify().ok
            with pytest.raises(DstlError, match=r"[Pp]ermission"):
                copy.coordinator.trigger()

        child = get_context("fork").Process(target=look)  # root's interpreter may be closed to others
        child.start()
        child.join(timeout=60)
        assert child.exitcode == 0


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


def one_that_is_due(keyed, job, *parts):
    """A completed checkpoint with state and a file that is not published yet."""
    attempt = keyed.coordinator.trigger()
    file = job.file(attempt, "out/due.txt", *parts)
    keyed.coordinator.record(attempt, [keyed.report(attempt, [{"tail": "a", "flights": 1}])], [file])
    keyed.coordinator.confirm(attempt)
    return file


def everything(store):
    return {stat.name: (stat.generation, stat.crc32c) for stat in store.list()}


@pytest.mark.parametrize("count", [1, 40])
def test_a_file_of_a_copy_that_was_not_published(keyed_on, job_on, stores, count):
    """Step 6 was due when the store was copied: verify finds nothing, and the next batch publishes the file,
    of one component or of a tree, in the copy and not in the original.
    """
    store, copied = stores
    parts = [b"part %d" % number for number in range(count)]
    one_that_is_due(keyed_on(store), job_on(store), *parts)
    before = everything(store)
    target = copied(store)
    copy = keyed_on(target)
    found = copy.coordinator.verify()
    assert (found.problems, found.notes) == ((), ())
    copy.changes([{"tail": "b", "flights": 1}])
    assert target.get("out/due.txt") == b"".join(parts)
    assert copy.coordinator.audit().in_order
    assert copy.coordinator.verify(1).ok
    assert everything(store) == before


def test_a_restore_in_a_copy_retracts_its_own_files(keyed_on, job_on, stores):
    """The files of later checkpoints go in the copy; the original is as it was."""
    store, copied = stores
    three_checkpoints(keyed_on(store), job_on(store))
    before = everything(store)
    target = copied(store)
    copy = keyed_on(target)
    copy.coordinator.restore(1)
    assert [stat.name for stat in target.list("out/")] == ["out/0.txt"]
    assert len(copy.rows()) == 2
    copy.changes([{"tail": "new", "flights": 1}])
    assert copy.coordinator.audit().in_order
    assert everything(store) == before


def test_a_restore_in_a_copy_before_a_file_was_published(keyed_on, job_on, stores):
    """The components of a file that was due go with the checkpoint that it belongs to."""
    store, copied = stores
    keyed = three_checkpoints(keyed_on(store), job_on(store))
    one_that_is_due(keyed, job_on(store), b"part")
    target = copied(store)
    copy = keyed_on(target)
    copy.coordinator.restore(3)
    assert target.stat("out/due.txt") is None
    assert [stat.name for stat in target.list() if ".inprogress/" in stat.name] == []


def test_the_audit_of_a_copy_looks_at_its_own_files(keyed_on, job_on):
    """A published file that was cut in the copy is damage there, and one that was cut in the original not."""
    store = MemoryObjectStore()
    three_checkpoints(keyed_on(store), job_on(store))
    copy = keyed_on(copy_objects(store, store.in_bucket("copy")))
    store.put("out/1.txt", b"c", precondition=ANY)
    assert copy.coordinator.audit().damage == ()
    copy.store.put("out/2.txt", b"c", precondition=ANY)
    (damage,) = copy.coordinator.audit().damage
    assert damage.object_name == "out/2.txt"


def put_again(store, name):
    """As restoring a deleted object does: the same bytes, another generation."""
    payload, stat = store.get(name), store.stat(name)
    store.delete(name, precondition=ANY)
    store.put(name, payload, precondition=ABSENT, metadata=stat.metadata)


@pytest.mark.parametrize("resolution", ["replace", "keep"])
def test_a_component_that_was_put_back_alone(keyed_on, job_on, resolution):
    """The store is no copy, so the component may be what a late upload left: the file is blocked with the
    reason, and a person decides.
    """
    store = MemoryObjectStore()
    keyed = keyed_on(store)
    file = one_that_is_due(keyed, job_on(store), b"part")
    put_again(store, file.components[0].object_name)
    (problem,) = keyed.coordinator.verify().problems
    assert "will be blocked" in str(problem)
    (checkpoint,) = keyed.coordinator.compose_commit()
    assert "if it was restored from a copy, publish it" in checkpoint.blocked[0].reason
    keyed.coordinator.resolve(1, "out/due.txt", resolution)
    assert (store.stat("out/due.txt") is not None) == (resolution == "replace")
    assert store.stat(file.components[0].object_name) is None
    assert keyed.coordinator.audit().in_order


def test_a_copy_without_its_temporary_objects(keyed_on, job_on):
    """The folder of the job alone was copied when step 6 was due: its file is blocked, and not called
    published.
    """
    store, target = MemoryObjectStore(), later_memory()
    one_that_is_due(keyed_on(store), job_on(store), b"part")
    for stat in store.list("dstl/"):
        target.put(stat.name, store.get(stat.name), precondition=ABSENT)
    copy = keyed_on(target)
    copy.changes([{"tail": "b", "flights": 1}])
    (blocked,) = copy.coordinator.audit().blocked[1]
    assert blocked == "out/due.txt"
    assert "is not in this copy of the store" in copy.coordinator.get(1).blocked[0].reason
    for stat in store.list(".inprogress/"):
        target.put(stat.name, store.get(stat.name), precondition=ABSENT)
    copy.coordinator.resolve(1, "out/due.txt", "replace")
    assert target.get("out/due.txt") == b"part"


@pytest.mark.parametrize("bucket", [None, "scratch"])
@pytest.mark.parametrize("step", ["clean-up", "drop", "drop that was interrupted"])
def test_components_of_the_original_stay(job_on, bucket, step):
    """A copy below another prefix, or with the same temporary bucket, deletes none of the attempt that was
    open when it was made: the original publishes its file. What the copy's own attempts left goes.
    """
    whole = MemoryObjectStore()
    store, target = (open_store(f"{whole.uri}/{each}") for each in ("live", "copy"))
    if bucket is not None:
        store, target = whole, whole.in_bucket("copy")
    options = JobOptions.of({} if bucket is None else {"gs.writer.temporary.bucket.name": bucket})
    live = CheckpointCoordinator("orders", store, options, owner="test")
    attempt = live.trigger()
    file = job_on(whole).file(attempt, "out/x.txt", b"part", options=options.files)
    copy = CheckpointCoordinator("orders", copy_objects(store, target), options, owner="test")
    live.record(attempt, (), [file])
    live.confirm(attempt)
    dead = copy.trigger(take_over=True)
    job_on(whole).file(dead, "out/never.txt", b"part", options=options.files)
    if step == "clean-up":
        copy.abort(dead)
        copy.clean_up()
    else:
        if "interrupted" in step:
            target.delete(JobNames("orders").root_slot, precondition=ANY)
        assert drop_job(target, "orders", options, owner="test", clock=VirtualClock()).left == 0
    (left,) = whole.in_bucket(bucket or whole.bucket_name).list(".inprogress/")
    assert "/out/x.txt/" in left.name
    assert not live.compose_commit()[0].blocked
    assert whole.get("out/x.txt") == b"part"


def test_files_outside_of_a_copied_store_are_the_originals(keyed_on, job_on):
    """A store below a prefix, copied to another one of the same bucket: a restore there deletes no file that
    the original published beside its store, and publishes none.
    """
    whole = MemoryObjectStore()
    store, target = (open_store(f"{whole.uri}/{each}") for each in ("live", "copy"))
    keyed, job = keyed_on(store), job_on(whole)
    for number in range(2):
        attempt = keyed.coordinator.trigger()
        reports = [keyed.report(attempt, [{"tail": str(number), "flights": number}])]
        keyed.coordinator.record(attempt, reports, [job.file(attempt, f"out/{number}.txt", b"part")])
        keyed.coordinator.confirm(attempt)
        if number == 0:
            keyed.coordinator.compose_commit()
    before = everything(whole)
    copy = keyed_on(copy_objects(store, target))
    copy.coordinator.restore(1)
    copy.changes([{"tail": "new", "flights": 1}])
    after = everything(whole)
    assert {name: after.get(name) for name in before} == before
    assert "out/1.txt" not in after
