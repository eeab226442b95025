"""The Spark data source `dstl`: a job's state and files behind `spark.read` and `df.write`.

Owns the classes that Spark calls, and which process calls what. Does not own the work.

    schema               planner of a read, when the DataFrame is created; the source is pickled afterwards
    reader               planner of a read, when a query runs
    registered class     pickled by reference: every Python process of the session must import the package
    writer, streamWriter planner of a write, once per write or micro-batch: created, then pickled for the
                         tasks and, by `writer`, for the commit
    streamWriter again   commit process of a micro-batch: created anew, and never pickled
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
from dstl_dagster.spark.sink.micro_batches import MicroBatch
from dstl_dagster.spark.sink.options import SinkOptions
from dstl_dagster.spark.sink.plan import SinkPlan, open_sink
from dstl_dagster.spark.sink.tasks import write_partition
from dstl_dagster.spark.source.options import CHANGES, CHECKPOINTS, SourceOptions
from dstl_dagster.spark.source.source import (
    ChangesReader,
    CheckpointsReader,
    StateReader,
    changes_schema,
    checkpoints_schema,
    state_at,
    states_between,
)
from dstl_dagster.spark.types import spark_schema
from dstl_dagster.timeline import AsOf

__all__ = ["DstlDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Register `format("dstl")` with this session. Idempotent."""
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
        """Called when the DataFrame is created: it stays on the checkpoint that is the latest now."""
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
                f"option columns names {unknown[0]!r}, but the state has {', '.join(columns.names)}"
            )
        return StructType([columns[name] for name in options.columns or columns.names])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.of(self.options)
        if options.table == CHECKPOINTS:
            return CheckpointsReader(options)
        if options.table == CHANGES:
            return ChangesReader(options, self._states or states_between(options), schema)
        stays = options.checkpoint if self._checkpoint_id is None else AsOf.of(self._checkpoint_id)
        state = state_at(options, stays, schema)
        return StateReader(options, state, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        _refuse_overwrite(overwrite, 'mode("append")')
        options = SinkOptions.of(self.options, streaming=False)
        return _SaveWriter(options, schema, open_sink(options, schema))

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        _refuse_overwrite(overwrite, 'outputMode("append"), or checkpointed_batches for aggregates')
        return _StreamWriter(SinkOptions.of(self.options, streaming=True), schema)


class _SaveWriter(DataSourceArrowWriter):
    """The writer of one `save()`. Spark commits and aborts with a copy of the writer that its tasks had."""

    def __init__(self, options: SinkOptions, schema: StructType, plan: SinkPlan | None) -> None:
        self._options = options
        self._schema = schema
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return message_of(
            write_partition(self._plan, None, _task().partitionId(), iterator), self._options.job_options
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_sink(self._options, self._schema, messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_sink(self._options, messages, None if self._plan is None else self._plan.attempt)


class _StreamWriter(DataSourceStreamArrowWriter):
    """The writer of one micro-batch.

    Spark does not say whether a writer is for the tasks or for the commit, nor, before `write`, for which
    micro-batch. Only the writer for the tasks is pickled, so pickling makes the plan; the one that commits
    never makes any.
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
            raise InternalError("the Spark task has no query id or batch id: it is not of a micro-batch")
        micro_batch = MicroBatch(query_id, int(batch_id))
        outcome = write_partition(self._plan, micro_batch, context.partitionId(), iterator)
        return message_of(outcome, self._options.job_options)

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
            f"a checkpoint adds changes to the one before it and overwrites nothing: use {instead}"
        )
