"""Rows that a program holds in memory, in any form, as an operator's changes in a batch: without Spark.

Owns the counterparts of `dstl_dagster.spark.write_state` and `merge_state` for such rows.
Does not own what rows are (`state.frames`), which values a state's columns take (`state.fitting`), what a
rule's SQL means (`state.rules`), which of a replacement's rows are written, or writing (`keyed`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.changelog import process_cache
from dstl_dagster.checkpoint import Batch, StateToWrite
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import (
    Beside,
    Grouped,
    KeyedState,
    OperatorReport,
    Replaced,
    beside,
    changed_rows,
    replacements,
    write_rows,
)
from dstl_dagster.settings import StateTtlConfig, parse_names
from dstl_dagster.state import (
    PROCESSING_TIME_TYPE,
    GroupedRows,
    Rule,
    StateSchema,
    as_table,
    declared_columns,
    evaluated_rules,
    fitted_column,
    fitted_rows,
    library_of,
    refuse_alike,
    require_rules,
    spelled,
    stored_rows,
    update_by_name,
)


def is_spark_rows(rows: object) -> bool:
    """Whether this is a DataFrame of Spark, classic or Connect. Imports neither."""
    return hasattr(rows, "sparkSession")


def write_frame(
    rows: Any,
    batch: Batch,
    *,
    operator: str,
    keys: Sequence[str],
    max_parallelism: int | None = None,
    deleted: str | None = None,
    replace: Replaced = False,
    ttl: StateTtlConfig | None = None,
) -> OperatorReport:
    """Append changed rows of `operator`: steps 2 and 3 for its state. Does not add the report.

    Few changes (64 KiB) wait in memory until step 3 ends, and share a file with those of other operators.
    Each row replaces the row of its key; a column that is left out becomes null. `replace` reads all key
    groups of the state, one of `KeyedState.ranges()` at a time, and holds what changes.

    Args:
        rows: a DataFrame, a table, or another form of `state.as_table`. Values go into the state's columns
            where these hold them without loss.
        deleted: the boolean column that says which rows delete their key; null means no. It is not part of
            the state.

    The other arguments are those of `dstl_dagster.spark.write_state`.

    Raises: InvalidInputError (kind `duplicate_key`, `schema_change`, `unsupported_type`, or a kind that says
    what else is wrong with the call).
    """
    what = f"state of operator {operator!r}"
    keys = parse_names("keys", keys)
    known = batch.schema(operator)
    table = as_table(rows, what)
    flags = None
    if deleted is not None:
        flags = _flags(table, deleted, what)
        table = table.drop_columns([deleted])
    table = fitted_rows(_with_keys(table, keys, known, what), known, what)
    state = StateToWrite.of(
        batch,
        operator,
        table.schema,
        keys,
        max_parallelism,
        ttl,
        replace=replace,
        deleted=deleted,
        case_sensitive=True,  # `write_rows` refuses what differs in case alone
    )
    if replace is not False:
        if state.filled is not None:
            table = _with_column(table, state.filled, pa.scalar(batch.time_us, PROCESSING_TIME_TYPE))
        table, flags = _replacing(table, state, _opened(batch, state), what)
    return _written(batch, state, table, flags)


def _with_column(table: pa.Table, name: str, value: pa.Scalar) -> pa.Table:
    others = table.drop_columns([name]) if name in table.column_names else table
    return others.append_column(name, pa.repeat(value, len(others)))


def _replacing(
    table: pa.Table, state: StateToWrite, before: KeyedState | None, what: str
) -> tuple[pa.Table, pa.ChunkedArray]:
    """What turns the rows of the scope into these: rows to write, and which of them are tombstones."""
    schema = state.schema
    pieces = GroupedRows(schema.conformed(table), schema).pieces()
    every = KeyGroupRange.of(0, schema.max_parallelism - 1)
    new = (Grouped.of(piece.rows, piece.groups) for piece in pieces)
    found = [*replacements(schema, before, every, new, state.scope, what)]
    # A tombstone has its key alone.
    changed = pa.concat_tables(
        [schema.columns.empty_table(), *(each.rows for each in found)], promote_options="default"
    )
    return changed, pa.chunked_array([each.deleted for each in found], pa.bool_())


def merge_frame(
    rows: Any,
    batch: Batch,
    *,
    operator: str,
    keys: Sequence[str],
    update: Mapping[str, Any],
    schema: Any,
    delete: Any = None,
    max_parallelism: int | None = None,
    ttl: StateTtlConfig | None = None,
) -> OperatorReport:
    """Merge rows, one per key, into the state of `operator`: steps 2 and 3. Does not add the report.

    As `dstl_dagster.spark.merge_state`, with the same results, for expressions in text: in Spark's SQL, and
    evaluated by DuckDB. What the two evaluate differently is refused (`state.rules`).

    Args:
        rows: a DataFrame, a table, or another form of `state.as_table`.
        schema: the state's columns in Spark's text, keys included; or a StructType.

    The other arguments are those of `merge_state`.

    Raises: InvalidInputError (kind `duplicate_key`, `schema_change`, `unsupported_type`, `not_installed`
    without DuckDB, or a kind that says what else is wrong with the call).
    """
    columns = declared_columns(schema, f"state of operator {operator!r}")
    state = StateToWrite.of(batch, operator, columns, keys, max_parallelism, ttl)
    return FrameMerge.of(batch, state, update, delete).written(rows)


class FrameMerge(NamedTuple):
    """The plan of `merge_frame`, before its rows are known.

    Attributes:
        what: names the state in errors.
        state: as the merge leaves it.
        updated: the columns of the first rules; one more rule says which keys are deleted.
    """

    batch: Batch
    what: str
    state: StateToWrite
    updated: tuple[str, ...]
    rules: list[Rule]

    @classmethod
    def of(cls, batch: Batch, state: StateToWrite, update: Mapping[str, Any], delete: Any) -> FrameMerge:
        """Arguments and errors: as `merge_frame`."""
        what = f"state of operator {state.operator!r}"
        expressions = update_by_name(update, state.schema, state.filled, what)
        rules = [
            _rule(text, state.schema.columns.field(name).type, f"{what}: update of column {name!r}")
            for name, text in expressions.items()
        ]
        if delete is not None:
            rules.append(_rule(delete, pa.bool_(), f"{what}: delete"))
        return cls(batch, what, state, tuple(expressions), rules)

    def require(self, columns: pa.Schema) -> None:
        """Pass if the rules can be evaluated over rows of these stored columns. Raises: as `merge_frame`."""
        require_rules(self.rules, self.state.schema.columns, self._new(columns.empty_table()).schema)

    def written(self, rows: Any) -> OperatorReport:
        """Merge these rows. Raises: as `merge_frame`."""
        batch, schema, new = self.batch, self.state.schema, self._new(rows)
        if not new.num_rows and self._known is not None:  # it may have no columns either
            return _written(batch, self.state, schema.columns.empty_table(), None)
        parts = [self._merged(piece.rows) for piece in GroupedRows(new, schema).pieces()]
        merged = pa.concat_tables([rows for rows, _ in parts])
        flags = pa.chunked_array([chunk for _, each in parts for chunk in each.chunks], pa.bool_())
        return _written(batch, self.state, merged, flags)

    def _merged(self, new: pa.Table) -> tuple[pa.Table, pa.ChunkedArray]:
        """What these rows change: rows to write, and which of them are tombstones."""
        batch, schema, filled = self.batch, self.state.schema, self.state.filled
        found = _beside_state(batch, self.state, new)
        values = evaluated_rules(self.rules, found.old, new, found.in_state, batch.time_us)
        deleted = np.zeros(new.num_rows, np.bool_)
        if len(values) > len(self.updated):
            deleted = values.pop().combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)
        updated = dict(zip(self.updated, values, strict=True))
        if filled is not None:
            updated[filled] = pa.repeat(pa.scalar(batch.time_us, PROCESSING_TIME_TYPE), new.num_rows)
        columns = [
            updated.get(name, (new if name in schema.key_columns else found.old).column(name))
            for name in schema.columns.names
        ]
        merged = pa.table(columns, schema=schema.columns)
        changed = pa.array(changed_rows(found.old, merged, found.in_state, deleted))
        return merged.filter(changed), pa.chunked_array([pa.array(deleted)]).filter(changed)

    @property
    def _known(self) -> StateSchema | None:
        return self.batch.schema(self.state.operator)

    def _new(self, rows: Any) -> pa.Table:
        return _new_rows(rows, self.state.schema, self._known, self.what)


def _rule(text: object, kind: pa.DataType, where: str) -> Rule:
    if not isinstance(text, str):
        raise InvalidInputError(
            f"{where}: an expression over rows in memory is text in SQL, not {type(text).__name__}"
        )
    return Rule(text, kind, where)


def _new_rows(rows: Any, schema: StateSchema, known: StateSchema | None, what: str) -> pa.Table:
    """The rows that came, with the key columns as the state spells and types them."""
    table = as_table(rows, what)
    table = table.rename_columns([*spelled(table.column_names, schema.key_columns, case_sensitive=False)])
    refuse_alike(table.column_names, what)
    table = stored_rows(_with_keys(table, schema.key_columns, known, what), what)
    for name in schema.key_columns:
        fitted = fitted_column(table.column(name), schema.columns.field(name).type, name, what)
        table = table.set_column(table.column_names.index(name), name, fitted)
    is_pandas = library_of(rows) == "pandas"
    for place, column in enumerate(table.columns):
        # Without values it is float64 in pandas, also where it has another type on other days.
        if is_pandas and pt.is_floating(column.type) and column.null_count == len(column):
            table = table.set_column(place, table.column_names[place], pa.nulls(len(column)))
    return table


def _beside_state(batch: Batch, to_write: StateToWrite, new: pa.Table) -> Beside:
    """The state's rows at the parent, by the batch's time. Raises: InvalidInputError (`duplicate_key`)."""
    schema = to_write.schema
    keys = new.select(list(schema.key_columns))
    state = _opened(batch, to_write)
    rows = schema.columns.empty_table() if state is None or not keys.num_rows else state.rows(keys)
    return beside(schema, rows, keys)


def _opened(batch: Batch, state: StateToWrite) -> KeyedState | None:
    before = state.before(batch)
    return None if before is None else before.opened(batch.coordinator.store, process_cache())


def _written(
    batch: Batch, state: StateToWrite, rows: pa.Table, deleted: pa.ChunkedArray | None
) -> OperatorReport:
    report = write_rows(
        rows,
        batch.attempt,
        batch.coordinator.store,
        operator=state.operator,
        schema=state.schema,
        deleted=deleted,
        options=batch.coordinator.job_options,
        ttl=state.ttl,
        shared=batch.shared_files,
    )
    # Unless the rows' times move it on.
    return report if state.time_column is not None else dataclasses.replace(report, ttl=state.ttl)


def _flags(table: pa.Table, deleted: object, what: str) -> pa.ChunkedArray:
    if not isinstance(deleted, str):
        raise InvalidInputError(f"{what}: without `update`, `delete` names a boolean column, not {deleted!r}")
    if deleted not in table.column_names:
        raise InvalidInputError(
            f"{what}: `delete` names column {deleted!r}, which is not among {table.column_names}"
        )
    column = table.column(deleted)
    if not (pt.is_boolean(column.type) or column.null_count == len(column)):
        raise InvalidInputError(
            f"{what}: `delete` names column {deleted!r}, which is {column.type}, not boolean"
        )
    return fitted_column(column, pa.bool_(), deleted, what)


def _with_keys(table: pa.Table, keys: Sequence[str], known: StateSchema | None, what: str) -> pa.Table:
    """The table, which has all key columns; an empty one of a state that exists needs none."""
    for name in keys:
        if name in table.column_names:
            continue
        if known is not None and name in known.key_columns and not table.num_rows:
            table = table.append_column(name, pa.nulls(0))
            continue
        raise InvalidInputError(f"{what}: key column {name!r} is not among the columns {table.column_names}")
    return table
