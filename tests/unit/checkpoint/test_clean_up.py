"""Step 7: what is kept, what is deleted, and what a reader or a zombie can still rely on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import FormatError, InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings import GSFileSystemOptions, JobOptions
from dstl_dagster.storage import ABSENT, ANY

AT_ONCE = {"reader_grace": timedelta(0)}


def test_the_last_checkpoints_are_retained(job):
    """Checkpoints beyond the last N are subsumed and can no longer be restored to."""
    coordinator = job.coordinator(num_retained=2, **AT_ONCE)
    for number in range(1, 5):
        job.checkpoint(coordinator, number)
    assert coordinator.clean_up().subsumed == (1, 2)
    assert [checkpoint.checkpoint_id for checkpoint in coordinator.list()] == [3, 4]


def test_state_of_retained_checkpoints_survives(job):
    """Changelog files of subsumed checkpoints stay as long as a retained one builds on them."""
    coordinator = job.coordinator(num_retained=1, **AT_ONCE)
    for number in range(1, 4):
        job.checkpoint(coordinator, number)
    handles = coordinator.latest().manifest.operators.get("totals").handles
    coordinator.clean_up()
    fresh = job.coordinator()
    assert fresh.latest().manifest.operators.get("totals").handles == handles
    for handle in handles:
        assert job.store.stat(handle.handles_and_offsets[0][0].name) is not None


def test_what_goes_is_listed_although_no_answer_came(job, monkeypatch):
    """Objects that are deleted while the request fails are on the list by which an operator returns them."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    coordinator.record(attempt, [job.changes(attempt)], [job.file(attempt, "out/a", b"x", b"y")])
    coordinator.abort(attempt)
    before, listed, delete = set(job.names()), set(), type(job.store).delete

    def unanswered(store, name, **how):
        delete(store, name, **how)
        raise UnavailableError("the connection was reset")

    monkeypatch.setattr(type(job.store), "delete", unanswered)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            coordinator.clean_up(deleted=lambda uri, _: listed.add(uri))
    gone = {job.store.uri_of(name) for name in before - set(job.names())}
    assert set() < gone <= listed


def test_published_files_are_never_deleted(job):
    """Subsuming a checkpoint deletes none of its published files."""
    coordinator = job.coordinator(num_retained=1, **AT_ONCE)
    for number in range(1, 4):
        job.checkpoint(coordinator, number)
    coordinator.clean_up()
    assert job.names("out/") == ["out/1.txt", "out/2.txt", "out/3.txt"]


def test_a_dead_attempt_leaves_nothing(job):
    """After an abort one clean-up removes every object under the attempt's name."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    coordinator.record(attempt, [job.changes(attempt)], [job.file(attempt, "out/a", b"x", b"y")])
    coordinator.abort(attempt)
    before = set(job.names())
    report = coordinator.clean_up()
    left = {name for name in job.names() if "/clean-up/" not in name}
    assert left == {name for name in before if "/timeline/" in name}
    assert report.reasons == {"left by a dead attempt": 4}


def test_an_open_attempt_is_never_touched(job):
    """However old it is: age alone permits nothing."""
    coordinator = job.coordinator(num_retained=1, **AT_ONCE)
    attempt = coordinator.trigger()
    coordinator.record(attempt, [job.changes(attempt)], [job.file(attempt, "out/a", b"x")])
    before = job.names()
    assert job.coordinator("cleaner", num_retained=1, **AT_ONCE).clean_up().deleted == ()
    assert [name for name in job.names() if "/clean-up/" not in name] == before


def test_an_unpublished_checkpoint_is_never_touched(job):
    """Components of a completed checkpoint stay until its files are published."""
    coordinator = job.coordinator(num_retained=1, **AT_ONCE)
    attempt = coordinator.trigger()
    coordinator.record(attempt, [], [job.file(attempt, "out/a", b"x")])
    coordinator.confirm(attempt)
    assert job.coordinator("cleaner", num_retained=1, **AT_ONCE).clean_up().deleted == ()
    coordinator.compose_commit()
    assert job.store.get("out/a") == b"x"


def test_a_blocked_checkpoint_is_never_subsumed(job):
    """The components of a blocked file are kept until a person resolves it, regardless of retention."""
    coordinator = job.coordinator(num_retained=1, **AT_ONCE)
    attempt = coordinator.trigger()
    coordinator.record(attempt, [], [job.file(attempt, "out/a", b"x")])
    job.store.put("out/a", b"foreign", precondition=ABSENT)
    coordinator.confirm(attempt)
    coordinator.compose_commit()
    job.checkpoint(coordinator, 2)
    report = coordinator.clean_up()
    assert report.subsumed == ()
    assert not [name for name in report.deleted if name.startswith(".inprogress/")]


def test_readers_have_their_grace_time(job):
    """What only a subsumed checkpoint needs stays for the grace time, by the server's clock."""
    patient = job.coordinator(num_retained=1)
    for number in (1, 2):
        job.checkpoint(patient, number)
    manifest = patient.get(1).entry.completed.manifest
    orphan = job.store.put(
        f"{patient.get(1).manifest.attempt}".join(("dstl/orders/attempts/", "/changelog/loser")),
        b"of a task that lost",
        precondition=ABSENT,
    )
    assert orphan.name not in patient.clean_up().deleted
    impatient = job.coordinator(num_retained=1, **AT_ONCE)
    assert orphan.name in impatient.clean_up().deleted
    assert job.store.stat(manifest) is None, "a later manifest names what it needs of it"


