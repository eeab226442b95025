"""The work of a task for keyed state, run in this process, without Spark."""

from __future__ import annotations

import json
import pickle
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import Attempt, OperatorReport
from dstl_dagster.errors import InvalidInputError, NotFoundError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.format.key_group_ranges import ranges_of_tasks
from dstl_dagster.keyed import SharedFiles, StateAt, small_from_outcome
from dstl_dagster.settings import JobOptions
from dstl_dagster.spark.dataframes.state_tasks import ReadStateTask, WriteStateTask
from dstl_dagster.spark.errors import raise_refusal
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import open_store
from dstl_dagster.storage.base import Generation

SCHEMA = StateSchema.of(pa.schema({"id": pa.int64(), "value": pa.int64()}), ["id"], 16)


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(1, uuid.uuid4(), None, "job", tmp_path.as_uri())


def writer_of(attempt: Attempt) -> WriteStateTask:
    task = WriteStateTask(attempt, "op", ("id", "value"), SCHEMA, ranges_of_tasks(4, 16), JobOptions())
    same: WriteStateTask = pickle.loads(pickle.dumps(task))
    return same


def reader_of(
    attempt: Attempt, handles: list[ChangelogStateHandle], ranges: tuple[KeyGroupRange, ...]
) -> ReadStateTask:
    task = ReadStateTask(StateAt(attempt.store_uri, "job", 1, "op", SCHEMA, tuple(handles)), ranges)
    same: ReadStateTask = pickle.loads(pickle.dumps(task))
    return same


def batches(rows: list[tuple[int, int, bool, int]], size: int = 10) -> Iterator[pa.RecordBatch]:
    """Rows of (id, value, deleted, key group), as Spark passes them: by position."""
    for start in range(0, len(rows), size):
        columns = zip(*rows[start : start + size], strict=True)
        yield pa.record_batch(
            [pa.array(list(column)) for column in columns], ["c0", "c1", "deleted", "key_group"]
        )


def outcome_of(task: WriteStateTask, rows: list[tuple[int, int, bool, int]]) -> Any:
    (batch,) = task(batches(rows))
    return json.loads(batch.column(0)[0].as_py())


def rows_read(task: ReadStateTask, range_index: int) -> list[tuple[int, int]]:
    found = task(iter([pa.record_batch([pa.array([range_index])], ["id"])]))
    return sorted((row["id"], row["value"]) for batch in found for row in batch.to_pylist())


def handle_of(attempt: Attempt, outcome: dict[str, Any]) -> ChangelogStateHandle:
    """As the driver makes it durable."""
    assert "handle" not in outcome
    with closing(open_store(attempt.store_uri)) as store:
        shared = SharedFiles(store, attempt)
        handle = shared.add(small_from_outcome(outcome, "op", SCHEMA, JobOptions()))
        report = OperatorReport("op", (handle,), ("id",), 16, SCHEMA.arrow_message)
        return shared.durable_now(report).handles[0]


def test_few_changes_are_in_the_outcome(attempt: Attempt, tmp_path: Path) -> None:
    """And no store is opened for them."""
    outcome = outcome_of(writer_of(attempt), [(1, 1, False, 0)])
    assert outcome["key_groups"] == [0, 3]
    assert outcome["upserts"] == 1
    assert list(tmp_path.iterdir()) == []


def test_a_task_writes_its_range_and_any_task_reads_it(attempt: Attempt) -> None:
    """Two tasks' rows come back through three readers whose ranges cut across the writers'."""
    rows = {
        task: [(n, n * n, False, 4 * task + n % 4) for n in range(100 * task, 100 * task + 60)]
        for task in (1, 2)
    }
    outcomes = [outcome_of(writer_of(attempt), rows[task]) for task in (1, 2)]
    assert [outcome["upserts"] for outcome in outcomes] == [60, 60]
    handles = [handle_of(attempt, outcome) for outcome in outcomes]
    assert [handle.key_group_range for handle in handles] == [KeyGroupRange.of(4, 7), KeyGroupRange.of(8, 11)]
    reader = reader_of(attempt, handles, ranges_of_tasks(3, 16))
    found = [rows_read(reader, index) for index in range(3)]
    assert sorted(row for part in found for row in part) == [(n, v) for t in (1, 2) for n, v, _, _ in rows[t]]
    assert [len(part) for part in found] == [30, 75, 15]


def test_a_task_leaves_no_thread_behind(attempt: Attempt) -> None:
    """A Python worker outlives its tasks: whatever a task starts ends with it."""
    before = set(threading.enumerate())
    outcome = outcome_of(writer_of(attempt), [(1, 1, False, 0)])
    reader = reader_of(attempt, [handle_of(attempt, outcome)], ranges_of_tasks(1, 16))
    assert rows_read(reader, 0) == [(1, 1)]
    assert set(threading.enumerate()) <= before


def test_a_task_without_rows_touches_no_store(attempt: Attempt, tmp_path: Path) -> None:
    """An empty partition returns nothing and writes nothing."""
    empty = pa.record_batch([pa.array([], pa.int64())] * 4, ["c0", "c1", "deleted", "key_group"])
    assert list(writer_of(attempt)(iter([empty]))) == []
    assert list(tmp_path.iterdir()) == []


def test_a_repeated_key_is_an_outcome_and_no_failure(attempt: Attempt) -> None:
    """The first try reports invalid rows to the driver; Spark does not retry them."""
    rows = [(n, 0, False, 3) for n in [*range(30), 7]]
    outcome = outcome_of(writer_of(attempt), rows)
    with pytest.raises(InvalidInputError, match="id=7") as caught:
        raise_refusal([outcome])
    assert caught.value.kind == "duplicate_key"


def test_a_row_of_another_tasks_range_is_refused(attempt: Attempt) -> None:
    """If rows were ever partitioned other than planned, nothing would be written to the wrong range."""
    outcome = outcome_of(writer_of(attempt), [(1, 1, False, 0), (2, 2, False, 9)])
    assert "refused" in outcome


def test_a_deleted_file_names_the_checkpoint(attempt: Attempt) -> None:
    """A reader that is too late names what it wanted to read and why it cannot."""
    handle = handle_of(attempt, outcome_of(writer_of(attempt), [(1, 1, False, 0)]))
    store = open_store(attempt.store_uri)
    for stat in list(store.list()):
        store.delete(stat.name, precondition=Generation(stat.generation))
    reader = reader_of(attempt, [handle], ranges_of_tasks(1, 16))
    with pytest.raises(NotFoundError, match="'op' at checkpoint 1 of job 'job' is gone") as caught:
        rows_read(reader, 0)
    assert caught.value.kind == "job_gone"


def test_files_lie_under_the_attempt(attempt: Attempt) -> None:
    """Every try that has much writes under the attempt's name, each to files of its own."""
    for _ in range(2):
        outcome = outcome_of(writer_of(attempt), [(n, 1, False, 0) for n in range(6000)])
        assert "handle" in outcome
    names = [stat.name for stat in open_store(attempt.store_uri).list()]
    assert len(names) == 2
    assert all(name.startswith(f"dstl/job/attempts/{attempt.attempt}/changelog/") for name in names)
