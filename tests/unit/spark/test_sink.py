"""What Spark's calls to the sink do on the timeline, each call made by hand. Starts no JVM.

Spark makes the plan of a batch (`open_sink`), gives it to tasks (`write_partition`), and commits or aborts
with the messages of the tasks that won, in other processes. These tests are that Spark, in every order that
crashes can make.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator
from dstl_dagster.errors import ConflictError, FencedError, InvalidInputError, UnavailableError
from dstl_dagster.keyed import KeyedState
from dstl_dagster.settings import JobOptions
from dstl_dagster.spark.sink import commit as sink_commit
from dstl_dagster.spark.sink import messages as sink_messages
from dstl_dagster.spark.sink.messages import TaskMessage
from dstl_dagster.spark.sink.options import SinkOptions
from dstl_dagster.spark.sink.plan import SinkPlan, open_sink
from dstl_dagster.spark.sink.tasks import write_partition
from dstl_dagster.spark.sink.writers import StreamWriter
from dstl_dagster.spark.streaming.micro_batches import POSITION, MicroBatch
from dstl_dagster.storage import open_store
from dstl_dagster.testing.gcs_server import GCSServer
from dstl_dagster.timeline import Timeline

SCHEMA = st.StructType([st.StructField("id", st.LongType()), st.StructField("value", st.LongType())])
STATE = {"operator": "op", "keys": "id"}
OF_STATE = {"keys": "id", "deleted": "id", "max_parallelism": "8", "ttl": "1 d", "case_sensitive": "true"}
OF_FILES = {
    "file_format": "csv",
    "single_file": "true",
    "header_line": "id",
    "compression": "gzip",
    "mode": "append",
    "success": "true",
    "partition_by": "id",
    "maxrecordsperfile": "5",
}


def message_of(outcome: dict[str, Any]) -> TaskMessage:
    return sink_messages.message_of(outcome, JobOptions())


class Stream:
    """One streaming query as Spark drives it. A new instance with the same id is a new driver."""

    def __init__(self, place: Path | str, query_id: str = "query", **options: str) -> None:
        uri = place if isinstance(place, str) else place.as_uri()
        given = {"store": uri, "job": "job", "checkpointLocation": f"/ck/{query_id}", **options}
        self.options = SinkOptions.of({**STATE, **given}, streaming=True)
        self.query_id = query_id
        self.coordinator = CheckpointCoordinator("job", open_store(uri))

    def plan(self) -> SinkPlan:
        """The plan from the planner process, as the tasks unpickle it."""
        writer: StreamWriter = pickle.loads(pickle.dumps(StreamWriter(self.options, SCHEMA)))
        assert writer._plan is not None
        return writer._plan

    def write(self, plan: SinkPlan | None, batch_id: int, partitions: int = 2) -> list[TaskMessage]:
        """The tasks of a micro-batch; keys 0 to 9, each with the batch id as value."""
        batch = MicroBatch(self.query_id, batch_id)
        return [
            message_of(write_partition(plan, batch, each, rows(range(each, 10, partitions), batch_id)))
            for each in range(partitions)
        ]

    def commit(self, messages: list[Any], batch_id: int) -> int | None:
        return sink_commit.commit_sink(self.options, SCHEMA, messages, batch_id)

    def abort(self, messages: list[Any]) -> None:
        sink_commit.abort_sink(self.options, messages)

    def run(self, batch_id: int) -> int | None:
        """A whole micro-batch."""
        return self.commit(self.write(self.plan(), batch_id), batch_id)

    def state(self) -> dict[int, int]:
        done = self.coordinator.latest()
        assert done is not None
        found = KeyedState.of(self.coordinator.store, done.manifest, "op")
        assert found is not None
        return {row["id"]: row["value"] for table in found.tables() for row in table.to_pylist()}

    def kinds(self) -> list[str]:
        return [record.kind for record in self.coordinator.timeline.records()]


def rows(ids: range, value: int) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array(list(ids)), pa.array([value] * len(ids))], ["id", "value"])


def test_each_batch_is_one_checkpoint(tmp_path: Path) -> None:
    """Micro-batches in order; the positions hold the last one."""
    stream = Stream(tmp_path, userMetadata="ticket 7")
    assert [stream.run(batch_id) for batch_id in range(3)] == [1, 2, 3]
    assert stream.state() == dict.fromkeys(range(10), 2)
    done = stream.coordinator.get(3)
    assert done.positions == {POSITION: {"query_id": "query", "batch_id": 2}}
    assert done.idempotency_key == "spark-query:query:2"
    assert done.manifest.user_metadata == "ticket 7"


def test_a_commit_that_runs_again_applies_once(tmp_path: Path) -> None:
    """A crash after the checkpoint: the repeated tasks and commit read their input, and write nothing."""
    stream = Stream(tmp_path)
    stream.run(0)
    plan = stream.plan()
    batch = MicroBatch("query", 0)
    source = rows(range(10), 99)
    message = message_of(write_partition(plan, batch, 0, source))
    assert next(source, None) is None, "a plan before the sink must be run to its end"
    assert stream.commit([message], 0) is None
    assert stream.kinds() == ["opened", "completed", "committed"]
    assert stream.state() == dict.fromkeys(range(10), 0)
    assert stream.run(1) == 2


@pytest.mark.parametrize("step", ["record_report", "confirm", "compose_commit"])
@pytest.mark.parametrize("before", [True, False])
def test_a_crash_inside_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, before: bool
) -> None:
    """Killed before or after each step: the same batch again, by a new driver, ends in one checkpoint."""
    stream = Stream(tmp_path)
    stream.run(0)
    messages = stream.write(stream.plan(), 1)
    real = getattr(CheckpointCoordinator, step)

    def crash(self: CheckpointCoordinator, *args: Any, **kwargs: Any) -> Any:
        if not before:
            real(self, *args, **kwargs)
        raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointCoordinator, step, crash)
        with pytest.raises(SystemExit):
            stream.commit(messages, 1)
    again = Stream(tmp_path)
    again.run(1)
    assert again.coordinator.latest() is not None
    assert [done.checkpoint_id for done in again.coordinator.list()][-1] == 2
    assert again.state() == dict.fromkeys(range(10), 1)
    assert again.coordinator.get(2).committed
    assert again.run(2) == 3


def test_abort_after_a_commit_that_raised_asks_the_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint landed and its answer was lost: abort leaves it, and the batch is not applied again."""
    stream = Stream(tmp_path)
    messages = stream.write(stream.plan(), 0)
    real = CheckpointCoordinator.confirm

    def lost(self: CheckpointCoordinator, *args: Any, **kwargs: Any) -> Any:
        real(self, *args, **kwargs)
        raise UnavailableError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointCoordinator, "confirm", lost)
        with pytest.raises(UnavailableError):
            stream.commit(messages, 0)
    stream.abort(messages)
    assert stream.kinds() == ["opened", "completed"]
    assert stream.run(0) is None
    assert stream.state() == dict.fromkeys(range(10), 0)


