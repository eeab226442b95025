"""A batch accepts reports of what something other than Spark wrote. Starts no JVM."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import (
    Checkpoint,
    CheckpointCoordinator,
    CleanUp,
    FileReport,
    Opening,
    OperatorReport,
    Timeline,
)
from dstl_dagster.errors import ClosedError, ConflictError, InvalidInputError
from dstl_dagster.keyed import load_report
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.spark.batch import CheckpointBatch, open_batch
from dstl_dagster.storage import MemoryObjectStore
from dstl_dagster.timeline import Fenced


def _coordinator() -> CheckpointCoordinator:
    return CheckpointCoordinator("job", MemoryObjectStore(), owner="test")


def _file(batch: CheckpointBatch, store: MemoryObjectStore, name: str = "x.txt") -> FileReport:
    stream = GSRecoverableWriter(store, attempt=batch.attempt.attempt).open(store.uri_of(name))
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


def test_files_of_rows_that_are_not_sparks_are_refused() -> None:
    """By a sentence, in place of an assertion of PySpark's, or of its absence."""
    with (
        pytest.raises(
            InvalidInputError, match="write_files takes a DataFrame of Spark, not a Table: write other"
        ),
        CheckpointBatch(_coordinator()) as batch,
    ):
        batch.write_files(pa.table({"k": [1]}), "x.jsonl")  # type: ignore[arg-type] # the point


def test_nothing_is_written_after_the_block() -> None:
    """It would be in no checkpoint, and the program would end well. The attempt and the report are there."""
    coordinator = _coordinator()
    with CheckpointBatch(coordinator) as batch:
        file = _file(batch, coordinator.store)
    rows = pa.table({"k": [1]})
    for write in (
        lambda: batch.write_state(rows, operator="op", keys=["k"]),
        lambda: batch.merge_state(rows, operator="op", keys=["k"], schema="k INT", update={}),
        lambda: batch.add(file),
        lambda: batch.move_position("source", 1),
        lambda: batch.describe("a ticket"),
    ):
        with pytest.raises(ClosedError, match="has ended with its `with` block"):
            write()
    report = load_report(coordinator.store, batch.attempt)
    assert not report.operators
    assert batch.report is not None


def test_nothing_is_added_to_a_batch_that_is_done() -> None:
    """A batch that a completed checkpoint holds accepts nothing more."""
    coordinator = _coordinator()
    with CheckpointBatch(coordinator, Opening("monday")) as batch:
        pass
    coordinator.record(batch.attempt)
    coordinator.confirm(batch.attempt)
    with CheckpointBatch(coordinator, Opening("monday")) as again:
        assert again.already_in == 1
        with pytest.raises(ConflictError) as refused:
            again.add(OperatorReport("op", ()))
    assert refused.value.kind == "already_applied"


def _apply(store: MemoryObjectStore, key: str, **how: Any) -> int | None:
    """One batch with a row and a file, as a program alone writes it; returns `already_in`."""
    with open_batch(store, "job", idempotency_key=key, **how) as batch:
        if batch.already_in is None:
            batch.write_state(pa.table({"key": [key], "value": [1]}), operator="op", keys=["key"])
            batch.add(_file(batch, store, f"{key}.txt"))
            batch.move_position("inbox", key)
        return batch.already_in


def test_a_program_alone_does_all_steps() -> None:
    """The end of the block completes the checkpoint, publishes its file, and cleans up when asked; a batch
    that a checkpoint holds is not applied again.
    """
    store = MemoryObjectStore()
    assert [_apply(store, key, clean_up_every=2) for key in ("a", "b", "a")] == [None, None, 1]
    coordinator = CheckpointCoordinator("job", store)
    assert [(done.positions["inbox"], done.committed) for done in coordinator.list()] == [
        ("a", True),
        ("b", True),
    ]
    assert (store.get("a.txt"), store.get("b.txt")) == (b"x", b"x")
    assert coordinator.audit().in_order
    assert coordinator.audit().garbage == CleanUp(dry_run=True)  # the clean-up of checkpoint 2 took it all