def test_a_dry_run_changes_nothing(job):
    """It reports what would be deleted, writes no record and deletes nothing."""
    coordinator = job.coordinator(num_retained=1, **AT_ONCE)
    for number in (1, 2):
        job.checkpoint(coordinator, number)
    before = [(stat.name, stat.generation) for stat in job.store.list()]
    assert coordinator.clean_up(dry_run=True).subsumed == (1,)
    assert [(stat.name, stat.generation) for stat in job.store.list()] == before


@pytest.mark.parametrize("reader_grace", [timedelta(0), timedelta(hours=1)])
def test_a_dry_run_says_what_a_run_does(job, reader_grace):
    """Also of the checkpoints that only the run subsumes, as soon as their readers' grace is over."""
    coordinator = job.coordinator(num_retained=2, reader_grace=reader_grace)
    for number in range(6):
        job.checkpoint(coordinator, number)
        attempt = coordinator.trigger()
        coordinator.record(attempt, [job.base(attempt)])
        coordinator.confirm(attempt)
        coordinator.compose_commit()
    dead = coordinator.trigger()
    job.changes(dead)
    coordinator.abort(dead)
    foreseen, done = coordinator.clean_up(dry_run=True), coordinator.clean_up()
    assert (foreseen.subsumed, foreseen.objects) == (done.subsumed, done.objects)
    assert (sorted(foreseen.deleted), foreseen.reasons) == (sorted(done.deleted), done.reasons)
    assert done.objects == 1 if reader_grace else done.objects > 10


def test_an_unreadable_manifest_stops_the_deletion(job):
    """What it needs is unknown, so nothing is deleted."""
    coordinator = job.coordinator()
    job.checkpoint(coordinator, 1)
    dead = coordinator.trigger()
    job.changes(dead)
    coordinator.abort(dead)
    job.store.put(coordinator.latest().entry.completed.manifest, b"cut", precondition=ANY)
    before = job.names()
    with pytest.raises(FormatError):
        coordinator.clean_up()
    assert job.names() == before


def test_foreign_objects_are_left_alone(job):
    """An object under the job's folder, or among components, that no attempt of ours made stays."""
    coordinator = job.coordinator(num_retained=1, **AT_ONCE)
    job.checkpoint(coordinator, 1)
    foreign = [
        "dstl/orders/attempts/notes.txt",
        "dstl/orders/manifests/readme",
        f".inprogress/{job.store.bucket_name}/out/x/5e1d09c2-0000-4000-8000-000000000000",
    ]
    for name in foreign:
        job.store.put(name, b"mine", precondition=ABSENT)
    coordinator.clean_up()
    assert all(job.store.stat(name) is not None for name in foreign)


def test_a_cleaned_up_checkpoint_says_so(job):
    """Reading a cleaned-up checkpoint fails with an error that names it and how to list the others."""
    coordinator = job.coordinator(num_retained=1, **AT_ONCE)
    first = coordinator.trigger()
    coordinator.record(first, [], [], {"source": 1})
    coordinator.confirm(first)
    coordinator.compose_commit()
    job.checkpoint(coordinator, 2)
    coordinator.clean_up()
    with pytest.raises(NotFoundError, match=r"checkpoint 1 .* was cleaned up"):
        coordinator.get(1)


@pytest.mark.parametrize("entropy", [False, True])
def test_a_temporary_bucket_is_cleaned_too(job, entropy):
    """Components of a dead attempt are deleted, whatever bucket and names the options give them."""
    options = GSFileSystemOptions(writer_temporary_bucket_name="scratch", filesink_entropy_enabled=entropy)
    coordinator = CheckpointCoordinator("orders", job.store, JobOptions.of(options))
    attempt = coordinator.trigger()
    stream = GSRecoverableWriter(job.store, options, attempt=attempt.attempt).open(job.store.uri_of("out/a"))
    stream.write(b"x")
    stream.close()
    scratch = job.store.in_bucket("scratch")
    assert len(list(scratch.list())) == 1
    coordinator.clean_up()
    assert len(list(scratch.list())) == 1, "the attempt is open"
    coordinator.abort(attempt)
    coordinator.clean_up()
    assert list(scratch.list()) == []


@pytest.mark.parametrize("bucket", [None, "memory"])
def test_names_with_entropy_need_a_temporary_bucket(job, bucket):
    """A clean-up could find them only by listing everybody's objects."""
    assert job.store.bucket_name == "memory"
    options = GSFileSystemOptions(writer_temporary_bucket_name=bucket, filesink_entropy_enabled=True)
    with pytest.raises(InvalidInputError, match=r"gs\.writer\.temporary\.bucket\.name"):
        CheckpointCoordinator("orders", job.store, JobOptions.of(options))
