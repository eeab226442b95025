"""A condition on columns as text in SQL, such as `airport = 'JFK' AND day >= '2026-11-01'`. Pure.

Owns which of Spark's SQL it may use, and the rows of a state that pass. Does not own the grammar
(`state.rules`), or which key groups such rows can be in (`lookup`).

A comparison is a column, one of `=`, `!=`, `<`, `<=`, `>`, `>=`, and a literal; or `IN`, `BETWEEN`, `IS
NULL`. Comparisons are joined by AND and OR. A literal is read in the column's type. As in SQL, another
comparison with a null does not pass.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed.read.lookup import as_expression, key_groups_of_filters
from dstl_dagster.state import StateSchema, spelled
from dstl_dagster.state.rules.parser import Call, Literal, Name, Node, Parser, RefusedError

Comparison = tuple[str, str, Any]
"""A column, an operator, and a value or a list of them, as in `scan.Filters`."""


class Scope(Protocol):
    """Which rows of a state are replaced. It goes by keys alone: of a key, all rows are in it, or none."""

    def holds(self, rows: pa.Table) -> pa.BooleanArray:
        """For each row, whether it is. `rows` have the key columns. Raises: InvalidInputError if the columns
        have types that the scope cannot evaluate.
        """
        ...

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Of a state that begins with such rows; none for a scope that is of no partitions."""
        ...

    def key_groups(self, schema: StateSchema) -> tuple[KeyGroupRange, ...] | None:
        """Those of a state that can have such rows, ascending; `None`: all."""
        ...

    def __str__(self) -> str:
        """As it stands after "is not in"."""
        ...


Replaced: TypeAlias = bool | str | Scope
"""The rows that new rows replace: all rows, or those of a condition on key columns; False: nothing."""

