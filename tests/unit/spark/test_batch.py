"""A batch accepts reports of what something other than Spark wrote. Starts no JVM."""

from __future__ import annotations

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator, FileReport, OperatorReport, load_report
from dstl_dagster.errors import ConflictError, InvalidInputError
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.spark.batch import CheckpointBatch
from dstl_dagster.storage import MemoryObjectStore


def _coordinator() -> CheckpointCoordinator:
    return CheckpointCoordinator("job", MemoryObjectStore(), owner="test")


def _file(batch: CheckpointBatch, store: MemoryObjectStore) -> FileReport:
    stream = GSRecoverableWriter(store, attempt=batch.attempt.attempt).open(store.uri_of("x.txt"))
    stream.write(b"x")
    committer = stream.close_for_commit()
    return FileReport(committer.recoverable, tuple(committer.components))


def test_added_reports_are_in_the_batch() -> None:
    """Step 4 finds what was added."""
    coordinator = _coordinator()
    with CheckpointBatch(coordinator) as batch:
        operator, file = OperatorReport("op", ()), _file(batch, coordinator.store)
        batch.add(operator)
        batch.add(file)
    report = load_report(coordinator.store, batch.attempt)
    assert report.operators == (operator,)
    assert report.files == (file,)


def test_something_else_is_refused() -> None:
    """Neither state nor a file: the call is refused, and the attempt is aborted."""
    coordinator = _coordinator()
    with (
        pytest.raises(InvalidInputError, match="OperatorReport or a FileReport"),
        CheckpointBatch(coordinator) as batch,
    ):
        batch.add("a file")  # type: ignore[arg-type] # the point
    assert [record.kind for record in coordinator.timeline.records()] == ["opened", "aborted"]


def test_nothing_is_added_to_a_batch_that_is_done() -> None:
    """A batch that a completed checkpoint holds accepts nothing more."""
    coordinator = _coordinator()
    with CheckpointBatch(coordinator, idempotency_key="monday") as batch:
        pass
    coordinator.record(batch.attempt)
    coordinator.confirm(batch.attempt)
    with CheckpointBatch(coordinator, idempotency_key="monday") as again:
        assert again.already_in == 1
        with pytest.raises(ConflictError) as refused:
            again.add(OperatorReport("op", ()))
    assert refused.value.kind == "already_applied"