def test_abort_before_the_checkpoint_ends_the_attempt(tmp_path: Path) -> None:
    """With the message of one of two tasks; nothing of the batch can be published afterwards."""
    stream = Stream(tmp_path)
    messages = stream.write(stream.plan(), 0)
    stream.abort([None, messages[1]])
    assert stream.kinds() == ["opened", "aborted"]
    with pytest.raises(FencedError, match="aborted"):
        stream.commit(messages, 0)
    assert stream.run(0) == 1


def test_an_attempt_that_no_task_tells_of_is_ended_by_the_next_try(tmp_path: Path) -> None:
    """Every task failed: abort does not know the attempt, and the same query's next try fences it."""
    stream = Stream(tmp_path)
    stream.write(stream.plan(), 0)
    stream.abort([None, None])
    assert Stream(tmp_path).run(0) == 1
    assert stream.kinds() == ["opened", "fenced", "opened", "completed", "committed"]


def test_a_straggler_whose_twin_also_finishes_changes_nothing(tmp_path: Path) -> None:
    """Both tries of a task do all their work; only the winner's message counts, in either order."""
    stream = Stream(tmp_path)
    plan = stream.plan()
    winners = stream.write(plan, 0)
    stream.write(plan, 0)
    assert stream.commit(winners, 0) == 1
    stream.write(plan, 0)  # and one that ends after the commit
    assert stream.state() == dict.fromkeys(range(10), 0)
    assert stream.coordinator.get(1).manifest.operators["op"].report.upserts == 10
    assert stream.run(1) == 2


