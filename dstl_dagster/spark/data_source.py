"""The Spark data source `dstl`: a job's state and files behind `spark.read` and `df.write`.

Owns the classes that Spark calls, and which process calls what. Does not own the work.

    schema               planner of a read, when the DataFrame is created; the source is pickled afterwards.
                         Not with `.schema(...)`: then the source itself is created by the first action
    reader               planner of a read, when a query runs
    registered class     pickled by reference: every Python process of the session must import the package
    streamReader         process that plans a query's micro-batches; another one is pickled for the tasks
    writer, streamWriter planner of a write, once per write or micro-batch: created, then pickled for the
                         tasks and, by `writer`, for the commit
    streamWriter again   commit process of a micro-batch: created anew, and never pickled
    write                the tasks

Each of these processes imports this module anew, so it imports little.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.keyed import Condition, StateAt
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


def register(spark: SparkSession) -> None:
    """Register `format("dstl")` with this session. Idempotent.

    Raises: InvalidInputError if executors cannot run its tasks.
    """
    from dstl_dagster.spark.errors import raise_as_raised
    from dstl_dagster.spark.executors import require_package
    from dstl_dagster.spark.writer_calls import watch_writers  # on the driver alone

    require_package(spark)
    raise_as_raised()
    spark.dataSource.register(DstlDataSource)
    watch_writers(spark)


class DstlDataSource(DataSource):
    """See `docs/spark/data-source.md` for the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type] # Spark's own mapping
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
        state = state_at(options, options.checkpoint)
        self._states = [state]
        if options.where:
            Condition.of(options.where, state.schema)  # refuses what cannot be read
        columns = spark_schema(state.schema.columns)
        unknown = [name for name in options.columns if name not in columns.names]
        if unknown:
            raise InvalidInputError(
                f"option columns names {unknown[0]!r}, but the state has {', '.join(columns.names)}"
            )
        return StructType([columns[name] for name in options.columns or columns.names])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.of(self.options, streaming=False)
        if options.table == CHECKPOINTS:
            return CheckpointsReader(options)
        if options.table == CHANGES:
            return ChangesReader(options, self._states or states_between(options), schema)
        state = self._states[0] if self._states else state_at(options, options.checkpoint)
        return StateReader(options, state, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = SourceOptions.of(self.options, streaming=True)
        from dstl_dagster.spark.streaming.following import stream_reader

        return stream_reader(options, schema, self._states)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from dstl_dagster.spark.sink.writers import SaveWriter  # a read needs none of it

        return SaveWriter.of(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        if overwrite:
            raise InvalidInputError(
                "a micro-batch adds changes to those before it and overwrites nothing: use "
                'outputMode("append"), or checkpointed_batches for aggregates'
            )
        from dstl_dagster.spark.sink.writers import StreamWriter  # as above

        return StreamWriter.of(self.options, schema)
