"""A condition on columns as text in SQL, such as `airport = 'JFK' AND day >= '2026-11-01'`. Pure.

Owns its grammar, and the rows of a state that pass. Does not own which key groups such rows can be in
(`lookup`).

A comparison is a column, one of `=`, `!=`, `<`, `<=`, `>`, `>=`, and a literal; or `IN`, `BETWEEN`, `IS
NULL`. Comparisons are joined by AND, and these by OR, which binds less; there are no parentheses around them.
A literal is read in the column's type. As in SQL, another comparison with a null does not pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed.lookup import as_expression, key_groups_of_filters
from dstl_dagster.keyed.replace import Scope
from dstl_dagster.state import StateSchema, spelled

__all__ = ["Condition", "Replaced", "parsed_filters", "replaced_scope"]

Comparison = tuple[str, str, Any]
"""A column, an operator, and a value or a list of them, as in `scan.Filters`."""

Replaced: TypeAlias = bool | str | Scope
"""What new rows take the place of: all rows, or those of a condition on key columns; False: nothing."""

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<name>`(?:[^`]|``)+`)|(?P<number>[+-]?\d+(?:\.\d+)?)"
    r"|(?P<sign><=|>=|<>|!=|==|[=<>(),])|(?P<word>[^\W\d]\w*))"
)
_SIGNS: Final = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_NUMBER: Final = "\N{NULL}row"


def parsed_filters(text: str, columns: pa.Schema) -> list[list[Comparison]]:
    """The condition as alternatives of comparisons that hold together, with values of the columns' types.

    Names are as in `columns`, in any case of letters where that is one column.

    Raises: InvalidInputError that says where the text cannot be read, or which literal is no value.
    """
    return _Reader(text, columns).read()


@dataclass(frozen=True)
class Condition:
    """The rows of a state that pass a condition. A plain value that can be sent to tasks."""

    text: str
    alternatives: tuple[tuple[Comparison, ...], ...]

    @classmethod
    def of(cls, text: str, schema: StateSchema) -> Condition:
        """Raises: InvalidInputError as `parsed_filters`."""
        return cls(text, tuple(map(tuple, parsed_filters(text, schema.columns))))

    @property
    def columns(self) -> set[str]:
        return {column for alternative in self.alternatives for column, _, _ in alternative}

    def key_groups(self, schema: StateSchema) -> tuple[KeyGroupRange, ...] | None:
        """Those that can have such rows, ascending; `None`: all."""
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


def replaced_scope(replace: Replaced, schema: StateSchema, deleted: object = None) -> Scope | None:
    """What is replaced, if anything is; `None`: the whole state. `deleted`: another argument of the write.

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


class _Reader:
    def __init__(self, text: str, columns: pa.Schema) -> None:
        self._text = text
        self._columns = columns
        self._tokens = self._split()
        self._next = 0

    def _split(self) -> list[tuple[str, str]]:
        """Kind and text of each token; the last one is empty."""
        found, at = [], 0
        while self._text[at:].strip():
            match = _TOKEN.match(self._text, at)
            if match is None:
                raise self._refusal(self._text[at:].split()[0])
            found.append((str(match.lastgroup), match[str(match.lastgroup)]))
            at = match.end()
        return [*found, ("end", "")]

    def read(self) -> list[list[Comparison]]:
        alternatives = [[*self._comparison()]]
        while self._tokens[self._next][0] != "end":
            if self._taken("OR"):
                alternatives.append([*self._comparison()])
            elif self._taken("AND"):
                alternatives[-1] += self._comparison()
            else:
                raise self._refusal(self._tokens[self._next][1])
        return alternatives

    def _comparison(self) -> Iterator[Comparison]:
        kind, text = self._take()
        if kind not in ("word", "name"):
            raise self._refusal(text)
        name = text[1:-1].replace("``", "`") if kind == "name" else text
        (name,) = spelled([name], self._columns.names, case_sensitive=False)
        if name not in self._columns.names:
            raise InvalidInputError(
                f"{self._text!r} names column {name!r}, and there are {', '.join(self._columns.names)}"
            )
        if self._taken("BETWEEN"):
            yield name, ">=", self._literal(name)
            self._expect("AND")
            yield name, "<=", self._literal(name)
            return
        if self._taken("IN"):
            yield name, "in", self._literals(name)
        elif self._taken("NOT"):
            self._expect("IN")
            yield from ((name, "!=", value) for value in self._literals(name))
        elif self._taken("IS"):
            negated = self._taken("NOT")
            self._expect("NULL")
            yield name, "!=" if negated else "=", None
        else:
            _, sign = self._take()
            if sign not in _SIGNS:
                raise self._refusal(sign)
            yield name, _SIGNS[sign], self._literal(name)

    def _literals(self, name: str) -> list[Any]:
        self._expect("(")
        found = [self._literal(name)]
        while self._taken(","):
            found.append(self._literal(name))
        self._expect(")")
        return found

    def _literal(self, name: str) -> Any:
        _ = self._taken("DATE") or self._taken("TIMESTAMP")
        kind, text = self._take()
        stored = self._columns.field(name).type
        is_text = pt.is_string(stored) or pt.is_binary(stored)
        if kind == "text":
            text = text[1:-1].replace("''", "'")
        elif kind not in ("number", "word") or (kind == "word" and text.upper() not in ("TRUE", "FALSE")):
            raise self._refusal(text)
        if is_text and kind != "text":
            raise InvalidInputError(f"{self._text!r}: column {name!r} is text: write '{text}', not {text}")
        try:
            return pa.scalar(text.lower() if kind == "word" else text).cast(stored).as_py()
        except pa.ArrowException as error:
            raise InvalidInputError(
                f"{self._text!r}: {text!r} is no value of column {name!r}, which is {stored}"
            ) from error

    def _take(self) -> tuple[str, str]:
        token = self._tokens[self._next]
        if token[0] != "end":
            self._next += 1
        return token

    def _taken(self, word: str) -> bool:
        kind, text = self._tokens[self._next]
        if kind not in ("word", "sign") or text.upper() != word:
            return False
        self._next += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._taken(word):
            raise self._refusal(self._tokens[self._next][1])

    def _refusal(self, at: str) -> InvalidInputError:
        where = f"cannot be read at {at!r}" if at else "ends too early"
        return InvalidInputError(
            f"condition {self._text!r} {where}: write comparisons of columns with literals, such as "
            "airport = 'JFK' AND day >= '2026-11-01'"
        )
