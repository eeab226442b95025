"""The options of a job in what Spark's planners and tasks do, each call made by hand. Starts no JVM."""

from __future__ import annotations

import itertools
import pickle
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from dstl_dagster.checkpoint import Attempt, StateToWrite
from dstl_dagster.clock import SystemClock
from dstl_dagster.errors import InvalidInputError, UnavailableError
from dstl_dagster.keyed import StateAt, changes_to_json
from dstl_dagster.settings import JobOptions
from dstl_dagster.spark.dataframes.merge_tasks import LookUpTask
from dstl_dagster.spark.dataframes.state import batch_of, report_of
from dstl_dagster.spark.dataframes.state_tasks import ReadStateTask, WriteStateTask
from dstl_dagster.spark.sink.commit import commit_sink
from dstl_dagster.spark.sink.messages import LARGEST_MESSAGE_BYTES, message_of
from dstl_dagster.spark.sink.options import SinkOptions
from dstl_dagster.spark.sink.plan import SinkPlan, open_sink
from dstl_dagster.spark.sink.tasks import write_partition
from dstl_dagster.spark.source.options import SourceOptions
from dstl_dagster.spark.source.source import (
    ChangesReader,
    CheckpointsReader,
    StateReader,
    changes_schema,
    state_at,
)
from dstl_dagster.spark.streaming.micro_batches import MicroBatch
from dstl_dagster.state import EncodedChanges
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault

SCHEMA = st.StructType([st.StructField("id", st.LongType()), st.StructField("value", st.LongType())])
ONCE = {"gs.retry.max-attempt": "1", "dstl.dfs.upload.retry-policy": "none"}
_numbers = itertools.count(1)


@pytest.fixture
def job(strict_gcs: GCSServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The options that name a job on an empty bucket."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", strict_gcs.url)
    monkeypatch.setattr(SystemClock, "sleep_seconds", lambda *_: None)  # between two tries
    bucket = f"sink-options-{next(_numbers)}"
    strict_gcs.create_bucket(bucket)
    yield {"store": f"gs://{bucket}", "job": "job"}
    strict_gcs.faults.clear()


def rows() -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array([1, 2]), pa.array([3, 4])], ["id", "value"])


def planned(options: dict[str, str], *, streaming: bool = False) -> SinkPlan:
    """The plan as a task unpickles it."""
    plan = open_sink(SinkOptions.of(options, streaming=streaming), SCHEMA)
    same: SinkPlan = pickle.loads(pickle.dumps(plan))
    return same


def written(job: dict[str, str], **more: str) -> None:
    """One checkpoint."""
    options = SinkOptions.of(
        {**job, "operator": "op", "keys": "id", "idempotency_key": "x", **more}, streaming=False
    )
    plan = open_sink(options, SCHEMA)
    message = message_of(write_partition(plan, None, 0, rows()), options.job_options)
    assert commit_sink(options, SCHEMA, [message], None) == 1


def one_refusal(server: GCSServer, name: str, method: str = "objects.*") -> None:
    server.faults.add(ServerFault(FaultKind.STATUS, method=method, name=name))


def state_task(job: dict[str, str], server: GCSServer, more: dict[str, str]) -> Any:
    plan = planned({**job, "operator": "op", "keys": "id", "idempotency_key": "x", **more})
    one_refusal(server, "*/changelog/*")
    return write_partition(plan, None, 0, rows())


def file_task(job: dict[str, str], server: GCSServer, more: dict[str, str]) -> Any:
    plan = planned({**job, "path": "out", "idempotency_key": "x", **more})
    one_refusal(server, "*.inprogress*")
    return write_partition(plan, None, 0, rows())


def opening_task(job: dict[str, str], server: GCSServer, more: dict[str, str]) -> Any:
    plan = planned({**job, "operator": "op", "keys": "id", **more}, streaming=True)
    one_refusal(server, "*/timeline/*", "objects.insert")
    return write_partition(plan, MicroBatch("query", 0), 0, rows())


def large_message(job: dict[str, str], server: GCSServer, more: dict[str, str]) -> Any:
    plan = planned({**job, "operator": "op", "keys": "id", "idempotency_key": "x", **more})
    outcome = {"attempt": plan.attempt.to_json(), "padding": "x" * LARGEST_MESSAGE_BYTES}
    one_refusal(server, "*/outcomes/*")
    return message_of(outcome, plan.options.job_options)


def planner(job: dict[str, str], server: GCSServer, more: dict[str, str]) -> Any:
    one_refusal(server, "*/timeline/*", "objects.insert")
    return planned({**job, "operator": "op", "keys": "id", "idempotency_key": "x", **more})


def reading_task(job: dict[str, str], server: GCSServer, more: dict[str, str]) -> Any:
    written(job)
    options = SourceOptions.of({**job, "operator": "op", **more})
    reader = pickle.loads(pickle.dumps(StateReader(options, state_at(options, None), SCHEMA)))
    one_refusal(server, "*/changelog/*")
    return [table for part in reader.partitions() for table in reader.read(part)]


def reading_planner(job: dict[str, str], server: GCSServer, more: dict[str, str]) -> Any:
    written(job)
    one_refusal(server, "*", "objects.list")
    return state_at(SourceOptions.of({**job, "operator": "op", **more}), None)


def listing_task(job: dict[str, str], server: GCSServer, more: dict[str, str]) -> Any:
    written(job)
    reader = CheckpointsReader(SourceOptions.of({**job, "table": "checkpoints", **more}))
    one_refusal(server, "*", "objects.list")
    (partition,) = reader.partitions()
    return list(reader.read(partition))