def test_a_zombie_driver_cannot_commit(tmp_path: Path) -> None:
    """Two drivers of one query: the one that planned last wins; the other's commit is fenced."""
    zombie, alive = Stream(tmp_path), Stream(tmp_path)
    late = zombie.write(zombie.plan(), 0)
    assert alive.run(0) == 1
    with pytest.raises(FencedError):
        zombie.commit(late, 0)
    assert alive.state() == dict.fromkeys(range(10), 0)


def test_another_query_is_refused_unless_adopted(tmp_path: Path) -> None:
    """A lost checkpoint folder would apply the input again: that needs `adopt_after`, which counts once."""
    Stream(tmp_path).run(0)
    other = Stream(tmp_path, "other")
    messages = other.write(other.plan(), 0)
    with pytest.raises(ConflictError, match=r'adopt_after="query:0"') as refused:
        other.commit(messages, 0)
    assert refused.value.kind == "other_query"
    other.abort(messages)
    wrong = Stream(tmp_path, "other", adopt_after="query:1")
    with pytest.raises(ConflictError):
        wrong.run(0)
    adopted = Stream(tmp_path, "other", adopt_after="query:0")
    assert adopted.run(0) == 2
    assert adopted.run(1) == 3
    with pytest.raises(ConflictError) as refused:
        Stream(tmp_path, adopt_after="query:0", take_over="true").run(1)
    assert refused.value.kind == "other_query"


def test_a_gap_after_a_restore_is_refused(tmp_path: Path) -> None:
    """The job was restored, the query was not: its next batch would leave a gap in the state."""
    stream = Stream(tmp_path)
    for batch_id in range(3):
        stream.run(batch_id)
    stream.coordinator.restore(1)
    with pytest.raises(ConflictError, match="expects batch 1") as refused:
        stream.run(3)
    assert refused.value.kind == "other_query"
    assert Stream(tmp_path, adopt_after="query:0").run(3) == 4


def test_a_batch_before_the_last_is_refused(tmp_path: Path) -> None:
    """Spark repeats the last one alone: of an older checkpoint folder, a batch has other rows than it had."""
    stream = Stream(tmp_path)
    for batch_id in (0, 1, 2, 2):
        stream.run(batch_id)
    messages = stream.write(stream.plan(), 1)
    with pytest.raises(ConflictError, match="the job expects batch 3: its checkpointLocation is") as refused:
        stream.commit(messages, 1)
    assert refused.value.kind == "other_query"
    stream.coordinator.restore(1)
    assert stream.run(1) == 4


def test_a_query_that_began_elsewhere_is_refused(tmp_path: Path) -> None:
    """A job without any micro-batch expects batch 0."""
    with pytest.raises(ConflictError, match='adopt_after="nothing"'):
        Stream(tmp_path).run(7)
    assert Stream(tmp_path, adopt_after="nothing").run(7) == 1


def test_a_large_outcome_becomes_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's driver gets its name; the commit reads it, and clean-up finds it by the attempt."""
    monkeypatch.setattr(sink_messages, "LARGEST_MESSAGE_BYTES", 100)
    stream = Stream(tmp_path, clean_up_every="0")
    messages = stream.write(stream.plan(), 0)
    assert all(message.text is None for message in messages)
    assert stream.commit(messages, 0) == 1
    assert stream.state() == dict.fromkeys(range(10), 0)
    store = stream.coordinator.store
    held = {message.object_name for message in messages}
    assert held <= {stat.name for stat in store.list("dstl/job/")}
    stream.coordinator.clean_up()
    assert not held & {stat.name for stat in store.list("dstl/job/")}
    assert stream.state() == dict.fromkeys(range(10), 0)


def test_rescaling_between_restarts_keeps_every_row(tmp_path: Path) -> None:
    """Two tasks, then seven, then one, in whatever key groups their rows are."""
    for batch_id, partitions in enumerate((2, 7, 1)):
        stream = Stream(tmp_path)
        stream.commit(stream.write(stream.plan(), batch_id, partitions), batch_id)
        assert stream.state() == dict.fromkeys(range(10), batch_id)


