"""Keyed updates by DataFrame operations: a batch's rows against the state's rows of the same keys.

Owns the plan: one shuffle of the rows by key group, a look-up in the tasks, the user's expressions in Spark,
and the write without another shuffle. Does not own the work inside the tasks (`merge_tasks`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as st

from dstl_dagster.checkpoint import Attempt, Batch, OperatorReport, StateToWrite
from dstl_dagster.concurrency import Progress
from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.format import ranges_of_tasks
from dstl_dagster.keyed import StateAt
from dstl_dagster.settings import JobOptions, Options, StateTtlConfig, parse_names
from dstl_dagster.spark.dataframes.merge_tasks import LookUpTask, MergeStateTask
from dstl_dagster.spark.dataframes.partitioning import (
    key_group_of_columns,
    task_count,
    task_of_key_group,
)
from dstl_dagster.spark.dataframes.small_merge import merged_on_driver
from dstl_dagster.spark.dataframes.state import (
    batch_of,
    batch_time,
    expected_schema,
    written_by,
)
from dstl_dagster.spark.errors import said_by_spark
from dstl_dagster.spark.stores import read_cost_of
from dstl_dagster.spark.types import (
    arrow_schema,
    has_same_fields,
    is_ansi,
    is_case_sensitive,
    quoted,
    refuse_same_names,
    selected,
    spark_schema,
    sql_type,
)
from dstl_dagster.state import ColumnChanges, schema_to_write, spelled, update_by_name, wider_type

Expression = str | Column

_HIDDEN = "\N{NULL}"
"""Begins names of columns that no rule can have by accident: Spark finds those of other rules, too."""
_INTERNAL: dict[str, type[st.DataType]] = {
    f"{_HIDDEN}refused": st.StringType,
    f"{_HIDDEN}key_group": st.IntegerType,
}
"""The columns beside `new` and `old`."""
_WITH_FIELDS = (st.StructType, st.ArrayType, st.MapType)
"""Types that have structs, or may have them inside."""


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
            columns keep their value. Results are cast to the column's type, a struct's fields by name.
        schema: the state's columns, keys included. Later batches may add columns and widen types.
        ttl: as for `write_state`. `old` is null for a row that has expired, and with processing time each row
            of the batch is written, as its time changes.
        delete: which keys to delete; null means no.

    The other arguments, and the errors, are those of `write_state`.
    """
    keys = parse_names("keys", keys)
    what, case_sensitive = f"state of operator {operator!r}", is_case_sensitive(changes.sparkSession)
    columns = ColumnChanges.of(drop_columns, rename_columns)
    with batch_of(attempt, changes.sparkSession, progress, job_options) as (batch, options):
        batch.count_along(read_cost_of(changes.sparkSession))
        state = StateToWrite.of(
            batch,
            operator,
            arrow_schema(expected_schema(schema, what), what, case_sensitive=case_sensitive),
            keys,
            max_parallelism,
            ttl,
            changes=columns,
            case_sensitive=case_sensitive,
        )
        plan = _Merge(changes, batch, options, state, case_sensitive=case_sensitive)
        if batch is attempt and not (columns or job_options or partitions):
            report = merged_on_driver(changes, plan.new_columns, batch, progress, state, update, delete)
            if report is not None:
                return report
        count = task_count(changes.sparkSession, partitions, state.schema.max_parallelism)
        task = MergeStateTask(
            attempt=batch.attempt,
            operator=operator,
            columns=tuple(state.schema.columns.names),
            schema=state.schema,
            ranges=ranges_of_tasks(count, state.schema.max_parallelism),
            options=options,
            time_column=state.time_column,
        )
        merged = plan.merged(plan.looked_up(count), update, delete)
        report = written_by(task, merged, batch, state, progress)
        return report if batch is attempt else batch.shared_files.durable_now(report)


