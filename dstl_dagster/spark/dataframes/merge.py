"""Keyed updates by DataFrame operations: a batch's rows against the state's rows of the same keys.

Owns the plan: one shuffle of the rows by key group, a look-up in the tasks, the user's expressions in Spark,
and the write without another shuffle. Does not own the work inside the tasks (`merge_tasks`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as st

from dstl_dagster.checkpoint import Attempt, Batch, OperatorReport
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import ranges_of_tasks
from dstl_dagster.keyed import StateAt
from dstl_dagster.settings import JobOptions, Options, StateTtlConfig, parse_names
from dstl_dagster.spark.dataframes.merge_tasks import LookUpTask, MergeStateTask
from dstl_dagster.spark.dataframes.outcomes import run_tasks
from dstl_dagster.spark.dataframes.partitioning import (
    default_partitions,
    key_group_of_columns,
    task_of_key_group,
)
from dstl_dagster.spark.dataframes.progress import Progress
from dstl_dagster.spark.dataframes.small_merge import merged_on_driver
from dstl_dagster.spark.dataframes.state import (
    batch_of,
    batch_time,
    column_of_newest,
    expected_schema,
    new_names,
    report_of,
    schema_before,
    seen_ttl,
)
from dstl_dagster.spark.stores import cost_of, read_cost_of
from dstl_dagster.spark.types import (
    arrow_schema,
    is_case_sensitive,
    quoted,
    selected,
    spark_schema,
    sql_type,
)
from dstl_dagster.state import (
    PROCESSING_TIME_TYPE,
    ColumnChanges,
    StateSchema,
    as_spelled,
    filled_column,
    schema_to_write,
    spelled,
    update_by_name,
)

Expression = str | Column

_HIDDEN = "\N{NULL}"
"""Begins names of columns that no rule can have by accident: Spark finds those of other rules, too."""
_INTERNAL: dict[str, type[st.DataType]] = {
    f"{_HIDDEN}repeated": st.BooleanType,
    f"{_HIDDEN}refused": st.StringType,
    f"{_HIDDEN}key_group": st.IntegerType,
}
"""The columns beside `new` and `old`."""


def merge_state(
    changes: DataFrame,
    attempt: Attempt | Batch,
    *,
    operator: str,
    keys: Sequence[str],
    update: Mapping[str, Expression],
    schema: st.StructType | str,
    delete: Expression | None = None,
    max_parallelism: int | None = None,
    partitions: int | None = None,
    drop_columns: Collection[str] = (),
    rename_columns: Mapping[str, str] | None = None,
    ttl: StateTtlConfig | None = None,
    job_options: Options | None = None,
    progress: Progress | None = None,
) -> OperatorReport:
    """Merge a batch's rows, one per key, into the state of `operator`: steps 2 and 3 for its state.

    Few rows (about 100,000) of an open batch are merged on the driver, if the rules are text in that part of
    SQL which `jobs.merge_frame` knows; otherwise tasks merge them, with the same result. Runs one action on
    `changes`; a second one where the first had more rows than expected, or met an error. In expressions,
    `new` is a row of `changes` and `old` the state's row of the same key, null if it has none. Only rows
    whose value changes are written, and only keys that are in the state are deleted::

        merge_state(
            totals, attempt, operator="aircraft", keys=["tail"],
            schema="tail STRING, flights BIGINT",
            update={"flights": "coalesce(old.flights, 0) + new.flights"},
            delete="new.retired",
        )

    Args:
        changes: one row per key, such as aggregates.
        update: an expression for each column to update: SQL, or a Column over `F.col("old.…")`. Other
            columns keep their value. Results are cast to the column's type.
        schema: the state's columns, keys included. Later batches may add columns and widen types.
        ttl: as for `write_state`. `old` is null for a row that has expired, and with processing time each row
            of the batch is written, as its time changes.
        delete: which keys to delete; null means no.

    The other arguments, and the errors, are those of `write_state`.
    """
    keys = parse_names("keys", keys)
    columns = ColumnChanges.of(drop_columns, rename_columns)
    with batch_of(attempt, changes.sparkSession, progress, job_options) as (batch, options):
        batch.count_along(read_cost_of(changes.sparkSession))
        plan = _Merge(changes, batch, options, operator, keys, schema, max_parallelism, columns, ttl)
    if isinstance(attempt, Batch) and not (columns or job_options or partitions):
        report = merged_on_driver(
            changes,
            plan.new_columns,
            batch,
            progress,
            operator=operator,
            keys=keys,
            update=update,
            schema=schema,
            delete=delete,
            max_parallelism=max_parallelism,
            ttl=ttl,
        )
        if report is not None:
            return report
    update = {**plan.known_columns(update), **plan.filled}
    count = (
        default_partitions(changes.sparkSession, plan.schema.max_parallelism)
        if partitions is None
        else partitions
    )
    task = MergeStateTask(
        attempt=batch.attempt,
        operator=operator,
        columns=tuple(plan.schema.columns.names),
        schema=plan.schema,
        ranges=ranges_of_tasks(count, plan.schema.max_parallelism),
        options=options,
        time_column=column_of_newest(plan.schema, plan.ttl, ttl),
    )
    merged = plan.merged(plan.looked_up(count), update, delete)
    found = run_tasks(merged, task, progress)
    batch.meter.add(cost_of(found))
    return report_of(attempt, operator, plan.schema, found, options, plan.ttl)


class _Merge:
    """The parts of one merge's plan."""

    def __init__(
        self,
        changes: DataFrame,
        batch: Batch,
        options: JobOptions,
        operator: str,
        keys: Sequence[str],
        schema: st.StructType | str,
        max_parallelism: int | None,
        columns: ColumnChanges,
        ttl: StateTtlConfig | None,
    ) -> None:
        what = self._what = f"state of operator {operator!r}"
        self._changes = changes
        declared = expected_schema(schema, what)
        self._case_sensitive = is_case_sensitive(changes.sparkSession)
        known = schema_before(batch, operator, columns, case_sensitive=self._case_sensitive)
        given = arrow_schema(declared, what, case_sensitive=self._case_sensitive)
        given = as_spelled(given, known, case_sensitive=self._case_sensitive)
        columns.refuse_written(new_names(given, known), case_sensitive=self._case_sensitive)
        filled = filled_column(ttl, batch.ttl(operator), known)
        if filled is not None and filled not in given.names:
            given = given.append(pa.field(filled, PROCESSING_TIME_TYPE))
        keys = self._spelled(keys, given.names)
        self.schema: StateSchema = schema_to_write(given, keys, max_parallelism, known)
        self.filled = {} if filled is None else {filled: batch_time(batch)}
        self.ttl = batch.ttl_to_write(operator, self.schema, ttl)
        attempt, before = batch.attempt, batch.state(operator)
        self._before = (
            StateAt(attempt.store_uri, attempt.job, attempt.parent or 0, operator, self.schema, (), options)
            if before is None
            else replace(before, schema=self.schema, options=options, ttl=seen_ttl(before, self.ttl))
        )
        self._columns = spark_schema(self.schema.columns)
        self.new_columns: list[str] = []
        self._keys: dict[str, str] = {}
        for given in changes.columns:
            column = quoted(given)
            (name,) = self._spelled([given], keys)
            # The hash depends on the type, so the key is cast before it is hashed.
            if name in keys:
                column = f"CAST({column} AS {sql_type(self._columns[name].dataType)})"
                self._keys[name] = column
            self.new_columns.append(f"{column} AS {quoted(name)}")
        missing = [name for name in keys if name not in self._keys]
        if missing:
            raise InvalidInputError(
                f"key column {missing[0]!r} is missing: the changes have {changes.columns}"
            )

    def _spelled(self, names: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
        return spelled(names, known, case_sensitive=self._case_sensitive)

    def known_columns(self, update: Mapping[str, Expression]) -> dict[str, Expression]:
        """The update by the state's names. Raises: as `state.update_by_name`."""
        what, filled = self._what, next(iter(self.filled), None)
        return update_by_name(update, self.schema, filled, what, case_sensitive=self._case_sensitive)

    def looked_up(self, count: int) -> DataFrame:
        """What `LookUpTask` yields for every changed row; each task has its own range of key groups."""
        schema = self.schema
        key_group = key_group_of_columns(self._keys, schema)
        rows = self._changes.selectExpr(
            f"struct({', '.join(self.new_columns)}) AS new", f"{key_group} AS key_group"
        )
        ranged = rows.repartitionById(count, task_of_key_group("key_group", count, schema.max_parallelism))
        result = st.StructType(
            [
                rows.schema["new"],
                st.StructField("old", self._columns),
                *(st.StructField(name, kind()) for name, kind in _INTERNAL.items()),
            ]
        )
        reads = read_cost_of(self._changes.sparkSession)
        return ranged.mapInArrow(LookUpTask(self._before, reads), result)

    def merged(
        self, rows: DataFrame, update: Mapping[str, Expression], delete: Expression | None
    ) -> DataFrame:
        """The state's columns by position, then what else the writing task needs.

        Raises: InvalidInputError that names the rule that Spark cannot analyze, or that is not deterministic.
        """
        columns: list[Expression] = []
        for place, field in enumerate(self._columns):
            side = "new" if field.name in self.schema.key_columns else "old"
            expression = update.get(field.name, f"{side}.{quoted(field.name)}")
            columns.append(_named(f"{_HIDDEN}c{place}", _as_type(expression, field.dataType)))
        deleted: Expression = "false"
        if isinstance(delete, str):
            deleted = f"coalesce({_enclosed(delete)}, false)"
        elif delete is not None:
            deleted = F.coalesce(delete, F.lit(False))
        rules = [*columns, _named(f"{_HIDDEN}deleted", deleted)]
        named = [f"update of column {name!r}" for name in self._columns.names] + ["delete"]
        try:
            merged = _analyzed(selected(rows, [*rules, "old", *map(quoted, _INTERNAL)]))
        except AnalysisException:
            self._refuse_unknown(rows, rules, named)
            raise
        for place in _not_deterministic(merged):
            raise InvalidInputError(
                f"{self._what}: {named[place]}: it gives another value each time it is evaluated, so a "
                "repeated batch would write other rows: compute it before the merge"
            )
        return merged

    def _refuse_unknown(self, rows: DataFrame, rules: Sequence[Expression], named: Sequence[str]) -> None:
        for rule, name in zip(rules, named, strict=True):
            try:
                _analyzed(selected(rows, [rule]))
            except AnalysisException as error:
                said = " ".join(str(error).partition("SQLSTATE")[0].split())
                for internal in _INTERNAL:  # which Spark suggests
                    said = said.replace(f"`{internal}`, ", "").replace(f", `{internal}`", "")
                raise InvalidInputError(f"{self._what}: {name}: {said}") from error


def _analyzed(df: DataFrame) -> DataFrame:
    """The same, whose names and types are known to be right; by Connect only its schema says so."""
    if not hasattr(df, "_jdf"):
        df.schema  # noqa: B018 - asks the server
    return df


def _not_deterministic(projection: DataFrame) -> list[int]:
    """Which columns are not, by Spark's own word. By Connect it is unknown."""
    if not hasattr(projection, "_jdf"):
        return []
    plan = projection._jdf.queryExecution().analyzed()
    if plan.deterministic():
        return []
    columns = plan.projectList()
    return [place for place in range(columns.size()) if not columns.apply(place).deterministic()]


def _enclosed(text: str) -> str:
    """On lines of its own: it may end in a comment."""
    return f"(\n{text}\n)"


def _as_type(expression: Expression, spark_type: st.DataType) -> Expression:
    if isinstance(expression, str):
        return f"CAST({_enclosed(expression)} AS {sql_type(spark_type)})"
    return expression.cast(spark_type)


def _named(name: str, expression: Expression) -> Expression:
    return f"{expression} AS {quoted(name)}" if isinstance(expression, str) else expression.alias(name)