def test_a_key_in_two_tasks_is_refused(tmp_path: Path) -> None:
    """Neither task can know; the commit does, and an empty task beside them does not matter."""
    stream = Stream(tmp_path)
    plan, batch = stream.plan(), MicroBatch("query", 0)
    messages = [
        message_of(write_partition(plan, batch, 0, rows(range(5), 0))),
        message_of(write_partition(plan, batch, 1, iter([]))),
        message_of(write_partition(plan, batch, 2, rows(range(4, 9), 0))),
    ]
    with pytest.raises(InvalidInputError, match=r"key \(id=4\) occurs 2 times in one checkpoint") as refused:
        stream.commit(messages, 0)
    assert refused.value.kind == "duplicate_key"


def test_files_of_a_stream_carry_the_batch(tmp_path: Path) -> None:
    """Each micro-batch has its own file, in partition order; a repeated one writes no second file."""
    text = st.StructType([st.StructField("value", st.StringType())])
    given = {"store": tmp_path.as_uri(), "job": "job", "path": "out/{query}-{batch}.txt"}
    options = SinkOptions.of({**given, "file_format": "text", "header_line": "lines"}, streaming=True)
    for batch_id in (0, 1, 1):
        plan, batch = open_sink(options, text), MicroBatch("q", batch_id)
        messages = [
            message_of(
                write_partition(
                    plan, batch, each, iter([pa.record_batch([pa.array([f"{batch_id}.{each}"])], ["value"])])
                )
            )
            for each in (0, 1)
        ]
        sink_commit.commit_sink(options, text, [messages[1], messages[0]], batch_id)
    found = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert found == {f"q-{n:010d}.txt": f"lines\n{n}.0\n{n}.1\n" for n in (0, 1)}


@pytest.mark.parametrize("tasks", [1, 40, pytest.param(10_000, marks=pytest.mark.soak)])
def test_any_number_of_tasks_make_one_file(tmp_path: Path, tasks: int) -> None:
    """In the order of the partitions, whatever order the messages come in; every third one is empty."""
    text = st.StructType([st.StructField("value", st.StringType())])
    given = {"store": tmp_path.as_uri(), "job": "job", "path": "all.txt", "file_format": "text"}
    options = SinkOptions.of({**given, "idempotency_key": "x"}, streaming=False)
    plan = open_sink(options, text)
    messages = [
        message_of(
            write_partition(
                plan,
                None,
                each,
                iter(
                    [pa.record_batch([pa.array([str(each)] if each % 3 < 2 else [], pa.string())], ["value"])]
                ),
            )
        )
        for each in range(tasks)
    ]
    sink_commit.commit_sink(options, text, messages[::-1], None)
    expected = [str(each) for each in range(tasks) if each % 3 < 2]
    assert (tmp_path / "all.txt").read_text().splitlines() == expected


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({**STATE, "ky": "x"}, "does not know option 'ky'"),
        ({**STATE, "idempotency_key": ""}, "needs option idempotency_key"),
        ({**STATE, "store": ""}, "needs option store"),
        ({"operator": "op"}, "state needs option keys"),
        ({}, "give option operator"),
        ({**STATE, "path": "x"}, "give option operator"),
        ({**STATE, "deleted": "id"}, "not a boolean column"),
        ({**STATE, "deleted": "no"}, "not a boolean column"),
        ({"operator": "op", "keys": "other"}, "key column 'other' is not among"),
        ({"operator": "op", "keys": '["id"'}, "not a JSON list"),
        ({"path": "x.jsonl", "file_format": "jsonl"}, "takes one text column"),
        ({"path": "x", "single_file": "true"}, "cannot be joined"),
        ({"path": "x", "file_format": "orc"}, "is not one of jsonl"),
        ({**STATE, "store": "memory://x"}, "cannot see memory://x"),
        ({**STATE, "dstl.checkpoint.reader-grade": "1 h"}, "did you mean"),
        ({**STATE, "max_parallelism": "many"}, "max_parallelism"),
        ({**STATE, "adopt_after": "nothing"}, "adopt_after is of a stream"),
        *[
            ({**STATE, name: value}, f"option {name} goes with path, and this write has operator")
            for name, value in OF_FILES.items()
        ],
        *[
            ({"path": "x", name: value}, f"option {name} goes with operator, and this write has path")
            for name, value in OF_STATE.items()
        ],
        *[
            (
                {"path": "x", "file_format": each, "header_line": "a,b"},
                "header_line goes with file_format csv",
            )
            for each in ("parquet", "arrow", "jsonl")
        ],
        ({"path": "x/{batch}.csv", "file_format": "csv"}, r"\{batch\} in path is of a stream"),
        ({"path": "x/{query}", "file_format": "csv"}, r"\{query\} in path is of a stream"),
        ({"path": "x", "mode": "overwrite"}, "mode is error or append"),
        ({"path": "x.csv", "file_format": "csv", "maxRecordsPerFile": "5"}, "set single_file to false"),
        ({**STATE, "userMetadata": "x" * 4097}, "userMetadata.* at most 4096 bytes"),
        ({"path": "x", "maxRecordsPerFile": "0"}, "max_records_per_file is .* not 0"),
        ({"path": "x", "partition_by": "when"}, "partition_by names column 'when', which is not one of id"),
        ({"path": "x.txt", "file_format": "text", "success": "true"}, "success=True is of a folder"),
        ({"path": "x.txt", "file_format": "text", "compression": "snappy"}, "use none, gzip, zstd"),
    ],
)
def test_a_wrong_call_opens_nothing(tmp_path: Path, options: dict[str, str], reason: str) -> None:
    """The error names the option, and nothing is on the job's timeline."""
    given = {"store": tmp_path.as_uri(), "job": "job", "idempotency_key": "monday", **options}
    with pytest.raises(InvalidInputError, match=reason):
        open_sink(SinkOptions.of(given, streaming=False), SCHEMA)
    assert list(CheckpointCoordinator("job", open_store(tmp_path.as_uri())).timeline.records()) == []


