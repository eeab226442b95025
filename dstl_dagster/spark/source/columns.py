"""Which columns of a state a read gives to Spark, and whether a later state still has them.

Owns the match between Spark's columns and the state's: by name when the read is planned, and by id from then
on, since a column has its id for life and any name for a while. And which stored type may be read as which:
itself, or a wider one that holds every value (`state.wider_type`). Does not own reading rows (`source`), or
how Spark's types are stored (`spark.types`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import types as st

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.keyed import StateAt
from dstl_dagster.spark.types import arrow_schema, spark_schema
from dstl_dagster.state import StateSchema, has_fields_of, spelled, wider_type

_ANEW: Final = "start a query with a new checkpointLocation, which reads the whole state first"


@dataclass(frozen=True)
class ReadColumn:
    """A column as Spark names it, its id in the state, and the stored type in which it is read."""

    name: str
    column_id: str
    type: pa.DataType


@dataclass(frozen=True)
class ReadColumns:
    """Columns of a state, in Spark's order."""

    columns: tuple[ReadColumn, ...]

    @classmethod
    def of(
        cls, state: StateSchema, asked: st.StructType, operator: str, *, case_sensitive: bool = False
    ) -> ReadColumns:
        """Those that Spark expects of this state.

        Raises: InvalidInputError (kind `schema_change`) naming a column that the state does not have, or has
        in a type that does not widen to the one asked for; (kind `unsupported_type`).
        """
        what = f"state of operator {operator!r}"
        fields = arrow_schema(asked, what, case_sensitive=case_sensitive)
        names = spelled(fields.names, state.columns.names, case_sensitive=case_sensitive)
        found = []
        for name, field in zip(names, fields, strict=True):
            if name not in state.columns.names:
                raise _refusal(
                    f"the schema asks for column {field.name!r}, and the {what} has "
                    f"{', '.join(state.columns.names)}: leave it out, and add it to the DataFrame"
                )
            stored = state.columns.field(name).type
            if wider_type(stored, field.type) != field.type or not has_fields_of(stored, field.type):
                raise _refusal(
                    f"column {name!r} of the {what} is {_sql(stored)}, and the schema asks for "
                    f"{_sql(field.type)}, which does not hold each of its values: read it as it is, and cast "
                    "it afterwards"
                )
            found.append(ReadColumn(field.name, state.column_ids.of(name), field.type))
        return cls(tuple(found))

    def taken_from(self, rows: pa.Table, state: StateSchema) -> pa.Table:
        """These columns of rows that have the columns of `state`, as Spark names them."""
        names = dict(zip(state.ids, state.columns.names, strict=True))
        columns = [rows.column(names[each.column_id]).cast(each.type) for each in self.columns]
        return pa.table(columns, names=[each.name for each in self.columns])


@dataclass(frozen=True)
class FollowedColumns:
    """The columns of a query, bound to the state at one checkpoint, whose names and types never change.

    Attributes:
        checkpoint_id: the newest one when the query was planned.
        state: the columns there.
        read: those that the query reads.
        all_columns: that is every column, also one that is added later.
    """

    checkpoint_id: int
    state: StateSchema
    read: ReadColumns
    all_columns: bool

    @classmethod
    def of(
        cls, state: StateAt, asked: st.StructType, *, all_columns: bool, case_sensitive: bool
    ) -> FollowedColumns:
        """Raises: InvalidInputError, as `ReadColumns.of`."""
        read = ReadColumns.of(state.schema, asked, state.operator, case_sensitive=case_sensitive)
        return cls(state.checkpoint_id, state.schema, read, all_columns)

    def changes_in(self, state: StateAt) -> list[str]:
        """What this state's columns are that the query does not know; empty: its rows can be delivered.

        An older state is read in the newer columns, as everywhere. A newer one must have the query's own: a
        column that was renamed would be null, and one that was added would be left out.
        """
        if state.checkpoint_id <= self.checkpoint_id:
            return []
        now = dict(zip(state.schema.ids, state.schema.columns, strict=True))
        return [*self._changed(now), *self._added(now)]

    def _changed(self, now: dict[str, pa.Field]) -> Iterator[str]:
        before = dict(zip(self.state.ids, self.state.columns, strict=True))
        for each in self.read.columns:
            name, field = before[each.column_id].name, now.get(each.column_id)
            if field is None:
                yield f"{name!r} is gone (no row changes by that: drop it from a copy, too)"
            elif field.name != name:
                yield f"{name!r} is now {field.name!r} (no row changes by that: rename it in a copy, too)"
            elif wider_type(field.type, each.type) != each.type:
                yield f"{name!r} is now {_sql(field.type)} and was {_sql(each.type)}"

    def _added(self, now: dict[str, pa.Field]) -> Iterator[str]:
        known = set(self.state.ids) if self.all_columns else set(now)
        return (f"{field.name!r} was added" for column_id, field in now.items() if column_id not in known)

    def expected_of(self, state: StateAt) -> StateAt:
        """The same state with the query's columns, by their names, so that its rows compare with others.

        Raises: InvalidInputError (kind `schema_change`) if a value may not fit, as after a restore to before
        a column was widened; as `refuse_returned`.
        """
        types = dict(zip(state.schema.ids, state.schema.columns.types, strict=True))
        refuse_returned({each.column_id: each.name for each in self.read.columns}, state, _ANEW)
        for each in self.read.columns:
            stored = types.get(each.column_id, each.type)
            if wider_type(stored, each.type) != each.type:
                raise _refusal(
                    f"column {each.name!r} of operator {state.operator!r} is {_sql(stored)} at checkpoint "
                    f"{state.checkpoint_id} and {_sql(each.type)} now, which does not hold each of its "
                    f"values: {_ANEW}"
                )
        try:
            return replace(state, schema=self.state.covering(state.schema))
        except InvalidInputError as error:
            raise _refusal(
                f"checkpoints {state.checkpoint_id} and {self.checkpoint_id} of operator {state.operator!r} "
                f"have different columns of one name: {_ANEW}"
            ) from error


def newest_columns(newest: StateSchema, older: StateSchema) -> StateSchema:
    """The newest columns, in types that hold the older values, too; what else the older has is left out.

    Raises: InvalidInputError (kind `schema_change`) for types that no type holds, and other keys.
    """
    ids = newest.ids
    for name in [name for name, own in zip(older.columns.names, older.ids, strict=True) if own not in ids]:
        older = older.without(name)
    gone = {own: name for own, name in older.column_ids.dropped.items() if own not in ids}
    return newest.covering(replace(older, column_ids=replace(older.column_ids, dropped=gone)))


def refuse_returned(columns: Mapping[str, str], older: StateAt, way_out: str) -> None:
    """Pass unless one of these was dropped in the older state, and is there again by a restore or a swap.

    Changes do not have its values in rows that stay. `columns`: names by their ids.

    Raises: InvalidInputError (kind `schema_change`).
    """
    for own in older.schema.column_ids.dropped:
        if own in columns:
            raise _refusal(
                f"column {columns[own]!r} of operator {older.operator!r} was dropped at checkpoint "
                f"{older.checkpoint_id}, and is there again, by a restore or a swap: {way_out}"
            )


def _sql(stored: pa.DataType) -> str:
    return spark_schema(pa.schema({"x": stored}))[0].dataType.simpleString().upper()


def _refusal(what: str) -> InvalidInputError:
    return InvalidInputError(what, kind=ErrorKind.SCHEMA_CHANGE)
