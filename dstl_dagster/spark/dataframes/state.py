"""Keyed state as DataFrames: append the rows that changed, read the rows of a checkpoint.

Owns the plan on the driver: which key group a key has, which task has which key groups, and that there is
exactly one action. Does not own the work inside a task (`state_tasks`), the meaning of changes
(`dstl_dagster.state`), nor the checkpoint they become part of (`checkpoint`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as st

from dstl_dagster.checkpoint import Attempt, Batch, Checkpoint, CheckpointCoordinator, OperatorReport
from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.format import (
    ChangelogStateHandle,
    KeyGroupRange,
    StateTtl,
    common_ranges,
    ranges_around,
    ranges_of_tasks,
)
from dstl_dagster.keyed import (
    Replaced,
    Scope,
    SharedFiles,
    StateAt,
    partition_columns_of,
    replaced_scope,
    small_from_outcome,
)
from dstl_dagster.settings import JobOptions, Options, StateTtlConfig, parse_names
from dstl_dagster.spark.dataframes.outcomes import run_tasks
from dstl_dagster.spark.dataframes.partitioning import (
    default_partitions,
    key_group_of_columns,
    task_of_key_group,
    task_of_range,
)
from dstl_dagster.spark.dataframes.progress import Progress
from dstl_dagster.spark.dataframes.run_merges import merges_in_tasks
from dstl_dagster.spark.dataframes.state_tasks import ReadStateTask, ReplaceStateTask, WriteStateTask
from dstl_dagster.spark.errors import raise_as_raised
from dstl_dagster.spark.stores import cost_of, open_shared_store, read_cost_of, require_shared
from dstl_dagster.spark.types import (
    arrow_schema,
    is_case_sensitive,
    quoted,
    selected,
    spark_schema,
    sql_type,
)
from dstl_dagster.state import (
    ColumnChanges,
    StateSchema,
    as_spelled,
    filled_column,
    require_spark_schema,
    schema_to_write,
    spelled,
    time_column,
)
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
    reads = None if replace is False else read_cost_of(df.sparkSession)
    with batch_of(attempt, df.sparkSession, progress, job_options) as (batch, options):
        if reads is not None:
            batch.count_along(reads)
        plan = plan_write(
            df, batch, operator, keys, max_parallelism, partitions, deleted, changes, ttl, replace
        )
        before = None if replace is False else batch.state(operator)
    common: dict[str, Any] = {
        "attempt": batch.attempt,
        "operator": operator,
        "schema": plan.schema,
        "ranges": plan.ranges,
        "options": options,
        "time_column": column_of_newest(plan.schema, plan.ttl, ttl),
    }
    if replace is False:
        task, rows = WriteStateTask(**common, columns=plan.columns), plan.by_task(plan.rows)
    else:
        if before is not None:
            seen = seen_ttl(before, plan.ttl)
            before = dataclasses.replace(before, schema=plan.schema, options=options, ttl=seen)
        task = ReplaceStateTask(
            **common,
            columns=tuple(plan.schema.columns.names),
            given=plan.columns,
            state=before,
            scope=plan.scope,
            reads=reads,
        )
        rows = plan.by_task(plan.rows.union(_one_for_each_task(plan))).sortWithinPartitions("key_group")
    found = run_tasks(rows, task, progress)
    batch.meter.add(cost_of(found))
    return report_of(attempt, operator, plan.schema, found, options, plan.ttl)


def seen_ttl(before: StateAt, ttl: StateTtl | None) -> StateTtl | None:
    """The TTL by which old rows are seen: at the batch's time, unless hidden ones would come back."""
    return ttl if ttl is not None and ttl.hides_what(before.ttl) else before.ttl


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


def column_of_newest(schema: StateSchema, ttl: StateTtl | None, config: StateTtlConfig | None) -> str | None:
    """The column whose newest time moves the watermark, unless the batch has set one."""
    given = config is not None and config.watermark is not None
    return None if given else time_column(schema, ttl)