def test_a_key_belongs_to_what_is_written(tmp_path: Path) -> None:
    """Files of two paths and state may have one; each of them is known again, also after other batches."""
    coordinator = CheckpointCoordinator("job", open_store(tmp_path.as_uri()))
    given = {"store": tmp_path.as_uri(), "job": "job", "idempotency_key": "monday"}
    given["execution.state-recovery.ignore-unclaimed-state"] = "true"
    writes = [
        SinkOptions.of({**given, **options}, streaming=False)
        for options in ({"path": "a"}, {"path": "b"}, STATE, {**STATE, "operator": "other"})
    ]
    for each in writes:
        plan = open_sink(each, SCHEMA)
        assert plan is not None
        Batch.resume(coordinator, plan.attempt, claim=each.claim()).complete()
    assert [open_sink(each, SCHEMA) for each in writes] == [None] * 4


def test_a_wrong_stream_is_refused(tmp_path: Path) -> None:
    """What a stream must not set, or must."""
    given = {"store": tmp_path.as_uri(), "job": "job"}
    with pytest.raises(InvalidInputError, match="idempotency_key is of a batch"):
        SinkOptions.of({**given, **STATE, "idempotency_key": "x"}, streaming=True)
    with pytest.raises(InvalidInputError, match=r"put \{batch\} into path"):
        SinkOptions.of({**given, "path": "x"}, streaming=True)


def test_another_owner_is_not_fenced_unasked(tmp_path: Path) -> None:
    """A second query on the job, started beside the first one: it is refused; the first goes on."""
    first, second = Stream(tmp_path), Stream(tmp_path, "second")
    messages = first.write(first.plan(), 0)
    with pytest.raises(ConflictError) as refused:
        second.run(0)
    assert refused.value.kind == "attempt_open"
    assert first.commit(messages, 0) == 1


@pytest.mark.parametrize("moment", ["planned", "written", "aborted"])
@pytest.mark.parametrize("take_over", ["false", "true"])
def test_a_wrong_query_does_not_disturb_the_right_one(tmp_path: Path, moment: str, take_over: str) -> None:
    """The right one plans, writes and commits while the wrong one is anywhere between plan and abort. Both
    have one name and no `checkpointLocation`, as where the session says where checkpoints lie.
    """
    same = {"checkpointLocation": "", "queryName": "daily"}
    right = Stream(tmp_path, **same)
    right.run(0)
    wrong = Stream(tmp_path, "wrong", take_over=take_over, **same)
    under_way = right.write(right.plan(), 1)
    plan = wrong.plan()
    assert right.commit(under_way, 1) == 2
    messages: list[TaskMessage] = []
    if moment != "planned":
        messages = wrong.write(plan, 0)
    if moment == "aborted":
        with pytest.raises(ConflictError) as refused:
            wrong.commit(messages, 0)
        assert refused.value.kind == "other_query"
        wrong.abort(messages)
    assert right.run(2) == 3
    assert right.kinds() == ["opened", "completed", "committed"] * 3
    assert right.state() == dict.fromkeys(range(10), 2)