def changes_task(job: dict[str, str], server: GCSServer, more: dict[str, str]) -> Any:
    written(job)
    options = SourceOptions.of({**job, "operator": "op", "table": "changes", **more})
    state = state_at(options, None)
    states = [replace(state, handles=()), state]
    reader = pickle.loads(pickle.dumps(ChangesReader(options, states, changes_schema(states))))
    one_refusal(server, "*/changelog/*")
    return [table for part in reader.partitions() for table in reader.read(part)]


def parent_state(job: dict[str, str], more: dict[str, str]) -> StateAt:
    written(job)
    return state_at(SourceOptions.of({**job, "operator": "op", **more}), None)


def read_state_task(job: dict[str, str], server: GCSServer, more: dict[str, str]) -> Any:
    state = parent_state(job, more)
    task = pickle.loads(pickle.dumps(ReadStateTask(state, state.ranges())))
    one_refusal(server, "*/changelog/*")
    return list(task(iter([pa.record_batch([pa.array([0])], ["id"])])))


def look_up_task(job: dict[str, str], server: GCSServer, more: dict[str, str]) -> Any:
    state = parent_state(job, more)
    task = pickle.loads(pickle.dumps(LookUpTask(state)))
    groups = pa.array([state.handles[0].key_group_range.start_key_group], pa.int32())
    one_refusal(server, "*/changelog/*")
    new = pa.StructArray.from_arrays([pa.array([1]), pa.array([9])], ["id", "value"])
    return list(task(iter([pa.record_batch([new, groups], ["new", "key_group"])])))


def write_state_task(job: dict[str, str], server: GCSServer, more: dict[str, str]) -> Any:
    state = parent_state(job, more)
    attempt = Attempt(2, uuid.uuid4(), 1, "job", job["store"])
    task = WriteStateTask(
        attempt, "op", ("id", "value"), state.schema, (state.all_key_groups,), state.options
    )
    ids = pa.array(range(6000))  # so many that the task writes a file
    columns = [ids, ids, pa.array([False] * 6000), pa.array([5] * 6000, pa.int32())]
    one_refusal(server, "*/changelog/*")
    return list(task(iter([pa.record_batch(columns, ["c0", "c1", "deleted", "key_group"])])))


def small_changes(job: dict[str, str], server: GCSServer, more: dict[str, str]) -> Any:
    """On the driver."""
    state = parent_state(job, more)
    attempt = Attempt(2, uuid.uuid4(), 1, "job", job["store"])
    handed_over = {
        "key_groups": state.all_key_groups.to_json(),
        "changes": changes_to_json(EncodedChanges(pa.array([5], pa.int32()), pa.array([b"change"]))),
        "upserts": 1,
        "deletes": 0,
        "null_keys": 0,
    }
    to_write = StateToWrite("op", state.schema, ("id", "value"), None, None, None)
    with batch_of(attempt, None, None, state.options) as (batch, options):  # type: ignore[arg-type] # no task
        one_refusal(server, "*/changelog/*")
        return batch.shared_files.durable_now(report_of(batch, to_write, [handed_over], options))


@pytest.mark.parametrize(
    "work",
    [
        *(state_task, file_task, opening_task, large_message, planner),
        *(reading_task, reading_planner, listing_task, changes_task),
        *(read_state_task, look_up_task, write_state_task, small_changes),
    ],
)
def test_every_request_follows_the_options(work: Any, job: dict[str, str], strict_gcs: GCSServer) -> None:
    """With one attempt a request the first refusal is an error; by default the request is made again."""
    with pytest.raises(UnavailableError):
        work(job, strict_gcs, ONCE)
    strict_gcs.faults.clear()
    again = {**job, "job": "another"}
    assert work(again, strict_gcs, {})


@pytest.mark.parametrize("key", ["gs.writer.chunk.size", "GS.Writer.Chunk.Size"])
def test_the_case_of_a_key_does_not_matter(key: str) -> None:
    """Spark's own rule. The same for reading and writing."""
    given = {"Store": "file:///x", "JOB": "job", "Operator": "op", key: "1 mb"}
    wanted = JobOptions.of({"gs.writer.chunk.size": "1 mb"})
    assert SourceOptions.of(given).job_options == wanted
    written = SinkOptions.of({**given, "Keys": "id", "idempotency_key": "x"}, streaming=False)
    assert (written.job_options, written.keys) == (wanted, ("id",))


def test_sparks_own_options_are_none_of_a_job() -> None:
    """A stream's are accepted; the copies that a catalog makes of a table's options are not."""
    given = {"store": "file:///x", "job": "job", "operator": "op", "keys": "id"}
    spark = {"checkpointLocation": "/x", "queryName": "q"}
    assert SinkOptions.of({**given, **spark}, streaming=True).job_options == JobOptions()
    read = {key: value for key, value in given.items() if key != "keys"}
    copies = {f"option.{key}": value for key, value in read.items()}
    with pytest.raises(InvalidInputError, match="cannot be a table of the catalog"):
        SourceOptions.of({**read, **copies, "owner": "me", "provider": "dstl"})


def test_the_environment_is_below_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read where the options are, in Spark's planner; tasks get the outcome."""
    monkeypatch.setenv("DSTL_OPTIONS", "gs.retry.max-attempt=2\ngs.writer.chunk.size=1mb")
    read = SourceOptions.of({"store": "file:///x", "job": "j", "operator": "o", "gs.retry.max-attempt": "3"})
    assert (read.job_options.files.retry_max_attempt, read.job_options.files.writer_chunk_size) == (
        3,
        1 << 20,
    )
    monkeypatch.delenv("DSTL_OPTIONS")
    assert pickle.loads(pickle.dumps(read)) == read
