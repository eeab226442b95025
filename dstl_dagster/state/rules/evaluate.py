"""The values of rules for many rows at once, by DuckDB.

Owns its connection, and the rows passed to it. Does not own what a rule means (`translate`). DuckDB is an
extra: it is imported where there is a rule, and reads nothing but these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.state.fitting import fitted_column
from dstl_dagster.state.pieces import cut
from dstl_dagster.state.rules.casts import as_type
from dstl_dagster.state.rules.parser import Name, Parser, RefusedError
from dstl_dagster.state.rules.translate import Scope, typed
from dstl_dagster.state.rules.types import INSTANT, duckdb_type, is_nested, quoted, unnamed
from dstl_dagster.state.text import refuse_raw_text

_RAW_TEXT: Final = "DuckDB, which evaluates the rules, has no such text: give it as binary"


@dataclass(frozen=True)
class Rule:
    """An expression of Spark's SQL over `old` and `new`.

    Attributes:
        text: as written.
        kind: the stored type of its values.
        where: names it in errors, as in `state of operator 'totals': update of column 'total'`.
    """

    text: str
    kind: pa.DataType
    where: str

    def error(self, reason: object) -> InvalidInputError:
        """Of this rule."""
        return InvalidInputError(f"{self.where} by {self.text!r}: {reason}")


def evaluated_rules(
    rules: Sequence[Rule], old: pa.Table, new: pa.Table, in_state: npt.NDArray[np.bool_], time_us: int
) -> list[pa.ChunkedArray]:
    """The values of each rule, one for each row.

    Args:
        old: the state's row of each row, in stored types; null in every column where it has none.
        new: the rows that came, in stored types; a column without a type is null.
        in_state: which rows have one in the state.
        time_us: the batch's time.

    Raises: InvalidInputError that names the rule: it is not understood, names what is not there, uses what
    DuckDB does not do as Spark does, or fails for a row (an overflow, a division by zero); kind
    `not_installed` without DuckDB.
    """
    scope, expressions, named = _translated(rules, old.schema, new.schema)
    sides = {"old": old, "new": new}
    found: dict[int, pa.ChunkedArray] = {
        number: fitted_column(sides[side].column(column), rules[number].kind, column, rules[number].where)
        for number, (side, column) in named.items()
    }
    if expressions:
        columns = {f"{side}.{name}": sides[side].column(name) for side, name in sorted(scope.seen)}
        columns["in_state"] = pa.array(in_state)
        columns["batch_time"] = pa.repeat(pa.scalar(time_us, INSTANT), len(in_state))
        columns["row_number"] = pa.array(np.arange(len(in_state)))
        rows = pa.table(columns)
        refuse_raw_text(rows, _RAW_TEXT)
        pieces = [rows.slice(start, stop - start) for start, stop in cut(rows)]
        values = pa.concat_tables([_by_duckdb(piece, expressions, rules) for piece in pieces])
        for place, number in enumerate(expressions):
            rule = rules[number]
            found[number] = fitted_column(values.column(place), rule.kind, rule.text, rule.where)
    return [found[number] for number in range(len(rules))]


def require_rules(rules: Sequence[Rule], old: pa.Schema, new: pa.Schema) -> None:
    """Pass if these rules can be evaluated over rows of these columns. Raises: as `evaluated_rules`."""
    _, expressions, _ = _translated(rules, old, new)
    if expressions:
        _duckdb(rules[0])


def _translated(
    rules: Sequence[Rule], old: pa.Schema, new: pa.Schema
) -> tuple[Scope, dict[int, str], dict[int, tuple[str, str]]]:
    """The scope of the rules, DuckDB's SQL of each by its number, and the (side, name) of a column alone."""
    scope = Scope(
        old=dict(zip(old.names, old.types, strict=True)),
        new=dict(zip(new.names, new.types, strict=True)),
        seen=set(),
    )
    expressions: dict[int, str] = {}
    named: dict[int, tuple[str, str]] = {}
    for number, rule in enumerate(rules):
        try:
            tree = Parser(rule.text).whole()
            as_it_is = is_nested(rule.kind) or duckdb_type(rule.kind) is None
            if as_it_is and isinstance(tree, Name) and len(tree.parts) <= 2:
                side, column, _ = scope.column(tree)
                named[number] = side, column
            else:
                expressions[number] = as_type(typed(tree, scope), unnamed(rule.kind)).sql
        except RefusedError as error:
            raise rule.error(error) from error
    return scope, expressions, named


def _by_duckdb(rows: pa.Table, expressions: dict[int, str], rules: Sequence[Rule]) -> pa.Table:
    """A column for each expression; text with wide offsets, for it may be longer than the rows' own."""
    duckdb = _duckdb(rules[0])
    config = {"enable_external_access": "false", "arrow_large_buffer_size": "true"}
    with duckdb.connect(":memory:", config=config) as connection:
        connection.register("merged", rows)
        try:
            return _selected(connection, [*expressions.values()])
        except duckdb.Error as error:
            for number, expression in expressions.items():
                try:
                    _selected(connection, [expression])
                except duckdb.Error as own:
                    raise rules[number].error(_first_line(own)) from own
            raise InvalidInputError(f"{rules[0].where}: {_first_line(error)}") from error


def _selected(connection: Any, expressions: Sequence[str]) -> pa.Table:
    columns = ", ".join(f"{each} AS {quoted(f'c{place}')}" for place, each in enumerate(expressions))
    # Nothing of it comes from outside: names are quoted, and all else was translated.
    found: pa.Table = connection.sql(f"SELECT {columns} FROM merged ORDER BY row_number").to_arrow_table()  # noqa: S608
    return found


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _duckdb(rule: Rule) -> Any:
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            f"{rule.where}: rules on rows in memory are evaluated by DuckDB, which is not installed: "
            "pip install dstl-dagster[duckdb]",
            kind=ErrorKind.NOT_INSTALLED,
        ) from error
    return duckdb