def test_a_query_without_a_name_ends_its_own_attempt(tmp_path: Path) -> None:
    """The session names the checkpoint folder, and the query has no name: its id is its owner."""
    nameless = {"checkpointLocation": ""}
    stream = Stream(tmp_path, **nameless)
    stream.write(stream.plan(), 0)
    assert Stream(tmp_path, **nameless).run(0) == 1
    assert stream.kinds() == ["opened", "fenced", "opened", "completed", "committed"]


def test_a_task_that_outlived_its_driver_fences_nobody(tmp_path: Path) -> None:
    """It starts when the next driver of its query is at work: it is refused, and that driver goes on."""
    dead, alive = Stream(tmp_path), Stream(tmp_path)
    plan = dead.plan()
    messages = alive.write(alive.plan(), 0)
    late = dead.write(plan, 0)
    with pytest.raises(ConflictError, match="opened meanwhile"):
        dead.commit(late, 0)
    assert alive.commit(messages, 0) == 1
    with pytest.raises(ConflictError) as refused:
        dead.commit(dead.write(plan, 0), 0)
    assert refused.value.kind == "moved"


def test_a_micro_batch_without_rows_moves_the_position(tmp_path: Path) -> None:
    """Only its first task opens the attempt."""
    stream = Stream(tmp_path)
    plan, batch = stream.plan(), MicroBatch("query", 0)
    messages = [message_of(write_partition(plan, batch, each, iter([]))) for each in range(3)]
    assert stream.commit(messages, 0) == 1
    assert stream.coordinator.get(1).positions == {POSITION: batch.position}


def test_only_the_writer_that_is_pickled_makes_a_plan(tmp_path: Path) -> None:
    """Spark creates another writer for each commit, and pickles the first one twice: all tasks have one plan,
    which opens nothing.
    """
    stream = Stream(tmp_path)
    writer = StreamWriter(stream.options, SCHEMA)
    assert writer._plan is None
    plans = [pickle.loads(pickle.dumps(writer))._plan for _ in range(2)]
    assert stream.kinds() == []
    assert plans[0].attempt == plans[1].attempt


def test_names_with_commas(tmp_path: Path) -> None:
    """A JSON list of keys."""
    options = SinkOptions.of(
        {"store": tmp_path.as_uri(), "job": "job", "operator": "op", "keys": '["a,b", "c"]'}, streaming=True
    )
    assert replace(options, keys=("a,b", "c")) == options


@pytest.mark.parametrize("large", [False, True])
def test_the_manifest_counts_what_planner_tasks_and_commit_requested(
    monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """By the server's own count, up to the manifest itself: also where an outcome becomes an object."""
    if large:
        monkeypatch.setattr(sink_messages, "LARGEST_MESSAGE_BYTES", 10)
    with GCSServer() as server:
        server.create_bucket("bucket")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        stream = Stream("gs://bucket/below")
        while_it_is_there = Timeline.while_it_is_there
        for batch_id in range(2):
            seen: list[int] = []

            def request_and_look(
                timeline: Timeline, request: Any, written: str = "", seen: list[int] = seen
            ) -> Any:
                answer = while_it_is_there(timeline, request, written)
                if "/manifests/" in written:
                    seen.append(sum(each for name, each in server.counts.items() if name != "buckets.get"))
                return answer

            monkeypatch.setattr(Timeline, "while_it_is_there", request_and_look)
            server.reset_counts()
            done = stream.run(batch_id)
            assert done is not None
            cost = stream.coordinator.get(done).manifest.cost
            assert cost is not None
            assert [cost.total.requests] == seen
            assert [*cost.steps] == ["trigger", "persist", "record"]