class _Merge:
    """The parts of one merge's plan."""

    def __init__(
        self,
        changes: DataFrame,
        batch: Batch,
        options: JobOptions,
        state: StateToWrite,
        *,
        case_sensitive: bool,
    ) -> None:
        self._changes = changes
        self._batch = batch
        self._options = options
        self._state = state
        self._what = f"state of operator {state.operator!r}"
        self._case_sensitive = case_sensitive
        self._is_ansi = is_ansi(changes.sparkSession)
        self._columns = spark_schema(state.schema.columns)
        self.new_columns: list[str] = []
        self._keys: dict[str, str] = {}
        keys, key_types = state.schema.key_columns, st.StructType()
        refuse_same_names(changes.columns, self._what, case_sensitive=self._case_sensitive)
        for given in changes.columns:
            column = quoted(given)
            (name,) = spelled([given], keys, case_sensitive=self._case_sensitive)
            # The hash depends on the type, so the key is cast before it is hashed.
            if name in keys:
                column = f"CAST({column} AS {sql_type(self._columns[name].dataType)})"
                self._keys[name] = column
                key_types.add(name, changes.schema[given].dataType)
            self.new_columns.append(f"{column} AS {quoted(name)}")
        missing = [name for name in keys if name not in self._keys]
        if missing:
            raise InvalidInputError(
                f"key column {missing[0]!r} is missing: the changes have {changes.columns}"
            )
        given_keys = arrow_schema(key_types, self._what, case_sensitive=self._case_sensitive)
        schema_to_write(given_keys, keys, None, state.schema)  # refuses those that a cast would change

    def looked_up(self, count: int) -> DataFrame:
        """What `LookUpTask` yields for every changed row; each task has its own range of key groups."""
        schema, options = self._state.schema, self._options
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
        at = self._batch.attempt
        before = self._state.before(self._batch, options) or StateAt(
            at.store_uri, at.job, at.parent or 0, self._state.operator, schema, (), options
        )
        return ranged.mapInArrow(LookUpTask(before, read_cost_of(self._changes.sparkSession)), result)

    def merged(
        self, rows: DataFrame, update: Mapping[str, Expression], delete: Expression | None
    ) -> DataFrame:
        """The state's columns by position, then what else the writing task needs.

        Raises: InvalidInputError as `state.update_by_name`; or naming the rule that Spark cannot analyze, or
        that looks at other rows, or is not deterministic.
        """
        state, columns = self._state, list[Expression]()
        as_type = _as_type if self._is_ansi else _as_type_by_ansi
        by_name = update_by_name(
            update, state.schema, state.filled, self._what, case_sensitive=self._case_sensitive
        )
        if state.filled is not None:
            by_name[state.filled] = batch_time(self._batch)
        for place, field in enumerate(self._columns):
            side = "new" if field.name in state.schema.key_columns else "old"
            value: Expression = f"{side}.{quoted(field.name)}"
            if field.name in by_name:
                rule = by_name[field.name]
                value = as_type(rule, self._type_in_spark(rows, rule, field), _update_of(field.name))
            columns.append(_named(f"{_HIDDEN}c{place}", value))
        deleted: Expression = "false"
        if isinstance(delete, str):
            deleted = f"coalesce({_enclosed(delete)}, false)"
        elif delete is not None:
            deleted = F.coalesce(delete, F.lit(False))
        rules = [*columns, _named(f"{_HIDDEN}deleted", deleted)]
        named = [*map(_update_of, self._columns.names), "delete"]
        try:
            merged = _analyzed(selected(rows, [*rules, "old", *map(quoted, _INTERNAL)]))
        except AnalysisException:
            self._refuse_unknown(rows, rules, named)
            raise
        if _looks_at_others(merged):
            of = next(
                name
                for rule, name in zip(rules, named, strict=True)
                if _looks_at_others(selected(rows, [rule]))
            )
            raise InvalidInputError(
                f"{self._what}: {of}: it looks at other rows: compute it before the merge"
            )
        for place in _not_deterministic(merged):
            raise InvalidInputError(
                f"{self._what}: {named[place]}: it gives another value each time it is evaluated, so a "
                "repeated batch would write other rows: compute it before the merge"
            )
        return merged

    def _type_in_spark(self, rows: DataFrame, expression: Expression, field: st.StructField) -> st.DataType:
        """The type of a rule's values until they are written: the column's; or their own if they have structs
        of other fields, or in another order, which the task casts by name, or if Spark's cast would change
        what is inside of them.

        Raises: InvalidInputError if the column's do not hold them.
        """
        if not isinstance(field.dataType, _WITH_FIELDS):
            return field.dataType
        column = _named(field.name, _enclosed(expression) if isinstance(expression, str) else expression)
        try:
            (found,) = _analyzed(selected(rows, [column])).schema
        except AnalysisException:
            self._refuse_unknown(rows, [column], [_update_of(field.name)])
            raise
        casts = self._is_ansi or "void" in found.dataType.simpleString()  # a null, and `array()`
        if casts and has_same_fields(found.dataType, field.dataType):
            return field.dataType
        own, kind = (arrow_schema(st.StructType([each]), self._what).field(0).type for each in (found, field))
        if wider_type(kind, own) != kind:
            raise InvalidInputError(
                f"{self._what}: {_update_of(field.name)}: it is {own}, and the column is {kind}: name its "
                "fields as the column's, each of a type that the column's field holds",
                kind=ErrorKind.SCHEMA_CHANGE,
            )
        return found.dataType

    def _refuse_unknown(self, rows: DataFrame, rules: Sequence[Expression], named: Sequence[str]) -> None:
        for rule, name in zip(rules, named, strict=True):
            try:
                _analyzed(selected(rows, [rule, "old"]))  # a sum alone would be one of all rows
            except AnalysisException as error:
                said = said_by_spark(error)
                for internal in _INTERNAL:  # which Spark suggests
                    said = said.replace(f"`{internal}`, ", "").replace(f", `{internal}`", "")
                raise InvalidInputError(f"{self._what}: {name}: {said}") from error


