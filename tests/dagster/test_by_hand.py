"""Ops that append and write files by themselves: `changelog.storage`, `files.writer`, and their options."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dstl_dagster import ChangelogStorageResource, CheckpointLineageComponent, RecoverableWriterResource
from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, Opening, OperatorReport
from dstl_dagster.errors import ClosedError, UnavailableError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import load_report
from dstl_dagster.settings import JobOptions
from dstl_dagster.spark import CheckpointBatch
from dstl_dagster.storage import open_store
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault

pytestmark = pytest.mark.dagster

GROUPS = KeyGroupRange.of(0, 3)
NUM_RETAINED = "execution.checkpointing.num-retained"
_numbers = itertools.count(1)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return (tmp_path / "store").as_uri()


@pytest.fixture
def context() -> dg.OpExecutionContext:
    return dg.build_op_context()


def batch_of(changelog: ChangelogStorageResource, **more: Any) -> CheckpointBatch:
    """What `changelog.checkpoint` opens in a run."""
    return CheckpointBatch(changelog.coordinator("job", owner="run", **more), Opening("x"))


def append(storage: Any, value: bytes, checkpoint_id: int) -> OperatorReport:
    with storage.create_writer("op", GROUPS) as writer:
        writer.append(1, value)
        done = writer.persist(writer.initial_sequence_number(), checkpoint_id).result()
    return OperatorReport("op", (done.job_manager_owned_snapshot,), max_parallelism=4)


def complete(coordinator: CheckpointCoordinator, attempt: Attempt) -> None:
    coordinator.record_report(attempt, load_report(coordinator.store, attempt))
    coordinator.confirm(attempt)
    coordinator.compose_commit()


def test_what_is_appended_is_in_the_checkpoint(place: str, context: dg.OpExecutionContext) -> None:
    """Files carry the attempt, follow the options, and the next batch reads them; no thread is left."""
    changelog = ChangelogStorageResource(uri=place, options={"dstl.dfs.compression": "none"})
    for number in (1, 2):
        with CheckpointBatch(changelog.coordinator("job")) as batch:
            with changelog.storage(context, batch) as storage:
                read = storage.create_reader().read
                before = [each.change for handle in batch.handles("op") for each in read(handle)]
                batch.add(append(storage, str(number).encode(), batch.attempt.checkpoint_id))
            with pytest.raises(ClosedError):
                storage.create_writer("op", GROUPS)
        (handle,) = load_report(changelog.store(), batch.attempt).operators[0].handles
        name = handle.handles_and_offsets[0][0].name
        assert str(batch.attempt.attempt) in name or batch.attempt.attempt.hex in name
        assert changelog.store().get(name)[0] == 0, "not compressed"
        complete(changelog.coordinator("job"), batch.attempt)
    assert before == [b"1"]


def test_a_reference_is_enough(place: str, context: dg.OpExecutionContext) -> None:
    """An op that was handed the attempt, not the batch, writes under it too."""
    changelog = ChangelogStorageResource(uri=place)
    coordinator = changelog.coordinator("job")
    attempt = coordinator.trigger()
    for work in (attempt, attempt.to_json()):
        with changelog.storage(context, work) as storage:
            report = append(storage, b"x", attempt.checkpoint_id)
    files = RecoverableWriterResource(uri=f"{place}/out")
    with files.writer(attempt.to_json()) as writer, writer.open(files.uri_of("x.txt")) as stream:
        stream.write(b"bytes")
        committer = stream.close_for_commit()
    coordinator.record(attempt, [report], [committer.recoverable])
    coordinator.confirm(attempt)
    coordinator.compose_commit()
    assert coordinator.store.get("out/x.txt") == b"bytes"
    assert coordinator.verify().ok


def test_an_attempt_of_another_store_is_refused(
    place: str, tmp_path: Path, context: dg.OpExecutionContext
) -> None:
    """Its changelog would lie where its checkpoint does not look."""
    attempt = ChangelogStorageResource(uri=place).coordinator("job").trigger()
    other = ChangelogStorageResource(uri=(tmp_path / "other").as_uri())
    with pytest.raises(dg.Failure) as refused, other.storage(context, attempt):
        pass
    assert "use the resource that opened it" in str(refused.value.description)
    assert refused.value.allow_retries is False


def test_nothing_is_written_for_a_batch_that_is_done(place: str, context: dg.OpExecutionContext) -> None:
    """Both refuse, for good, and say in which checkpoint it is."""
    changelog, files = ChangelogStorageResource(uri=place), RecoverableWriterResource(uri=place)
    with batch_of(changelog) as batch:
        pass
    complete(changelog.coordinator("job"), batch.attempt)
    with batch_of(changelog) as again:
        for opened in (changelog.storage(context, again), files.writer(again)):
            with pytest.raises(dg.Failure) as refused, opened:
                pass
            assert "already in checkpoint 1: write nothing" in str(refused.value.description)


def test_a_writer_without_a_batch(place: str) -> None:
    """It is its own attempt, on the store of its own URI."""
    with RecoverableWriterResource(uri=place).writer() as writer:
        with writer.open(f"{place}/x.txt") as stream:
            stream.write(b"bytes")
            committer = stream.close_for_commit()
        committer.commit()
    assert open_store(place).get("x.txt") == b"bytes"


@pytest.fixture
def buckets(strict_gcs: GCSServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", strict_gcs.url)
    names = tuple(f"by-hand-{next(_numbers)}-{kind}" for kind in ("job", "scratch"))
    for name in names:
        strict_gcs.create_bucket(name)
    yield names
    strict_gcs.faults.clear()


def test_a_writer_follows_the_batch_and_its_own_options(
    buckets: tuple[str, str], strict_gcs: GCSServer
) -> None:
    """The job's temporary bucket, and chunks of the writer's."""
    bucket, scratch = buckets
    changelog = ChangelogStorageResource(
        uri=f"gs://{bucket}", options={"gs.writer.temporary.bucket.name": scratch}
    )
    files = RecoverableWriterResource(uri=f"gs://{bucket}/out", options={"gs.writer.chunk.size": "256 kb"})
    before = strict_gcs.counts.get("upload.chunk", 0)
    with CheckpointBatch(changelog.coordinator("job")) as batch:
        with files.writer(batch) as writer, writer.open(files.uri_of("x")) as stream:
            io.BufferedWriter(stream, 1 << 20).write(b"x" * 600_000)
            batch.add(stream.close_for_commit())
        assert list(open_store(f"gs://{scratch}").list())
    assert strict_gcs.counts["upload.chunk"] - before == 2
    complete(changelog.coordinator("job"), batch.attempt)
    assert changelog.store().get("out/x") == b"x" * 600_000
    assert list(open_store(f"gs://{scratch}").list()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gs.writer.temporary.bucket.name": "other"}, "cannot be changed for one call"),
        ({"gs.writer.chunk.sise": "1 mb"}, "did you mean gs.writer.chunk.size"),
        ({"gs.writers.chunk": "1 mb"}, "gs.writers.chunk is not an option"),
    ],
)
def test_a_writers_option_that_cannot_act_is_refused(
    place: str, options: dict[str, str], message: str
) -> None:
    """Its batch's places, a slip, and a key that nothing has."""
    files = RecoverableWriterResource(uri=place, options=options)
    with CheckpointBatch(ChangelogStorageResource(uri=place).coordinator("job")) as batch:
        with pytest.raises(dg.Failure) as refused, files.writer(batch):
            pass
        assert message in str(refused.value.description)


