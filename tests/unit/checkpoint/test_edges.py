"""What a checkpoint refuses before its commit point, and what it can still resolve behind it."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator
from dstl_dagster.errors import ConflictError, DstlError, InvalidInputError
from dstl_dagster.storage import ABSENT, ANY, LocalObjectStore, MemoryObjectStore, open_store
from dstl_dagster.testing.fault_store import FaultStore
from tests.unit.conftest import Job

# -- files


def test_two_files_of_one_name_are_refused_in_two_buckets_too(job: Job, job_on: Callable[..., Job]) -> None:
    """Records name a file without its bucket: one that is blocked would count as published with the other."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    other = job_on(job.store.in_bucket("other"))
    files = [each.file(attempt, "out/x.txt", b"part") for each in (job, other)]
    with pytest.raises(InvalidInputError, match=r"have the name 'out/x.txt', in one bucket or two"):
        coordinator.record(attempt, (), files)


@pytest.mark.parametrize("count", [3, 40])
def test_a_file_that_lost_a_component_is_blocked(job: Job, count: int) -> None:
    """As a lifecycle rule or a person may delete it: it is not called published, the other parts stay, and
    once it is back the file is there.
    """
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    parts = [b"part %d;" % number for number in range(count)]
    file = job.file(attempt, "out/x.txt", *parts)
    coordinator.record(attempt, (), [file])
    coordinator.confirm(attempt)
    lost = file.components[1].object_name
    job.store.delete(lost, precondition=ANY)
    (checkpoint,) = coordinator.compose_commit()
    (blocked,) = checkpoint.blocked
    assert f"{lost}', of which it is composed, is lost: put it back, and publish" in blocked.reason
    coordinator.clean_up()
    job.store.put(lost, parts[1], precondition=ABSENT)
    assert not coordinator.resolve(1, "out/x.txt", "replace").blocked
    assert job.store.get("out/x.txt") == b"".join(parts)
    coordinator.clean_up()
    assert job.names(".inprogress/") == []


# -- changelog files of other attempts


def test_files_of_another_attempt_are_refused_unless_the_parent_needs_them(job: Job) -> None:
    """A clean-up between steps 4 and 5 would delete them, and the checkpoint would complete without."""
    coordinator = job.coordinator()
    first = coordinator.trigger()
    lost = job.changes(first)
    second = coordinator.trigger()
    with pytest.raises(InvalidInputError, match="was written for another attempt") as refused:
        coordinator.record(second, [lost])
    assert refused.value.kind == "invalid_input"

    kept = job.changes(second)
    coordinator.record(second, [kept])
    coordinator.confirm(second)
    coordinator.compose_commit()
    third = coordinator.trigger()
    both = dataclasses.replace(kept, handles=(*kept.handles, *job.changes(third).handles))
    coordinator.record(third, [both])
    coordinator.clean_up(num_retained=1)
    coordinator.confirm(third)
    files = [stream.name for handle in both.handles for stream, _ in handle.handles_and_offsets]
    assert [name for name in files if job.store.stat(name) is None] == []


def test_a_writer_that_outlives_its_attempt_keeps_its_files_elsewhere(job: Job) -> None:
    """Outside of what jobs keep for themselves clean-up deletes nothing, whatever the checkpoint."""
    coordinator = job.coordinator()
    for _ in range(3):
        attempt = coordinator.trigger()
        report = job.changes(attempt)
        ((stream, offset),) = report.handles[0].handles_and_offsets
        name = f"changelog/{uuid.uuid4()}"
        stat = job.store.put(name, job.store.get(stream.name), precondition=ABSENT)
        moved = dataclasses.replace(stream, name=name, generation=stat.generation)
        handle = dataclasses.replace(report.handles[0], handles_and_offsets=((moved, offset),))
        coordinator.record(attempt, [dataclasses.replace(report, handles=(handle,))])
        coordinator.clean_up()
        coordinator.confirm(attempt)
        coordinator.compose_commit()
    assert len(job.names("changelog/")) == 3


# -- final names


@pytest.mark.parametrize("prefix", ["", "team/"])
@pytest.mark.parametrize("name", ["dstl/orders/timeline/00000000000000000009", "dstl/other/hint", "dstl/x"])
def test_no_file_lies_among_the_objects_of_any_job(
    job_on: Callable[..., Job], prefix: str, name: str
) -> None:
    """A store's prefix stands before them too: a file on a slot would end the job's history."""
    job = job_on(open_store(f"memory://{uuid.uuid4()}/{prefix}"))
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    with pytest.raises(InvalidInputError, match="keep for themselves") as refused:
        coordinator.record(attempt, [], [job.file(attempt, name, b"x")])
    assert refused.value.kind == "invalid_input"


@pytest.mark.parametrize("names", [("out", "out/part-1"), ("a/b/c", "a")])
def test_a_file_and_its_folder_are_refused_where_names_are_paths(
    job_on: Callable[..., Job], tmp_path: Path, names: tuple[str, str]
) -> None:
    """A bucket takes both names; a folder cannot, which is known before the commit point."""
    bucket = job_on(MemoryObjectStore())
    attempt = bucket.coordinator().trigger()
    bucket.coordinator("test").record(attempt, [], [bucket.file(attempt, name, b"x") for name in names])

    folder = job_on(LocalObjectStore(tmp_path, durable=False))
    coordinator = folder.coordinator()
    attempt = coordinator.trigger()
    with pytest.raises(InvalidInputError, match="cannot be a file and the folder") as refused:
        coordinator.record(attempt, [], [folder.file(attempt, name, b"x") for name in names])
    assert refused.value.kind == "invalid_input"