def _analyzed(df: DataFrame) -> DataFrame:
    """The same, whose names and types are known to be right; by Connect only its schema says so."""
    if not hasattr(df, "_jdf"):
        df.schema  # noqa: B018 - asks the server
    return df


def _looks_at_others(projection: DataFrame) -> bool:
    """Whether it has a window, for which Spark plans more than a projection. By Connect it is unknown."""
    if not hasattr(projection, "_jdf"):
        return False
    return bool(projection._jdf.queryExecution().analyzed().child().nodeName() != "MapInArrow")


def _not_deterministic(projection: DataFrame) -> list[int]:
    """Which columns are not, by Spark's own word. By Connect it is unknown."""
    if not hasattr(projection, "_jdf"):
        return []
    plan = projection._jdf.queryExecution().analyzed()
    if plan.deterministic():
        return []
    columns = plan.projectList()
    return [place for place in range(columns.size()) if not columns.apply(place).deterministic()]


def _update_of(column: str) -> str:
    return f"update of column {column!r}"


def _enclosed(text: str) -> str:
    """On lines of its own: it may end in a comment."""
    return f"(\n{text}\n)"


def _as_type(rule: Expression, spark_type: st.DataType, _: str) -> Expression:
    if isinstance(rule, str):
        return f"CAST({_enclosed(rule)} AS {sql_type(spark_type)})"
    return rule.cast(spark_type)


def _as_type_by_ansi(rule: Expression, spark_type: st.DataType, what: str) -> Expression:
    """As `_as_type`, in a session whose CAST makes another value, or null, of what the type does not hold."""
    value = F.expr(_enclosed(rule)) if isinstance(rule, str) else rule
    cast = value.try_cast(spark_type)
    message = f"{what}: {spark_type.simpleString().upper()} does not hold its value: CAST it in the rule"
    return F.when(value.isNotNull() & cast.isNull(), F.raise_error(message)).otherwise(cast)


def _named(name: str, expression: Expression) -> Expression:
    return f"{expression} AS {quoted(name)}" if isinstance(expression, str) else expression.alias(name)