def test_one_set_of_keys_configures_both_resources(place: str) -> None:
    """A writer takes a changelog's options, and follows its own among them."""
    options = {"dstl.dfs.upload.timeout": "5 min", NUM_RETAINED: "3", "gs.writer.chunk.size": "256 kb"}
    changelog = ChangelogStorageResource(uri=place, options=options)
    files = RecoverableWriterResource(uri=place, options=changelog.options)
    dg.Definitions.validate_loadable(dg.Definitions(resources={"changelog": changelog, "files": files}))
    with (
        CheckpointBatch(changelog.coordinator("job")) as batch,
        files.writer(batch) as writer,
        writer.open(files.uri_of("x")) as stream,
    ):
        stream.write(b"x")
        batch.add(stream.close_for_commit())
    complete(changelog.coordinator("job"), batch.attempt)
    assert changelog.store().get("x") == b"x"


def test_what_goes_before_what(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call, resource, environment; the batch has the outcome."""
    monkeypatch.setenv(
        "DSTL_OPTIONS", f"{NUM_RETAINED}=2\ngs.retry.max-attempt=2\ndstl.checkpoint.commit-threads=2"
    )
    changelog = ChangelogStorageResource(uri=place, options={NUM_RETAINED: "3", "gs.retry.max-attempt": "3"})
    with batch_of(changelog, options={NUM_RETAINED: "4"}) as batch:
        options = batch.job_options
    assert options.checkpoint.num_retained == 4
    assert options.files.retry_max_attempt == 3
    assert options.checkpoint.commit_threads == 2


def test_the_requests_of_a_call_follow_its_options(
    buckets: tuple[str, str], strict_gcs: GCSServer, context: dg.OpExecutionContext
) -> None:
    """One attempt a request: the first refusal is an error, of the control plane and of an op by hand."""
    changelog = ChangelogStorageResource(uri=f"gs://{buckets[0]}")
    once = {"gs.retry.max-attempt": "1", "dstl.dfs.upload.retry-policy": "none"}
    patient, impatient = changelog.coordinator("job"), changelog.coordinator("job", options=once)
    for coordinator, expected in ((patient, nullcontext()), (impatient, pytest.raises(UnavailableError))):
        strict_gcs.faults.add(ServerFault(FaultKind.STATUS))
        with expected:
            coordinator.latest()
        strict_gcs.faults.clear()
    with CheckpointBatch(impatient) as batch, changelog.storage(context, batch) as storage:
        strict_gcs.faults.add(ServerFault(FaultKind.STATUS, name="*/changelog/*"))
        with pytest.raises(UnavailableError):
            append(storage, b"x", 1)


def test_the_options_of_a_call_reach_a_run(place: str) -> None:
    """`changelog.checkpoint(..., options=)` in an op."""
    seen: list[JobOptions] = []

    @dg.op(required_resource_keys={"changelog"})
    def update(context) -> None:  # type: ignore[no-untyped-def] # Dagster reads annotations as objects
        changelog = context.resources.changelog
        with changelog.checkpoint(context, job="job", options={"dstl.dfs.compression": "snappy"}) as batch:
            seen.append(batch.job_options)

    @dg.job(resource_defs={"changelog": ChangelogStorageResource(uri=place, options={NUM_RETAINED: "3"})})
    def one_update() -> None:
        update()

    assert one_update.execute_in_process().success
    assert (seen[0].changelog.compression, seen[0].checkpoint.num_retained) == ("snappy", 3)


def test_the_components_options_act_in_its_jobs(place: str) -> None:
    """Retention in the clean-up; numbers and booleans of YAML are read as their text."""
    coordinator = CheckpointCoordinator("job", open_store(place))
    for _ in range(3):
        attempt = coordinator.trigger()
        coordinator.record(attempt)
        coordinator.confirm(attempt)
    given = {NUM_RETAINED: 2, "dstl.state.materialize.enabled": False}
    defs = CheckpointLineageComponent(job="job", store=place, options=given).build_defs(None)  # type: ignore[arg-type] # it asks nothing of the context
    assert defs.resolve_job_def("job_cleanup").execute_in_process().success
    assert [each.checkpoint_id for each in coordinator.list()] == [2, 3]


def test_the_storage_is_closed_if_the_op_fails(place: str, context: dg.OpExecutionContext) -> None:
    """The op's own error is what Dagster sees."""
    changelog = ChangelogStorageResource(uri=place)
    attempt = changelog.coordinator("job").trigger()
    opened = changelog.storage(context, attempt)
    storage = opened.__enter__()
    error = RuntimeError("the op's own")
    assert not opened.__exit__(RuntimeError, error, None)
    with pytest.raises(ClosedError):
        storage.create_writer("op", GROUPS)