@pytest.mark.parametrize(("there", "name"), [("out", "out/part-1"), ("out/part-1", "out")])
def test_what_is_there_already_is_seen_before_the_commit_point(
    job_on: Callable[..., Job], tmp_path: Path, there: str, name: str
) -> None:
    """An earlier checkpoint's file stands where this one needs a folder, or the other way round."""
    job = job_on(LocalObjectStore(tmp_path, durable=False))
    job.store.put(there, b"earlier", precondition=ABSENT)
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    with pytest.raises(InvalidInputError) as refused:
        coordinator.record(attempt, [], [job.file(attempt, name, b"x")])
    assert refused.value.kind == "invalid_input"


# -- behind the commit point


def _wedged(job: Job, tmp_path: Path) -> CheckpointCoordinator:
    """A completed checkpoint with two files, where a folder came to stand at the name of one."""
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    coordinator.record(attempt, [], [job.file(attempt, name, b"ours") for name in ("out", "other")])
    coordinator.confirm(attempt)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "in the way").write_bytes(b"x")
    return coordinator


def test_a_folder_at_a_final_name_blocks_that_file_alone(job_on: Callable[..., Job], tmp_path: Path) -> None:
    """What the store refuses again each time must not stop every later trigger."""
    job = job_on(LocalObjectStore(tmp_path, durable=False))
    coordinator = _wedged(job, tmp_path)
    (checkpoint,) = coordinator.compose_commit()
    assert [(each.name, each.foreign_generation) for each in checkpoint.blocked] == [("out", None)]
    assert "file and a folder" in checkpoint.blocked[0].reason
    assert job.store.get("other") == b"ours"
    assert job.coordinator().trigger().checkpoint_id == 2


def test_such_a_file_is_replaced_once_the_way_is_free(job_on: Callable[..., Job], tmp_path: Path) -> None:
    """Until then `replace` says again what is in the way; nothing of ours is lost."""
    job = job_on(LocalObjectStore(tmp_path, durable=False))
    coordinator = _wedged(job, tmp_path)
    coordinator.compose_commit()
    assert [each.name for each in coordinator.resolve(1, "out", "replace").blocked] == ["out"]
    (tmp_path / "out" / "in the way").unlink()
    (tmp_path / "out").rmdir()
    assert coordinator.resolve(1, "out", "replace").blocked == ()
    assert job.store.get("out") == b"ours"


def test_such_a_file_can_be_given_up(job_on: Callable[..., Job], tmp_path: Path) -> None:
    """`keep` leaves what is there, and deletes the components."""
    job = job_on(LocalObjectStore(tmp_path, durable=False))
    coordinator = _wedged(job, tmp_path)
    coordinator.compose_commit()
    assert coordinator.resolve(1, "out", "keep").blocked == ()
    assert job.names(".inprogress/") == []
    assert (tmp_path / "out" / "in the way").read_bytes() == b"x"


# -- taking over


def test_a_take_over_of_one_attempt_ends_no_other(job: Job) -> None:
    """The attempt that was judged dead is gone meanwhile: the one that opened since is alive."""
    dead = job.coordinator("dead").trigger()
    judged = job.coordinator("judge")
    job.coordinator("alive").trigger(take_over=True)
    with pytest.raises(ConflictError, match="'alive'") as refused:
        judged.trigger(take_over=dead.attempt)
    assert refused.value.kind == "attempt_open"


def test_a_take_over_of_the_open_attempt_fences_it(job: Job) -> None:
    """By its id, as by `True`."""
    dead = job.coordinator("dead").trigger()
    assert job.coordinator("judge").trigger(take_over=dead.attempt).checkpoint_id == 1


def test_a_step_says_fenced_wherever_a_rival_gets_in_between() -> None:
    """The rival ends the attempt, writes the same file and cleans up: what is missing then is no fault."""
    outcomes = [_fenced_before(request) for request in range(40)]
    assert "completed" in outcomes
    assert set(outcomes) == {"completed", "fenced"}


def _fenced_before(request: int) -> str:
    """Steps 4 and 5 of an attempt that a rival ends before that request: what becomes of it."""
    job = Job(MemoryObjectStore())
    seen = -1

    def rival() -> None:
        nonlocal seen
        seen += 1
        if seen == request:
            with suppress(ConflictError):  # it comes after the commit point
                _take_over(job)

    coordinator = Job(FaultStore(job.store, before_request=rival)).coordinator()
    attempt = job.coordinator().trigger()
    changes, file = job.changes(attempt), job.file(attempt, "out/part", b"ours")
    try:
        coordinator.record(attempt, [changes], [file.recoverable])
        coordinator.confirm(attempt)
    except DstlError as error:
        return str(error.kind or error)
    return "completed"


def _take_over(job: Job) -> None:
    coordinator = job.coordinator("rival", reader_grace=timedelta(0))
    attempt = coordinator.trigger(take_over=True)
    coordinator.record(attempt, [job.changes(attempt)], [job.file(attempt, "out/part", b"rival")])
    coordinator.confirm(attempt)
    coordinator.compose_commit()
    coordinator.clean_up()


# -- the end of a batch


@pytest.mark.parametrize("error", [RuntimeError("of Spark"), MemoryError(), InvalidInputError("ours")])
def test_any_error_at_the_end_of_a_batch_ends_its_attempt(job: Job, error: Exception) -> None:
    """Else a batch of another owner would be refused, until the owner of this one comes back."""
    batch = Batch.open(job.coordinator())
    with pytest.raises(type(error)), batch.aborted_on_error():
        raise error
    assert job.coordinator().timeline.tail().open_attempt is None