def test_a_program_that_died_before_step_6_publishes_when_it_runs_again() -> None:
    """The checkpoint is complete, so there is nothing to write, and its file appears."""
    store = MemoryObjectStore()
    coordinator = CheckpointCoordinator("job", store)
    with CheckpointBatch(coordinator, Opening("a")) as batch:
        batch.add(_file(batch, store, "a.txt"))
    coordinator.record_report(batch.attempt, load_report(store, batch.attempt))
    coordinator.confirm(batch.attempt)
    assert store.stat("a.txt") is None
    assert _apply(store, "a") == 1
    assert store.get("a.txt") == b"x"


def test_a_program_that_was_killed_goes_on_under_its_owner() -> None:
    """Its attempt is open: the same owner fences it, another one is refused, and may take over."""
    store = MemoryObjectStore()
    killed = CheckpointCoordinator("job", store, owner="program").trigger(idempotency_key="a")
    with pytest.raises(ConflictError, match="is being made by attempt"):
        _apply(store, "a", owner="another")
    assert _apply(store, "a", owner="program") is None
    CheckpointCoordinator("job", store, owner="program").trigger()
    assert _apply(store, "b", owner="another", take_over=True) is None
    fenced = [record for record in Timeline("job", store).records() if isinstance(record, Fenced)]
    assert [record.by for record in fenced] == ["program", "another"]
    assert fenced[0].attempt == killed.attempt


def test_an_error_in_the_block_leaves_nothing() -> None:
    """The attempt is aborted, and a batch of that name can be applied."""
    store = MemoryObjectStore()

    def check(parent: Checkpoint | None) -> None:
        assert parent is None

    with (
        pytest.raises(InvalidInputError),
        open_batch(store, "job", idempotency_key="a", check=check) as batch,
    ):
        batch.write_state(pa.table({"key": [1]}), operator="op", keys=["nothing"])
    assert [record.kind for record in Timeline("job", store).records()] == ["opened", "aborted"]
    assert _apply(store, "a") is None


def test_a_program_without_dataframes_needs_no_pyspark() -> None:
    """Rows of Arrow, in a process where importing pyspark fails."""
    program = """
import sys

sys.modules["pyspark"] = None
import pyarrow as pa
from dstl_dagster import open_batch

with open_batch("memory://lean", "job") as batch:
    batch.write_state(pa.table({"key": [1]}), operator="op", keys=["key"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"idempotency_key": ""}, "this one is empty: under it, the next batch would be the same one"),
        ({"idempotency_key": " "}, "this one is empty"),
        ({"clean_up_every": "x"}, "clean_up_every: 'x' cannot be used"),
        ({"clean_up_every": -1}, "expected 0 or more"),
    ],
)
def test_a_wrong_batch_is_refused_before_it_opens(how: dict[str, Any], reason: str) -> None:
    """An empty key, as of a variable that is not set, would drop the rows of every batch but the first."""
    with pytest.raises(InvalidInputError, match=reason), open_batch("memory://wrong", "job", **how):
        pass


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"operator": 5}, "an operator's name, such as 'aircraft', not 5"),
        ({"operator": ""}, "an operator's name, such as 'aircraft', not ''"),
        ({"max_parallelism": "4"}, "max_parallelism is '4', not a whole number"),
        ({"replace": None}, "replace is True, False, or a condition such as .*, not None"),
        ({"update": None}, "update is None, not expressions by column, such as {'total'"),
        ({"update": {5: "1"}}, "update: 5 cannot be used: expected a name, as text"),
    ],
)
def test_a_wrong_argument_is_one_sentence(how: dict[str, Any], reason: str) -> None:
    """Of a kind that another library would stumble over, far from here."""
    given: dict[str, Any] = {"operator": "op", "keys": ["k"]} | how
    with CheckpointBatch(_coordinator()) as batch:
        rows = pa.table({"k": [1], "v": [1]})
        write = batch.write_state
        if "update" in how:
            write, given = batch.merge_state, given | {"schema": "k BIGINT, v BIGINT"}
        with pytest.raises(InvalidInputError, match=reason):
            write(rows, **given)
