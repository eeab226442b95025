"""An error of this package, raised in a Spark task, on the driver: the same class, kind and message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSourceReader, InputPartition

from dstl_dagster import errors
from dstl_dagster.errors import DstlError, ErrorKind, NotFoundError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.spark import merge_state, register
from dstl_dagster.spark.data_source import DstlDataSource
from dstl_dagster.spark.dataframes.merge_tasks import LookUpTask
from dstl_dagster.spark.dataframes.state_tasks import ReadStateTask
from dstl_dagster.spark.sink.plan import FileSink, SinkPlan
from dstl_dagster.spark.sink.writers import SaveWriter, StreamWriter

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

CLASSES = [
    name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, DstlError)
]
# One that is not tried again, and one that is. The long form takes all of them every way.
SHORT = {"ConflictError", "UnavailableError"}
MESSAGE = 'object "a/ä" is not there:\nwrite it again'


def fails(name: str, trace: str, *_: Any) -> Any:
    """Leave a trace of one byte a try, and raise the error of this name."""
    from dstl_dagster import errors

    with Path(trace).open("ab") as file:
        file.write(b"x")
    raise getattr(errors, name)('object "a/ä" is not there:\nwrite it again', "own_kind")


class FailingReader(DataSourceReader):
    def __init__(self, name: str, trace: str) -> None:
        self.what = name, trace

    def read(self, partition: InputPartition) -> Iterator[Any]:
        fails(*self.what)
        yield ()


def failing_plan(plan: SinkPlan, options: Any) -> SinkPlan:
    """The same with files that cannot be written."""
    assert isinstance(plan.sink, FileSink)
    encoder = partial(fails, options["error_of_a_test"], options["trace_of_a_test"])
    return replace(plan, sink=replace(plan.sink, job=replace(plan.sink.job, encoder=encoder)))


class FailingStreamWriter(StreamWriter):
    what: Any = None

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        assert self._plan is not None
        self._plan = failing_plan(self._plan, self.what)
        return state


class Failing(DstlDataSource):
    """`dstl`, whose tasks fail as two more options say."""

    @classmethod
    def name(cls) -> str:
        return "failing"

    def __init__(self, options: Any) -> None:
        self.what = {key: options[key] for key in ("error_of_a_test", "trace_of_a_test")}
        super().__init__({key: value for key, value in options.items() if key not in self.what})

    def schema(self) -> st.StructType:
        return st.StructType([st.StructField("id", st.LongType())])

    def reader(self, schema: st.StructType) -> DataSourceReader:
        return FailingReader(self.what["error_of_a_test"], self.what["trace_of_a_test"])

    def writer(self, schema: st.StructType, overwrite: bool) -> Any:
        writer = super().writer(schema, overwrite)
        assert isinstance(writer, SaveWriter)
        assert writer._plan is not None
        writer._plan = failing_plan(writer._plan, self.what)
        return writer

    def streamWriter(self, schema: st.StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        made = super().streamWriter(schema, overwrite)
        assert isinstance(made, StreamWriter)
        writer = FailingStreamWriter(made._options, schema)
        writer.what = self.what
        return writer


@dataclass
class Case:
    """A job, and an error that its tasks raise."""

    job: Job
    name: str
    folder: Path

    @property
    def trace(self) -> Path:
        return self.folder / "tries"

    @property
    def operator(self) -> str:
        """A name that says the error to the tasks."""
        return json.dumps([self.name, str(self.trace)])

    @property
    def options(self) -> dict[str, str]:
        return {
            "store": self.job.coordinator.store.uri,
            "job": "job",
            "error_of_a_test": self.name,
            "trace_of_a_test": str(self.trace),
        }

    def raised(self, caught: pytest.ExceptionInfo[DstlError], *, by_spark: bool) -> None:
        """`by_spark`: Spark tries the task three times, also where it cannot succeed."""
        error = caught.value
        assert (type(error).__name__, error.message, error.kind) == (self.name, MESSAGE, "own_kind")
        tries = 3 if by_spark or error.is_transient else 1
        assert len(self.trace.read_bytes()) == tries


@pytest.fixture(
    params=[each if each in SHORT else pytest.param(each, marks=pytest.mark.soak) for each in CLASSES]
)
def case(request: pytest.FixtureRequest, job: Job, tmp_path: Path) -> Case:
    register(job.spark)
    job.spark.dataSource.register(Failing)
    return Case(job, request.param, tmp_path)


def rows(case: Case) -> DataFrame:
    return case.job.spark.range(0, 3, 1, 1)


class FailingRead(ReadStateTask):
    def _read(self, key_groups: KeyGroupRange) -> Iterator[pa.RecordBatch]:
        fails(*json.loads(self.state.operator))
        yield


class FailingLookUp(LookUpTask):
    def _state(self, keys: pa.Table) -> pa.Table:
        return fails(*json.loads(self.state.operator))


def test_through_a_dataframe(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a task of a state that `read_state` returned, by the user's own action."""
    monkeypatch.setattr("dstl_dagster.spark.dataframes.state.ReadStateTask", FailingRead)
    case.job.write_state(rows(case), operator=case.operator, keys=["id"])
    with pytest.raises(DstlError) as caught:
        case.job.read_state(case.operator).count()
    case.raised(caught, by_spark=True)


