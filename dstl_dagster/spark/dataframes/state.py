"""Keyed state as DataFrames: append the rows that changed, read the rows of a checkpoint.

Owns the plan on the driver: which key group a key has, which task has which key groups, and that there is
exactly one action. Does not own the work inside a task (`state_tasks`), the meaning of changes
(`dstl_dagster.state`), nor the checkpoint they become part of (`checkpoint`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as st

from dstl_dagster.checkpoint import (
    Attempt,
    Batch,
    Checkpoint,
    CheckpointCoordinator,
    OperatorReport,
    StateToWrite,
)
from dstl_dagster.concurrency import Progress
from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.format import (
    ChangelogStateHandle,
    KeyGroupRange,
    common_ranges,
    ranges_around,
    ranges_of_tasks,
)
from dstl_dagster.keyed import Replaced, Scope, StateAt, small_from_outcome
from dstl_dagster.settings import JobOptions, Options, StateTtlConfig, parse_names
from dstl_dagster.spark.dataframes.outcomes import run_tasks
from dstl_dagster.spark.dataframes.partitioning import (
    key_group_of_columns,
    task_count,
    task_of_key_group,
    task_of_range,
)
from dstl_dagster.spark.dataframes.run_merges import merges_in_tasks
from dstl_dagster.spark.dataframes.state_tasks import ReadStateTask, ReplaceStateTask, WriteStateTask
from dstl_dagster.spark.errors import raise_as_raised, said_by_spark
from dstl_dagster.spark.stores import cost_of, open_shared_store, read_cost_of, require_shared
from dstl_dagster.spark.types import (
    arrow_schema,
    is_case_sensitive,
    quoted,
    selected,
    spark_schema,
    sql_type,
)
from dstl_dagster.state import ColumnChanges, as_spelled, require_spark_schema, spelled
from dstl_dagster.storage import ObjectStore


def write_state(
    df: DataFrame,
    attempt: Attempt | Batch,
    *,
    operator: str,
    keys: Sequence[str],
    max_parallelism: int | None = None,
    partitions: int | None = None,
    deleted: str | Column | None = None,
    replace: Replaced = False,
    drop_columns: Collection[str] = (),
    rename_columns: Mapping[str, str] | None = None,
    ttl: StateTtlConfig | None = None,
    job_options: Options | None = None,
    progress: Progress | None = None,
) -> OperatorReport:
    """Append changed rows of `operator` to the changelog, durably: steps 2 and 3 for its state.

    Runs one action on `df`. Each row replaces the row of its key; a column that is left out becomes null.
    A key may occur once per checkpoint. Null in a key column is a value like any other, equal to itself
    (as in GROUP BY; not as in a join on `=`). Key columns, their order and types, and `max_parallelism`
    are frozen by the first checkpoint that has the operator; narrower key types are cast to them. Column
    names are compared as in the session (`spark.sql.caseSensitive`), and the state's spelling stays.

    Args:
        df: the changed rows only.
        attempt: from step 1; or the batch that holds it, which knows the parent without a look-up. Ranges of
            key groups with few changes (64 KiB) share files: of a bare attempt those of this call; of a batch
            all of them, at the end of its step 3, and until then they wait in the driver's memory (16 MiB).
        operator: names this state within the job.
        keys: the key columns.
        max_parallelism: number of key groups, 1 to 32,768; `None`: the state's own, 128 for a new one.
        partitions: tasks that write, at most `max_parallelism`; `None`: as many as Spark's shuffles have.
        deleted: the rows that delete their key: a boolean column by name (which is then not part of the
            state), or an expression. Null means no.
        replace: True: the rows take the place of the whole state; or a condition in SQL on key columns, such
            as `airport = 'JFK' AND day >= '2026-11-01'`: of the rows that pass it, and each row of `df` does.
            Keys that get no row are deleted, and only rows that differ are written. The tasks read the
            state; one sorts its rows (Spark spills them), and holds a part of the state at a time.
        drop_columns, rename_columns: of the state, by their exact names (new by old); the batch has the new
            columns. No row is rewritten. Asking again changes nothing, so they may stay for later batches.
        ttl: how long rows live, from this batch on; `None`: as before.
        job_options: on top of the batch's, or all there are for a bare attempt (`dstl.dfs.*`, `gs.*`).
        progress: called with (finished tasks, known tasks) while they run.

    Raises: InvalidInputError (kind `duplicate_key`, `schema_change`, `unsupported_type`, or a kind that says
    what else is wrong with the call); what tasks appended until then is in no report.
    """
    keys = parse_names("keys", keys)
    changes = ColumnChanges.of(drop_columns, rename_columns)
    given, case_sensitive = df.schema, is_case_sensitive(df.sparkSession)
    if isinstance(deleted, str):
        given, deleted = without_flag(given, deleted, case_sensitive=case_sensitive)
    with batch_of(attempt, df.sparkSession, progress, job_options) as (batch, options):
        state = StateToWrite.of(
            batch,
            operator,
            arrow_schema(given, f"state of operator {operator!r}", case_sensitive=case_sensitive),
            keys,
            max_parallelism,
            ttl,
            changes=changes,
            replace=replace,
            deleted=deleted,
            case_sensitive=case_sensitive,
        )
        plan = plan_write(df, batch, state, partitions, deleted)
        common: dict[str, Any] = {
            "attempt": batch.attempt,
            "operator": operator,
            "columns": state.columns,
            "schema": state.schema,
            "ranges": plan.ranges,
            "options": options,
            "time_column": state.time_column,
        }
        if replace is False:
            task, rows = WriteStateTask(**common), plan.by_task(plan.rows)
        else:
            reads = read_cost_of(df.sparkSession)
            batch.count_along(reads)
            before = state.before(batch, options)
            task = ReplaceStateTask(**common, state=before, scope=state.scope, reads=reads)
            rows = plan.by_task(plan.rows.union(_one_for_each_task(plan))).sortWithinPartitions("key_group")
        report = written_by(task, rows, batch, state, progress)
        return report if batch is attempt else batch.shared_files.durable_now(report)


@contextmanager
def batch_of(
    work: Attempt | Batch, spark: SparkSession, progress: Progress | None, options: Options | None
) -> Iterator[tuple[Batch, JobOptions]]:
    """The batch, or a bare attempt's, whose parent is read from its store; and the options to write by.

    From now on the batch merges what is large by tasks of `spark`. `options`: of this call, on top of the
    batch's.

    Raises: InvalidInputError; as `Batch.resume`.
    """
    if isinstance(work, Batch):
        require_shared(work.attempt.store_uri)
        work.merge_executor = merges_in_tasks(spark, work, progress)
        yield work, work.coordinator.job_options.with_call(options)
        return
    given = JobOptions.of(options)
    with closing(open_shared_store(work.store_uri, given)) as store:
        yield Batch.resume(CheckpointCoordinator(work.job, store, given), work), given


def written_by(
    task: WriteStateTask, rows: DataFrame, batch: Batch, state: StateToWrite, progress: Progress | None
) -> OperatorReport:
    """The report of rows that tasks write now. Small ranges wait in the batch to share files with others."""
    found = run_tasks(rows, task, progress)
    batch.meter.add(cost_of(found))
    return report_of(batch, state, found, task.options)


def report_of(
    batch: Batch, state: StateToWrite, found: Sequence[Mapping[str, Any]], options: JobOptions
) -> OperatorReport:
    """The report of tasks that wrote some key groups each, from their outcomes."""
    handles = [
        ChangelogStateHandle.from_json(outcome["handle"])
        if "handle" in outcome
        else batch.shared_files.add(small_from_outcome(outcome, state.operator, state.schema, options))
        for outcome in found
    ]
    return OperatorReport(
        operator=state.operator,
        handles=tuple(sorted(handles, key=lambda handle: handle.key_group_range.start_key_group)),
        **state.schema.reported,
        upserts=sum(outcome["upserts"] for outcome in found),
        deletes=sum(outcome["deletes"] for outcome in found),
        null_keys=sum(outcome["null_keys"] for outcome in found),
        ttl=None if state.ttl is None else state.ttl.at(*(outcome["newest_us"] for outcome in found)),
    )


def read_state(
    spark: SparkSession,
    checkpoint: Checkpoint | None,
    operator: str,
    *,
    store: ObjectStore,
    schema: st.StructType | str | None = None,
    partitions: int | None = None,
    scope: Scope | None = None,
    job_options: Options | None = None,
) -> DataFrame:
    """The rows of `operator` at a checkpoint, as a DataFrame. Lazy, and deterministic.

    Args:
        checkpoint: `None` if the job has none yet.
        operator: the name it was written under.
        store: the job's.
        schema: the expected Spark schema, or its text such as `"id BIGINT, name STRING"`. Required while
            the operator has no state. Its columns come first; those missing in the state are null, and
            types widen to hold both. No column of the state is left out.
        partitions: tasks that read; `None`: by the size of the state.
        scope: only its rows, such as those of a `state.PartitionRows`; `None`: all.
        job_options: by which the tasks read.

    Raises: InvalidInputError: no state and no schema (kind `no_state`), or a schema that does not fit
    (kind `schema_change`). NotFoundError (kind `state_missing`), FormatError. If the checkpoint is deleted
    after this call, the action on the DataFrame fails with an error that names it.
    """
    what = f"state of operator {operator!r}"
    expected = None if schema is None else expected_schema(schema, what)
    options = JobOptions.of(job_options)
    state = None if checkpoint is None else StateAt.of(store, checkpoint.manifest, operator, options)
    if state is None:
        if expected is None:
            where = (
                "there is no checkpoint"
                if checkpoint is None
                else f"checkpoint {checkpoint.checkpoint_id} has none"
            )
            raise InvalidInputError(
                f"no {what} yet ({where}): pass `schema` to begin with an empty one",
                kind=ErrorKind.NO_STATE,
            )
        return _empty(spark, expected)
    require_shared(state.store_uri)
    if expected is not None:
        case_sensitive = is_case_sensitive(spark)
        columns = arrow_schema(expected, what, case_sensitive=case_sensitive)
        state = state.expecting(as_spelled(columns, state.schema, case_sensitive=case_sensitive))
    raise_as_raised()
    ranges = state.ranges(partitions)
    wanted = common_ranges(ranges, None if scope is None else scope.key_groups(state.schema))
    task = ReadStateTask(state, wanted, read_cost_of(spark), scope)
    share = sum(each.number_of_key_groups for each in wanted) / state.schema.max_parallelism
    tasks = max(1, math.ceil(len(ranges) * share))
    return spark.range(0, len(wanted), 1, tasks).mapInArrow(task, spark_schema(state.schema.columns))


@dataclass(frozen=True)
class WritePlan:
    """How a DataFrame is written.

    Attributes:
        state: as the write leaves it.
        ranges: of the tasks that write. Where the rows of some key groups are replaced, these share them.
        rows: the columns of `state.columns`, by position (`c0`, ...), whether the row is `deleted`, and its
            `key_group`.
    """

    state: StateToWrite
    ranges: tuple[KeyGroupRange, ...]
    rows: DataFrame

    def by_task(self, rows: DataFrame) -> DataFrame:
        """Rows as `rows`, with a contiguous range of key groups for each task."""
        count, groups = len(self.ranges), self.state.schema.max_parallelism
        even = self.ranges == ranges_of_tasks(count, groups)
        of_group = task_of_key_group("key_group", count, groups)
        return rows.repartitionById(count, of_group if even else task_of_range("key_group", self.ranges))


def plan_write(
    df: DataFrame, batch: Batch, state: StateToWrite, partitions: int | None, deleted: str | Column | None
) -> WritePlan:
    """The plan of `write_state`. `deleted`: as the columns of `df` are spelled."""
    schema = state.schema
    count = task_count(df.sparkSession, partitions, schema.max_parallelism)
    ranges = ranges_of_tasks(count, schema.max_parallelism)
    wanted = None if state.scope is None else state.scope.key_groups(schema)
    if wanted is not None:
        ranges = ranges_around(wanted, count, schema.max_parallelism)
    flag = deleted if isinstance(deleted, str) else None
    given = [quoted(name) for name in df.columns if name != flag]
    values = dict(zip(state.columns, given, strict=False))  # a filled column may come on top
    if state.filled is not None:
        values[state.filled] = batch_time(batch)
    # The hash depends on the type (int 5 and bigint 5 differ), so the key is cast before it is hashed.
    types = {field.name: sql_type(field.dataType) for field in spark_schema(schema.columns)}
    values |= {name: f"CAST({values[name]} AS {types[name]})" for name in schema.key_columns}
    positions = {name: f"c{place}" for place, name in enumerate(values)}
    by_position = [f"{value} AS {positions[name]}" for name, value in values.items()]
    rows = selected(df, [*by_position, _flag(deleted)])
    keyed = rows.selectExpr("*", f"{key_group_of_columns(positions, schema)} AS key_group")
    return WritePlan(state, ranges, keyed)


def _one_for_each_task(plan: WritePlan) -> DataFrame:
    """A row without values in the first key group of each task: it shows the task which ones it has."""
    *columns, _, _ = plan.rows.schema
    nulls = [f"CAST(NULL AS {sql_type(column.dataType)}) AS {column.name}" for column in columns]
    starts = ", ".join(str(each.start_key_group) for each in plan.ranges)
    first = f"element_at(array({starts}), CAST(id AS INT) + 1)"
    tasks = plan.rows.sparkSession.range(len(plan.ranges))
    return tasks.selectExpr(*nulls, "CAST(NULL AS BOOLEAN) AS deleted", f"{first} AS key_group")


def batch_time(batch: Batch) -> str:
    """The batch's time in SQL, the same in every task."""
    return f"timestamp_micros({batch.time_us}L)"