_SIGNS: Final = {"=": "=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_NUMBER: Final = "\N{NULL}row"


def parsed_filters(text: str, columns: pa.Schema) -> list[list[Comparison]]:
    """The condition as alternatives of comparisons that hold together, with values of the columns' types.

    Names are as in `columns`, in any case of letters where that is one column.

    Raises: InvalidInputError that says what of it cannot be used.
    """
    try:
        return _alternatives(Parser(text).whole(), columns)
    except RefusedError as error:
        raise InvalidInputError(
            f"condition {text!r}: {error}. Write comparisons of columns with literals, such as "
            "airport = 'JFK' AND day >= '2026-11-01'"
        ) from error


@dataclass(frozen=True)
class Condition:
    """The rows of a state that pass a condition. A plain value that can be sent to tasks."""

    text: str
    alternatives: tuple[tuple[Comparison, ...], ...]

    @classmethod
    def of(cls, text: str, schema: StateSchema) -> Condition:
        """Raises: InvalidInputError as `parsed_filters`."""
        return cls(text, tuple(map(tuple, parsed_filters(text, schema.columns))))

    partition_columns = ()

    @property
    def columns(self) -> set[str]:
        return {column for alternative in self.alternatives for column, _, _ in alternative}

    def key_groups(self, schema: StateSchema) -> tuple[KeyGroupRange, ...] | None:
        return key_groups_of_filters(self.alternatives, schema)

    def holds(self, rows: pa.Table) -> pa.BooleanArray:
        """For each row, whether it passes."""
        numbered = rows.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
        passed = numbered.filter(as_expression(self.alternatives, rows.schema))
        held = np.zeros(rows.num_rows, np.bool_)
        held[passed.column(_NUMBER).to_numpy()] = True
        return pa.array(held)

    def __str__(self) -> str:
        return f"the rows where {self.text}"


def partition_columns_of(replace: Replaced) -> tuple[str, ...]:
    """The partition columns of a state that begins with such rows. Raises: InvalidInputError."""
    if isinstance(replace, (bool, str)):
        return ()
    if not hasattr(replace, "partition_columns"):
        raise InvalidInputError(
            f"replace is True, False, or a condition such as \"airport = 'JFK'\", not {replace!r}"
        )
    return replace.partition_columns


def replaced_scope(replace: Replaced, schema: StateSchema, deleted: object = None) -> Scope | None:
    """The replaced scope, if any; `None`: the whole state. `deleted`: another argument of the write.

    Raises: InvalidInputError as `Condition.of`, for a column that is no key, and if `deleted` says which keys
    go as well.
    """
    if deleted is not None:
        raise InvalidInputError("rows that replace others name no deleted ones: a key that gets no row goes")
    if not isinstance(replace, str):
        return None if isinstance(replace, bool) else replace
    condition = Condition.of(replace, schema)
    for name in sorted(condition.columns - {*schema.key_columns}):
        raise InvalidInputError(
            f"{replace!r} names column {name!r}, and rows are replaced by their key columns alone: "
            f"{', '.join(schema.key_columns)}"
        )
    return condition


def _alternatives(node: Node, columns: pa.Schema) -> list[list[Comparison]]:
    """Comparisons of which all hold in one of these lists. Raises: RefusedError."""
    match node:
        case Call("or", parts):
            return [each for part in parts for each in _alternatives(part, columns)]
        case Call("and", parts):
            chosen = itertools.product(*(_alternatives(part, columns) for part in parts))
            return [list(itertools.chain(*each)) for each in chosen]
        case Call("isnull", (Name() as name,)):
            return [[(_column(name, columns), "=", None)]]
        case Call("not", (Call("isnull", (Name() as name,)),)):
            return [[(_column(name, columns), "!=", None)]]
        case Call("in", (Name() as name, *values)) if values:
            column = columns.field(_column(name, columns))
            if pt.is_floating(column.type):  # of which `in` tells -0.0 from 0.0
                equals = (Call("=", (name, each)) for each in values)
                return [each for equal in equals for each in _alternatives(equal, columns)]
            return [[(column.name, "in", [_value(each, column) for each in values])]]
        case Call("not", (Call("in", (Name() as name, *values)),)) if values:
            column = columns.field(_column(name, columns))
            return [[each for value in values for each in _compared(column, "!=", _value(value, column))[0]]]
        case Call(sign, (Name() as name, value)) if sign in _SIGNS:
            column = columns.field(_column(name, columns))
            return _compared(column, _SIGNS[sign], _value(value, column))
    raise RefusedError("a part of it is no comparison of a column with a literal")


def _compared(column: pa.Field, sign: str, value: Any) -> list[list[Comparison]]:
    """As in SQL, where NaN is equal to itself, and larger than any other number."""
    name, is_nan = column.name, (column.name, "in", [math.nan])
    if value == value:  # no NaN
        larger = [[is_nan]] if sign in (">", ">=") and pt.is_floating(column.type) else []
        return [[(name, sign, value)], *larger]
    is_number: Comparison = (name, "!=", None)
    match sign:
        case "=" | ">=":
            return [[is_nan]]
        case "!=" | "<":
            return [[(name, "not in", [math.nan]), is_number]]
        case "<=":
            return [[is_number]]
    return [[(name, "in", [])]]


def _column(name: Name, columns: pa.Schema) -> str:
    (found,) = spelled([".".join(name.parts)], columns.names, case_sensitive=False)
    if found not in columns.names:
        raise RefusedError(f"it names column {found!r}, and there are {', '.join(columns.names)}")
    return found


def _value(node: Node, column: pa.Field) -> Any:
    if not isinstance(node, Literal) or node.kind == "null":
        raise RefusedError(f"column {column.name!r} is compared with what is no literal, or with NULL")
    is_text = pt.is_string(column.type) or pt.is_binary(column.type)
    if is_text and node.kind != "text":
        raise RefusedError(f"column {column.name!r} is text: write '{node.text}', not {node.text}")
    try:
        return pa.scalar(node.text).cast(column.type).as_py()
    except pa.ArrowException as error:
        raise RefusedError(
            f"{node.text!r} is no value of column {column.name!r}, which is {column.type}"
        ) from error
