"""The plan of a write through `format("dstl")`, from Spark's planner: the attempt, and what its tasks do.

Owns step 1 of such a write, and the value that its tasks receive. Does not own their work (`tasks`) nor
steps 3 to 7 (`commit`).

The plan is pickled for the tasks, and holds no secret. Each micro-batch has its own plan, so all tries of its
tasks work under one attempt. The planner does not learn which query it plans for, so a micro-batch's
attempt is only planned here: its tasks, which know, open it. A wrong query opens and fences nothing.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql import types as st

from dstl_dagster.checkpoint import (
    Attempt,
    Batch,
    Checkpoint,
    CheckpointCoordinator,
    Opening,
    StateToWrite,
)
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.spark.dataframes.file_formats import LINE_FORMATS, Encoder, encode_lines
from dstl_dagster.spark.dataframes.file_tasks import FileJob, FileNames
from dstl_dagster.spark.dataframes.files import (
    check_free,
    partition_columns,
    table_encoder,
    target_of,
    without,
)
from dstl_dagster.spark.dataframes.state import without_flag
from dstl_dagster.spark.sink.options import BATCH, QUERY, SinkOptions
from dstl_dagster.spark.stores import counted_store, open_shared_store
from dstl_dagster.spark.streaming.micro_batches import MicroBatch
from dstl_dagster.spark.types import arrow_schema
from dstl_dagster.storage import Cost, CostMeter, ObjectStore
from dstl_dagster.timeline import PlannedAttempt

_WITH_ONE_TEXT: Final = (st.StringType, st.IntegralType, st.BooleanType, st.DateType)
"""The types of columns that name folders. The text of others is the session's, which tells a sink nothing."""


@dataclass(frozen=True)
class StateSink:
    """Rows are changes of keyed state.

    Attributes:
        state: as the write leaves it.
        deleted: the boolean column of the rows that delete their key, as the rows spell it.
    """

    state: StateToWrite
    deleted: str | None


@dataclass(frozen=True)
class FileSink:
    """Rows go to files.

    Attributes:
        job: how a task writes its partition; its names have `{batch}` and `{query}` in place of a
            micro-batch's ids.
        order: of the columns of the rows, as the job takes them.
    """

    job: FileJob
    order: tuple[str, ...]

    def job_for(self, micro_batch: MicroBatch | None) -> FileJob:
        """The job with the names of this micro-batch; `None`: of a single write."""
        if micro_batch is None:
            return self.job
        target = self.job.names.target.replace(BATCH, f"{micro_batch.batch_id:010d}")
        names = replace(self.job.names, target=target.replace(QUERY, micro_batch.query_id))
        return replace(self.job, names=names)


@dataclass(frozen=True)
class SinkPlan:
    """The plan of one write, or of one micro-batch.

    Attributes:
        options: of the write.
        attempt: open for a single write. For a micro-batch it is planned, and `begin` opens it.
        slot: the last one of the timeline when a micro-batch was planned.
        last: the last micro-batch that the job's checkpoints hold, for a stream.
        sink: where the rows go.
        trigger: what step 1 has cost until the tasks begin.
    """

    options: SinkOptions
    attempt: Attempt
    slot: int
    last: MicroBatch | None
    sink: StateSink | FileSink
    trigger: Cost = field(default_factory=Cost)

    def begin(self, micro_batch: MicroBatch, meter: CostMeter) -> Attempt:
        """Step 1 in a task: the attempt of this micro-batch, opened by the first task that comes here.

        What it requests counts in `meter`.

        Raises: as `CheckpointCoordinator.begin`.
        """
        attempt = replace(self.attempt, batch=micro_batch.key)
        with counted_store(attempt.store_uri, meter, self.options.job_options.files) as store:
            coordinator = sink_coordinator(self.options, store, owner=micro_batch.owner)
            coordinator.begin(PlannedAttempt(attempt, self.slot), self.options.take_over)
        return attempt


def sink_coordinator(
    options: SinkOptions, store: ObjectStore, *, owner: str | None = None
) -> CheckpointCoordinator:
    """The coordinator of the job in these options. `owner`: of attempts, if the options name none."""
    return CheckpointCoordinator(options.job, store, options.job_options, owner=options.owner or owner)


