"""The writers that Spark pickles, and calls in tasks and to commit: of one `save()`, and of one micro-batch.

Owns which process calls what of the sink. Does not own the plan (`plan`), the work of a task (`tasks`) or of
the commit (`commit`), nor when Spark asks for a writer (`data_source`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from dstl_dagster.errors import InternalError, InvalidInputError
from dstl_dagster.spark.sink.commit import abort_sink, commit_sink
from dstl_dagster.spark.sink.messages import message_of
from dstl_dagster.spark.sink.options import SinkOptions
from dstl_dagster.spark.sink.plan import SinkPlan, open_sink
from dstl_dagster.spark.sink.tasks import write_partition
from dstl_dagster.spark.streaming.micro_batches import MicroBatch
from dstl_dagster.spark.writer_calls import REFUSAL


class SaveWriter(DataSourceArrowWriter):
    """The writer of one `save()`. Spark commits and aborts with a copy of the writer that its tasks had."""

    def __init__(self, options: SinkOptions, schema: StructType, plan: SinkPlan | None) -> None:
        self._options = options
        self._schema = schema
        self._plan = plan

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SaveWriter:
        """Opens the sink. Raises: InvalidInputError."""
        options = SinkOptions.of(given, streaming=False, overwrite=overwrite)
        return cls(options, schema, open_sink(options, schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return message_of(
            write_partition(self._plan, None, _task().partitionId(), iterator), self._options.job_options
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_sink(self._options, self._schema, messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_sink(self._options, messages, None if self._plan is None else self._plan.attempt)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of one micro-batch.

    Spark does not say whether a writer is for the tasks or for the commit, nor, before `write`, for which
    micro-batch. Only the writer for the tasks is pickled, so pickling makes the plan; the one that commits
    never makes any.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._plan: SinkPlan | None = None

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType) -> StreamWriter:
        """Opens nothing. Raises: InvalidInputError."""
        return cls(SinkOptions.of(given, streaming=True), schema)

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
        if messages and all(message is None for message in messages):
            raise InvalidInputError(REFUSAL)  # an epoch: a task of a micro-batch always has a message
        commit_sink(self._options, self._schema, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - as above
        abort_sink(self._options, messages)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InternalError("write runs only inside a Spark task")
    return context