def test_through_the_reader_of_the_data_source(case: Case) -> None:
    """In a task that reads for `spark.read`."""
    with pytest.raises(DstlError) as caught:
        case.job.spark.read.format("failing").options(**case.options).load().count()
    case.raised(caught, by_spark=True)


def test_through_write_files(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a task of one of the package's own actions: an error that stays is tried once."""
    encoder = partial(fails, case.name, str(case.trace))
    monkeypatch.setattr("dstl_dagster.spark.dataframes.files.encode_lines", encoder)
    with pytest.raises(DstlError) as caught:
        case.job.write_files(rows(case), "x.jsonl")
    case.raised(caught, by_spark=False)


def test_through_the_look_up_of_a_merge(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a task that reads for a write: an error that stays travels beside a row, and is tried once."""
    monkeypatch.setattr("dstl_dagster.spark.dataframes.merge.LookUpTask", FailingLookUp)
    schema, update = "id BIGINT, value INT", {"value": "coalesce(old.value, 0) + 1"}
    attempt = case.job.coordinator.trigger()
    with pytest.raises(DstlError) as caught:
        merge_state(
            rows(case),
            attempt,
            operator=case.operator,
            keys=["id"],
            schema=schema,
            update=update,
            partitions=1,
        )
    case.raised(caught, by_spark=False)


def test_through_the_sink(case: Case) -> None:
    """In a task of `save()`: an error that stays is tried once, and the attempt is aborted."""
    sink = rows(case).write.format("failing").mode("append").options(**case.options, path="x")
    with pytest.raises(DstlError) as caught:
        sink.option("idempotency_key", "monday").save()
    case.raised(caught, by_spark=False)
    assert [record.kind for record in case.job.coordinator.timeline.records()] == ["opened", "aborted"]


def test_through_the_sink_of_a_stream(case: Case) -> None:
    """In a task of a micro-batch: the query ends with the error."""
    stream = case.job.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    sink = stream.selectExpr("value AS id").coalesce(1).writeStream.format("failing").options(**case.options)
    sink = sink.option("path", "x/{batch}").option("checkpointLocation", str(case.folder / "query"))
    with pytest.raises(DstlError) as caught:
        sink.trigger(availableNow=True).start().awaitTermination()
    case.raised(caught, by_spark=False)
    # Of a task that fails Spark has no message, so the attempt waits for the query to come back.
    left = ["opened"] if caught.value.is_transient else ["opened", "aborted"]
    assert [record.kind for record in case.job.coordinator.timeline.records()] == left


def test_through_a_planner(job: Job) -> None:
    """A process that plans a read: what it refuses is raised by `load()`."""
    register(job.spark)
    options = {"store": job.coordinator.store.uri, "job": "job", "operator": "op"}
    with pytest.raises(NotFoundError, match="there is no job 'job'") as caught:
        job.spark.read.format("dstl").options(**options).load()
    assert caught.value.kind == ErrorKind.NO_CHECKPOINT
