"""The Spark data source `dstl`: state and files of a job as `spark.read` and `df.write` know them.

Owns the classes that Spark calls, and in which process each of them is. Does not own the work.

    schema               planner of a read, when the DataFrame is made; the source is pickled after it
    reader               planner of a read, when a query runs
    registered class     by reference in every Python process of the session: the package must be importable
    writer, streamWriter planner of a write, for each batch: made, then pickled for the tasks and, of a
                         batch write, for its commit
    streamWriter again   commit process of a micro-batch: made anew, and never pickled
    write                the tasks
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from dstl_dagster.errors import InternalError, InvalidInputError
from dstl_dagster.keyed import StateAt
from dstl_dagster.spark.sink.commit import abort_sink, commit_sink
from dstl_dagster.spark.sink.messages import message_of
from dstl_dagster.spark.sink.options import SinkOptions
from dstl_dagster.spark.sink.plan import SinkPlan, open_sink
from dstl_dagster.spark.sink.query_batches import QueryBatch
from dstl_dagster.spark.sink.tasks import write_partition
from dstl_dagster.spark.source.options import CHANGES, CHECKPOINTS, SourceOptions
from dstl_dagster.spark.source.source import (
    ChangesReader,
    CheckpointsReader,
    FilteringStateReader,
    StateReader,
    changes_schema,
    checkpoints_schema,
    state_at,
    states_between,
)
from dstl_dagster.spark.types import spark_schema

__all__ = ["DstlDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("dstl")` known to this session. Again, changes nothing."""
    spark.dataSource.register(DstlDataSource)


class DstlDataSource(DataSource):
    """See `docs/spark.md` for the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type] # Spark's own mapping
        self._checkpoint_id: int | None = None
        self._states: list[StateAt] = []

    @classmethod
    def name(cls) -> str:
        return "dstl"

    def schema(self) -> StructType:
        """Called when the DataFrame is made, which is then of the checkpoint that is the latest now."""
        options = SourceOptions.of(self.options)
        if options.table == CHECKPOINTS:
            return checkpoints_schema()
        if options.table == CHANGES:
            self._states = states_between(options)
            return changes_schema(self._states)
        state = state_at(options, options.checkpoint, None)
        self._checkpoint_id = state.checkpoint_id
        columns = spark_schema(state.schema.columns)
        unknown = [name for name in options.columns if name not in columns.names]
        if unknown:
            raise InvalidInputError(
                f"option columns names {unknown[0]!r}, and the state has {', '.join(columns.names)}"
            )
        return StructType([columns[name] for name in options.columns or columns.names])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.of(self.options)
        if options.table == CHECKPOINTS:
            return CheckpointsReader(options)
        if options.table == CHANGES:
            return ChangesReader(options, self._states or states_between(options), schema)
        state = state_at(options, self._checkpoint_id or options.checkpoint, schema)
        made = FilteringStateReader if options.push_filters else StateReader
        return made(options, state, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        _refuse_overwrite(overwrite, 'mode("append")')
        options = SinkOptions.of(self.options, streaming=False)
        return _BatchWriter(options, schema, open_sink(options, schema))

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        _refuse_overwrite(overwrite, 'outputMode("append"), or checkpointed_batches for aggregates')
        return _StreamWriter(SinkOptions.of(self.options, streaming=True), schema)


class _BatchWriter(DataSourceArrowWriter):
    """Of one write. Spark commits and aborts with a copy of the very writer that its tasks had."""

    def __init__(self, options: SinkOptions, schema: StructType, plan: SinkPlan | None) -> None:
        self._options = options
        self._schema = schema
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return message_of(write_partition(self._plan, None, _task().partitionId(), iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_sink(self._options, self._schema, messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_sink(self._options, messages, None if self._plan is None else self._plan.attempt)


class _StreamWriter(DataSourceStreamArrowWriter):
    """Of one micro-batch.

    Spark tells a writer neither what it is made for nor, before `write`, of which batch. But only the writer
    that goes to tasks is pickled, so that is when the attempt opens; the one that commits never opens any.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._plan: SinkPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._plan is None:
            self._plan = open_sink(self._options, self._schema)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        if query_id is None or batch_id is None:
            raise InternalError("Spark did not tell the task of which micro-batch it is")
        batch = QueryBatch(query_id, int(batch_id))
        return message_of(write_partition(self._plan, batch, context.partitionId(), iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        commit_sink(self._options, self._schema, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - as above
        abort_sink(self._options, messages)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InternalError("write runs only inside a Spark task")
    return context


def _refuse_overwrite(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise InvalidInputError(
            f"a checkpoint holds changes on top of the one before, so nothing is overwritten: use {instead}"
        )