def without_flag(schema: st.StructType, deleted: str, *, case_sensitive: bool) -> tuple[st.StructType, str]:
    """The other columns, and the name of the one that says which rows delete their key, as these spell it.

    Raises: InvalidInputError if there is none, or it is not boolean.
    """
    (name,) = spelled([deleted], schema.names, case_sensitive=case_sensitive)
    if name not in schema.names or not isinstance(schema[name].dataType, st.BooleanType):
        raise InvalidInputError(
            f"`deleted` names column {deleted!r}, which is not a boolean column of {', '.join(schema.names)}"
        )
    return st.StructType([field for field in schema if field.name != name]), name


def _flag(deleted: str | Column | None) -> str | Column:
    if deleted is None:
        return "false AS deleted"
    if isinstance(deleted, str):
        return f"coalesce({quoted(deleted)}, false) AS deleted"
    return F.coalesce(deleted, F.lit(False)).alias("deleted")


def expected_schema(schema: st.StructType | str, what: str) -> st.StructType:
    """The schema, parsed if it is passed as text. Raises: InvalidInputError."""
    require_spark_schema(schema, what)
    if not isinstance(schema, str):
        return schema
    try:
        parsed = st.DataType.fromDDL(schema)
    except ParseException as error:
        raise InvalidInputError(
            f"{what}: the schema {schema!r} is not columns such as 'customer STRING, total DOUBLE': "
            f"{said_by_spark(error)}"
        ) from error
    return parsed if isinstance(parsed, st.StructType) else st.StructType([st.StructField("value", parsed)])


def _empty(spark: SparkSession, schema: st.StructType) -> DataFrame:
    nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema]
    # The optimizer sees that this is empty, and prunes joins with it.
    return spark.range(1).select(*nulls).where(F.lit(False))