def open_sink(options: SinkOptions, schema: st.StructType) -> SinkPlan | None:
    """The plan for the tasks, after step 1 of a single write; `None` if a completed checkpoint already holds
    the batch.

    Raises: InvalidInputError for options or columns that do not fit, ConflictError (as `Claim.check`; kind
    `attempt_open`, for a single write).
    """
    with closing(open_shared_store(options.store, options.job_options)) as store:
        coordinator = sink_coordinator(options, store)
        cost = coordinator.running_cost()
        key = options.key
        if coordinator.applied_batch(key, options.claim()) is not None:
            coordinator.compose_commit()
            return None

        def check(parent: Checkpoint | None) -> None:
            # Before the attempt opens, so that a write which is refused leaves no trace.
            not_opened = Attempt(0, uuid.UUID(int=0), None, options.job, store.uri)
            sink = sink_of(options, schema, Batch(coordinator, not_opened, parent))
            if isinstance(sink, FileSink) and key is not None:
                check_free(sink.job.names, store)

        if key is None:
            planned, parent = coordinator.plan(check=check, claim=options.claim())
            batch, slot = Batch(coordinator, planned.attempt, parent), planned.slot
        else:
            batch = Batch.open(coordinator, Opening(key, options.take_over, check, options.claim()))
            parent, slot = batch.parent, 0
        last = None if parent is None else MicroBatch.last_of(parent.positions)
        return SinkPlan(options, batch.attempt, slot, last, sink_of(options, schema, batch), cost.so_far())


def sink_of(options: SinkOptions, schema: st.StructType, batch: Batch) -> StateSink | FileSink:
    """Where the rows of the batch go: the same in every process. Raises: InvalidInputError."""
    if options.operator is not None:
        return _state_sink(options, options.operator, schema, batch)
    return _file_sink(options, schema, batch.attempt)


def _state_sink(options: SinkOptions, operator: str, schema: st.StructType, batch: Batch) -> StateSink:
    columns, deleted, case_sensitive = schema, options.deleted, options.case_sensitive
    if deleted is not None:
        columns, deleted = without_flag(schema, deleted, case_sensitive=case_sensitive)
    state = StateToWrite.of(
        batch,
        operator,
        arrow_schema(columns, f"state of operator {operator!r}", case_sensitive=case_sensitive),
        options.keys,
        options.max_parallelism,
        options.ttl,
        replace=options.replace,
        deleted=deleted,
        case_sensitive=case_sensitive,
    )
    if state.filled is not None:
        raise InvalidInputError(
            f"the TTL of operator {operator!r} fills column {state.filled!r}, which "
            'format("dstl") does not: write it in foreachBatch(checkpointed_batches(...)), or set options '
            "ttl and ttl_column to a column of the rows, such as one of current_timestamp()"
        )
    return StateSink(state, deleted)


def _file_sink(options: SinkOptions, schema: st.StructType, attempt: Attempt) -> FileSink:
    """How the files of these options are written. Raises: InvalidInputError."""
    assert options.path is not None
    assert options.layout is not None
    within = partition_columns(schema, options.layout.partition_by)
    layout = replace(options.layout, partition_by=within)
    for name in within:
        if not isinstance(schema[name].dataType, _WITH_ONE_TEXT):
            raise InvalidInputError(
                f"partition_by names column {name!r}, whose text depends on the session: write it as Spark "
                f'does, by df.withColumn({name!r}, df[{name!r}].cast("string"))'
            )
    columns = without(schema, within)
    if layout.file_format in LINE_FORMATS:
        if len(columns) != 1 or type(columns[0].dataType) is not st.StringType:
            also = f", partition_by={list(within)}" if within else ""
            raise InvalidInputError(
                f"a {layout.file_format} sink takes one text column with the lines: "
                f'write lines(df, "{layout.file_format}"{also}) of dstl_dagster.spark'
            )
        encoder: Encoder = encode_lines
    else:
        encoder = table_encoder(columns, layout)
    with closing(open_shared_store(options.store, options.job_options)) as store:
        target = target_of(options.path, store)
    names = FileNames.at(target, layout, attempt)
    header = f"{options.header_line}\n".encode() if options.header_line else b""
    return FileSink(FileJob(attempt, names, encoder, header, options.job_options), (*columns.names, *within))