def report_of(
    work: Attempt | Batch,
    operator: str,
    schema: StateSchema,
    found: Sequence[Mapping[str, Any]],
    options: JobOptions,
    ttl: StateTtl | None,
) -> OperatorReport:
    """The report of tasks that wrote some key groups each, from their outcomes.

    Changes that tasks handed over wait in the batch to share files with others; those for a bare attempt
    are durable on return, in files that this operator's ranges share.

    `ttl`: the state's, before it is moved on to the newest time that the tasks saw.
    """
    if isinstance(work, Batch):
        return _reported(work.shared_files, operator, schema, found, options, ttl)
    with closing(open_shared_store(work.store_uri, options)) as store:
        shared = SharedFiles(store, work)
        return shared.durable_now(_reported(shared, operator, schema, found, options, ttl))


def _reported(
    shared: SharedFiles,
    operator: str,
    schema: StateSchema,
    found: Sequence[Mapping[str, Any]],
    options: JobOptions,
    ttl: StateTtl | None,
) -> OperatorReport:
    handles = [
        ChangelogStateHandle.from_json(outcome["handle"])
        if "handle" in outcome
        else shared.add(small_from_outcome(outcome, operator, schema, options))
        for outcome in found
    ]
    return OperatorReport(
        operator=operator,
        handles=tuple(sorted(handles, key=lambda handle: handle.key_group_range.start_key_group)),
        **schema.reported,
        upserts=sum(outcome["upserts"] for outcome in found),
        deletes=sum(outcome["deletes"] for outcome in found),
        null_keys=sum(outcome["null_keys"] for outcome in found),
        ttl=None if ttl is None else ttl.at(*(outcome["newest_us"] for outcome in found)),
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
        schema: of the state.
        columns: the names of those passed.
        ranges: of the tasks that write. Where the rows of some key groups are replaced, these share them.
        rows: the columns passed, by position (`c0`, ...), whether the row is `deleted`, and its `key_group`.
        ttl: of the state.
        scope: of the rows that are replaced; `None`: all, or nothing is.
    """

    schema: StateSchema
    columns: tuple[str, ...]
    ranges: tuple[KeyGroupRange, ...]
    rows: DataFrame
    ttl: StateTtl | None
    scope: Scope | None

    def by_task(self, rows: DataFrame) -> DataFrame:
        """Rows as `rows`, with a contiguous range of key groups for each task."""
        count, groups = len(self.ranges), self.schema.max_parallelism
        even = self.ranges == ranges_of_tasks(count, groups)
        of_group = task_of_key_group("key_group", count, groups)
        return rows.repartitionById(count, of_group if even else task_of_range("key_group", self.ranges))


def plan_write(
    df: DataFrame,
    batch: Batch,
    operator: str,
    keys: Sequence[str],
    max_parallelism: int | None,
    partitions: int | None,
    deleted: str | Column | None,
    changes: ColumnChanges,
    ttl: StateTtlConfig | None,
    replace: Replaced = False,
) -> WritePlan:
    """The plan of `write_state`, whose arguments and errors these are."""
    if not operator:
        raise InvalidInputError("state needs an operator's name, such as 'aircraft': it is empty")
    case_sensitive = is_case_sensitive(df.sparkSession)
    if isinstance(deleted, str):
        (deleted,) = spelled([deleted], df.columns, case_sensitive=case_sensitive)
    before = schema_before(batch, operator, changes, case_sensitive=case_sensitive)
    df = with_batch_time(df, batch, filled_column(ttl, batch.ttl(operator), before))
    columns = _state_columns(df, deleted)
    given = arrow_schema(columns, f"state of operator {operator!r}", case_sensitive=case_sensitive)
    given = as_spelled(given, before, case_sensitive=case_sensitive)
    changes.refuse_written(new_names(given, before), case_sensitive=case_sensitive)
    keys = spelled(keys, given.names, case_sensitive=case_sensitive)
    within = spelled(partition_columns_of(replace), keys, case_sensitive=case_sensitive)
    schema = schema_to_write(given, keys, max_parallelism, before, within)
    state_ttl = batch.ttl_to_write(operator, schema, ttl)
    count = partitions
    if count is None:
        count = default_partitions(df.sparkSession, schema.max_parallelism)
    ranges = ranges_of_tasks(count, schema.max_parallelism)
    scope = None if replace is False else replaced_scope(replace, schema, deleted)
    wanted = None if scope is None else scope.key_groups(schema)
    if wanted is not None:
        ranges = ranges_around(wanted, count, schema.max_parallelism)
    stored = {field.name: field.dataType for field in spark_schema(schema.columns)}
    positions = [f"c{place}" for place in range(len(given.names))]
    # The hash depends on the type (int 5 and bigint 5 differ), so the key is cast before it is hashed.
    by_position = [
        f"CAST({quoted(name)} AS {sql_type(stored[field.name])}) AS {position}"
        if field.name in keys
        else f"{quoted(name)} AS {position}"
        for name, field, position in zip(columns.names, given, positions, strict=True)
    ]
    rows = selected(df, [*by_position, _flag(deleted)])
    key_group = key_group_of_columns(dict(zip(given.names, positions, strict=True)), schema)
    keyed = rows.selectExpr("*", f"{key_group} AS key_group")
    return WritePlan(schema, tuple(given.names), ranges, keyed, state_ttl, scope)


def _one_for_each_task(plan: WritePlan) -> DataFrame:
    """A row without values in the first key group of each task: it shows the task which ones it has."""
    *columns, _, _ = plan.rows.schema
    nulls = [f"CAST(NULL AS {sql_type(column.dataType)}) AS {column.name}" for column in columns]
    starts = ", ".join(str(each.start_key_group) for each in plan.ranges)
    first = f"element_at(array({starts}), CAST(id AS INT) + 1)"
    tasks = plan.rows.sparkSession.range(len(plan.ranges))
    return tasks.selectExpr(*nulls, "CAST(NULL AS BOOLEAN) AS deleted", f"{first} AS key_group")


def with_batch_time(df: DataFrame, batch: Batch, column: str | None) -> DataFrame:
    """The rows with the batch's time in this column, over any value there; `None`: as they are."""
    if column is None:
        return df
    others = [quoted(name) for name in df.columns if name != column]
    return df.selectExpr(*others, f"{batch_time(batch)} AS {quoted(column)}")


def batch_time(batch: Batch) -> str:
    """The batch's time in SQL, the same in every task."""
    return f"timestamp_micros({batch.time_us}L)"


def _state_columns(df: DataFrame, deleted: str | Column | None) -> st.StructType:
    if isinstance(deleted, str):
        if deleted not in df.columns:
            raise InvalidInputError(f"`deleted` names column {deleted!r}, which is not among {df.columns}")
        if not isinstance(df.schema[deleted].dataType, st.BooleanType):
            raise InvalidInputError(f"`deleted` names column {deleted!r}, which is not boolean")
        return st.StructType([field for field in df.schema if field.name != deleted])
    return df.schema


def _flag(deleted: str | Column | None) -> str | Column:
    if deleted is None:
        return "false AS deleted"
    if isinstance(deleted, str):
        return f"coalesce({quoted(deleted)}, false) AS deleted"
    return F.coalesce(deleted, F.lit(False)).alias("deleted")


def schema_before(
    batch: Batch, operator: str, changes: ColumnChanges, *, case_sensitive: bool
) -> StateSchema | None:
    """The schema of the state that the batch builds on, after `changes`; `None` if there is none.

    With `changes` it is read from all manifests of the state, because a column may be in an older one alone.
    """
    known = batch.schema(operator)
    if known is None or not changes:
        return known
    state = batch.state(operator)
    known = known if state is None else state.schema
    return changes.applied_to(known, case_sensitive=case_sensitive)


def new_names(given: pa.Schema, before: StateSchema | None) -> list[str]:
    """Those missing in the state."""
    known = () if before is None else before.columns.names
    return [name for name in given.names if name not in known]


def expected_schema(schema: st.StructType | str, what: str) -> st.StructType:
    """The schema, parsed if it is passed as text. Raises: InvalidInputError."""
    require_spark_schema(schema, what)
    if not isinstance(schema, str):
        return schema
    parsed = st.DataType.fromDDL(schema)
    return parsed if isinstance(parsed, st.StructType) else st.StructType([st.StructField("value", parsed)])


def _empty(spark: SparkSession, schema: st.StructType) -> DataFrame:
    nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema]
    # The optimizer sees that this is empty, and prunes joins with it.
    return spark.range(1).select(*nulls).where(F.lit(False))
