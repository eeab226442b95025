"""A rule's tree as DuckDB's SQL that gives what Spark's gives.

Owns names, types and what each function means, by Spark's default settings (ANSI). Does not own the grammar
(`parser`), or how DuckDB is run (`evaluate`).

Where both agree the translation is word for word, with each value cast to its type first, so that DuckDB has
none of its own conversions to make. Where they differ:

    numbers / 0, double to whole, -x, AND, OR, ||   translated: CASE and casts around DuckDB's own
    decimal / decimal, more than 38 digits          refused: Spark rounds
    text to and from numbers and times              refused: other texts are numbers, and look otherwise
    time stamps to dates and to those without zone  refused: Spark's answer depends on its session
    comparing arrays or structs, maps               refused: nulls and names in them count otherwise
    any other function                              refused: not known to agree
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.state.rules import nested
from dstl_dagster.state.rules.casts import Typed, as_type, may_fail, same_kind
from dstl_dagster.state.rules.parser import (
    Call,
    Case,
    Cast,
    Field,
    Literal,
    Name,
    Node,
    Parser,
    RefusedError,
    UnfinishedError,
    nodes_of,
)
from dstl_dagster.state.rules.types import (
    INSTANT,
    MAX_DIGITS,
    as_decimal,
    common_type,
    decimal_of,
    duckdb_type,
    is_decimal,
    is_nested,
    named_type,
    quoted,
    quoted_text,
    spark_name,
    unnamed,
)
from dstl_dagster.state.schema import spelled

_COMPARISONS: Final = {
    "=": "=",
    "<>": "<>",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
    "<=>": "IS NOT DISTINCT FROM",
}
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?")
_NUMBER: Final = re.compile(
    r"(?P<digits>-?[\d.]+)(?P<exponent>[eE][+-]?\d+)?(?P<suffix>BD|[LSYDF])?", re.IGNORECASE
)
_OF_SUFFIX: Final = {"Y": pa.int8(), "S": pa.int16(), "L": pa.int64()}
_KNOWN: Final = "+ - * / = <> < > <= >= <=> AND OR NOT IN BETWEEN IS CASE CAST || [] named_struct"
_NOT_DETERMINISTIC: Final = (
    *("rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle"),
    *("monotonically_increasing_id", "spark_partition_id"),
    *("input_file_name", "input_file_block_start", "input_file_block_length"),
    *("reflect", "java_method", "try_reflect"),
)


@dataclass(frozen=True)
class Scope:
    """The names for a rule: the types of `new` and `old`, by column. As in Spark, case does not count.

    `seen`: gets (side, column) of each one that is named.
    """

    new: Mapping[str, pa.DataType]
    old: Mapping[str, pa.DataType]
    seen: set[tuple[str, str]]

    def side(self, name: Name) -> str | None:
        """`old` or `new`, if it names the whole row."""
        (first, *rest) = name.parts
        return first.lower() if not rest and first.lower() in ("old", "new") else None

    def column(self, name: Name) -> tuple[str, str, pa.DataType]:
        """Its side, its name as it is spelled there, and its type. Raises: RefusedError."""
        shown = ".".join(name.parts)
        side = name.parts[0].lower()
        if side not in ("old", "new"):
            raise RefusedError(
                f"{shown} is neither old.COLUMN, of the state's row, nor new.COLUMN, of the row that came"
            )
        if len(name.parts) == 1:
            raise RefusedError(f"{shown} is a whole row: name a column of it, or use `{shown} IS NULL`")
        kinds = self.old if side == "old" else self.new
        wanted = name.parts[1]
        alike = [wanted] if wanted in kinds else [each for each in kinds if each.lower() == wanted.lower()]
        if len(alike) != 1:
            raise RefusedError(f"there is no column {shown}: {side} has {', '.join(kinds)}")
        return side, alike[0], kinds[alike[0]]


def typed(node: Node, scope: Scope) -> Typed:
    """The expression, in the type that Spark gives it. Raises: RefusedError."""
    match node:
        case Literal():
            return _literal(node)
        case Name((side, column, *fields)) if fields:
            return reduce(nested.field_of, fields, _named(Name((side, column)), scope))
        case Name():
            return _named(node, scope)
        case Field():
            return nested.field_of(typed(node.value, scope), node.name)
        case Cast():
            return as_type(typed(node.value, scope), named_type(node.kind))
        case Case():
            return _case(node, scope)
        case Call("isnull", (Name() as name,)) if scope.side(name):
            return _row_is_null(name, scope)
        case Call("isnotnull", (Name() as name,)) if scope.side(name):
            return Typed(pa.bool_(), f"(NOT {_row_is_null(name, scope).sql})")
        case Call("named_struct", arguments):
            return _struct(arguments, scope)
        case Call():
            return _call(node.name, [typed(each, scope) for each in node.arguments])


def _row_is_null(name: Name, scope: Scope) -> Typed:
    return Typed(pa.bool_(), "(NOT in_state)" if scope.side(name) == "old" else "false")


def _named(name: Name, scope: Scope) -> Typed:
    if len(name.parts) == 1 and name.parts[0].lower() == "current_timestamp":
        return Typed(INSTANT, "batch_time")
    side, column, kind = scope.column(name)
    kind = unnamed(kind)
    if pt.is_null(kind):
        return Typed.null(kind)
    if duckdb_type(kind) is None:
        raise RefusedError(f"{side}.{column} is {kind}: a rule on rows in memory only takes it over as it is")
    scope.seen.add((side, column))
    return Typed(kind, quoted(f"{side}.{column}"))


def _struct(arguments: Sequence[Node], scope: Scope) -> Typed:
    names = arguments[::2]
    if len(arguments) % 2 or not all(isinstance(each, Literal) and each.kind == "text" for each in names):
        raise RefusedError("named_struct takes a name in quotes before each value")
    values = [typed(each, scope) for each in arguments[1::2]]
    return nested.struct_of([each.text for each in names if isinstance(each, Literal)], values)


def _literal(literal: Literal) -> Typed:
    text = literal.text
    match literal.kind:
        case "null":
            return Typed.null(pa.null())
        case "boolean":
            return Typed(pa.bool_(), text)
        case "text":
            if "\0" in text:
                raise RefusedError("a text with a zero byte")
            return Typed(pa.string(), f"CAST({quoted_text(text)} AS VARCHAR)")
        case "number":
            return _number(text)
        case "date" if _DAY.fullmatch(text):
            return Typed(pa.date32(), f"CAST({quoted_text(text)} AS DATE)")
        case "timestamp_ntz" if _TIME.fullmatch(text):
            return Typed(pa.timestamp("us"), f"CAST({quoted_text(text)} AS TIMESTAMP)")
    raise RefusedError(
        f"{literal.kind.upper()} {text!r}: write DATE '2001-01-31' or TIMESTAMP_NTZ "
        "'2001-01-31 12:00:00'; a time stamp with a zone depends on Spark's session"
    )


def _number(text: str) -> Typed:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise RefusedError(f"the number {text}")
    digits, exponent, suffix = match["digits"], match["exponent"], (match["suffix"] or "").upper()
    if suffix == "F":
        raise RefusedError(f"the number {text}: write it without F")
    if suffix == "D" or (exponent and not suffix):
        return Typed(pa.float64(), f"CAST('{digits}{exponent or ''}' AS DOUBLE)")
    if exponent:
        raise RefusedError(f"the number {text}: write a decimal without an exponent")
    if "." in digits or suffix == "BD":
        whole, _, fraction = digits.lstrip("-").partition(".")
        size = len(whole.lstrip("0")) + len(fraction)
        kind = decimal_of(max(size, len(fraction), 1), len(fraction))
        return Typed(kind, f"CAST('{digits}' AS {duckdb_type(kind)})")
    number = int(digits)
    fitting = [kind for kind in (pa.int32(), pa.int64()) if _holds(kind, number)]
    kind = _OF_SUFFIX.get(suffix, fitting[0] if fitting else decimal_of(len(str(abs(number))), 0))
    if pt.is_integer(kind) and not _holds(kind, number):
        raise RefusedError(f"the number {text} is out of the range of {spark_name(kind)}")
    return Typed(kind, f"CAST('{number}' AS {duckdb_type(kind)})")


def _holds(kind: pa.DataType, number: int) -> bool:
    bound = 1 << (kind.bit_width - 1)
    return bool(-bound <= number < bound)


def _case(case: Case, scope: Scope) -> Typed:
    conditions = [_boolean(typed(each, scope), "WHEN") for each, _ in case.branches]
    values = [typed(each, scope) for _, each in case.branches]
    if case.otherwise is not None:
        values.append(typed(case.otherwise, scope))
    return _chosen(conditions, values)


def _chosen(conditions: Sequence[Typed], values: Sequence[Typed]) -> Typed:
    """CASE; one value more than conditions is what ELSE says."""
    same = same_kind(values)
    whens = " ".join(f"WHEN {c.sql} THEN {v.sql}" for c, v in zip(conditions, same, strict=False))
    otherwise = f" ELSE {same[-1].sql}" if len(same) > len(conditions) else ""
    return Typed(same[0].kind, f"(CASE {whens}{otherwise} END)", may_fail([*conditions, *same]))


def _boolean(value: Typed, where: str) -> Typed:
    if pt.is_null(value.kind) and where != "WHEN":  # as in Spark
        return Typed.null(pa.bool_())
    if not pt.is_boolean(value.kind):
        raise RefusedError(f"{where} takes BOOLEAN, not {spark_name(value.kind)}")
    return value


def _call(name: str, values: list[Typed]) -> Typed:
    if name in _COMPARISONS:
        return _compared(_COMPARISONS[name], *values)
    if name in ("+", "-", "*"):
        return _calculated(name, *values)
    known = _FUNCTIONS.get(name)
    if known is not None:
        least, most, function = known
        if not least <= len(values) <= most:
            raise RefusedError(f"{name}() takes {least} to {most} values, not {len(values)}")
        return function(values)
    if name.lower() in _NOT_DETERMINISTIC:
        raise RefusedError(
            f"{name}() gives another value each time, so a repeated batch would write other rows"
        )
    raise RefusedError(
        f"{name} is not known to mean the same in DuckDB, by which rows in memory are merged, as in Spark; "
        f"these are: {_KNOWN} {' '.join(sorted(_FUNCTIONS.keys() - {*_KNOWN.lower().split(), 'negative'}))}"
    )


def refuse_unfinished(text: str, columns: Sequence[str], where: str) -> None:
    """Refuse what no engine evaluates: text that is no whole expression, a column that `old` does not have,
    a function that gives another value each time. SQL beyond that of rules passes, for Spark may know it.

    Raises: InvalidInputError.
    """
    try:
        tree = Parser(text).whole()
    except UnfinishedError as error:
        raise InvalidInputError(f"{where}: {text!r} is no whole expression: {error}") from error
    except RefusedError:
        return
    for node in nodes_of(tree):
        if isinstance(node, Call) and node.name in _NOT_DETERMINISTIC:
            raise InvalidInputError(
                f"{where}: {node.name}() gives another value each time, so a repeated batch would write "
                "other rows"
            )
        if isinstance(node, Name) and len(node.parts) > 1 and node.parts[0].lower() == "old":
            (column,) = spelled([node.parts[1]], columns, case_sensitive=False)
            if column not in columns:
                raise InvalidInputError(f"{where}: the state has no column {column!r}: {', '.join(columns)}")


def columns_of_new(text: str) -> set[str]:
    """The columns of `new` that an expression names; none of SQL beyond that of rules."""
    try:
        names = [node for node in nodes_of(Parser(text).whole()) if isinstance(node, Name)]
    except RefusedError:
        return set()
    return {name.parts[1] for name in names if len(name.parts) > 1 and name.parts[0].lower() == "new"}


def _ordered(values: Sequence[Typed]) -> list[Typed]:
    """`same_kind`, of values that are compared."""
    same = same_kind(values)
    if is_nested(same[0].kind):
        raise RefusedError(f"{spark_name(same[0].kind)} is compared, which rules on rows in memory cannot")
    return same


def _compared(sign: str, left: Typed, right: Typed) -> Typed:
    left, right = _ordered([left, right])
    if sign != _COMPARISONS["<=>"] and (left.is_null or right.is_null):
        return Typed.null(pa.bool_())
    return Typed(pa.bool_(), f"({left.sql} {sign} {right.sql})", may_fail([left, right]))


def _calculated(sign: str, left: Typed, right: Typed) -> Typed:
    kind = _numbers(sign, [left, right])
    if any(each.is_null for each in (left, right)):
        return Typed.null(kind)
    if is_decimal(kind):
        return _of_decimals(sign, left, right)
    left, right = as_type(left, kind), as_type(right, kind)
    return Typed(kind, f"({left.sql} {sign} {right.sql})", True)


def _numbers(what: str, values: Sequence[Typed]) -> pa.DataType:
    for each in values:
        if not (
            pt.is_integer(each.kind)
            or pt.is_floating(each.kind)
            or is_decimal(each.kind)
            or pt.is_null(each.kind)
        ):
            raise RefusedError(f"{what} takes numbers, not {spark_name(each.kind)}")
    kind = common_type(each.kind for each in values)
    return pa.float64() if pt.is_null(kind) else kind


def _of_decimals(sign: str, left: Typed, right: Typed) -> Typed:
    """In the type that Spark gives the result, in which no digit is lost."""
    one, other = (as_decimal(kind) for kind in (left.kind, right.kind))
    if sign == "*":
        kind = decimal_of(one.precision + other.precision + 1, one.scale + other.scale)
        # Of two short decimals DuckDB makes one of 18 digits.
        longer = pa.decimal128(max(one.precision, MAX_DIGITS - other.precision), one.scale)
        left, right = as_type(left, longer), as_type(right, other)
    else:
        scale = max(one.scale, other.scale)
        kind = decimal_of(max(one.precision - one.scale, other.precision - other.scale) + scale + 1, scale)
        left, right = as_type(left, kind), as_type(right, kind)
    sql = f"CAST(({left.sql} {sign} {right.sql}) AS {duckdb_type(kind)})"
    return Typed(kind, sql, may_fail([left, right]))


def _divided(values: list[Typed]) -> Typed:
    kind = _numbers("/", values)
    if is_decimal(kind):
        raise RefusedError(
            "/ of decimals: Spark rounds the result, and DuckDB divides doubles: CAST one to DOUBLE"
        )
    left, right = (as_type(each, pa.float64()) for each in values)
    if left.is_null or right.is_null:
        return Typed.null(pa.float64())
    guard = (
        f"CASE WHEN {left.sql} IS NOT NULL AND {right.sql} = 0 THEN CAST(error('division by zero') AS DOUBLE)"
    )
    return Typed(pa.float64(), f"({guard} ELSE {left.sql} / {right.sql} END)", True)


def _negative(values: list[Typed]) -> Typed:
    (value,) = values
    kind = _numbers("-", values)
    if value.is_null:
        return Typed.null(kind)
    if pt.is_integer(value.kind):
        # DuckDB's own minus may give a longer number.
        return Typed(value.kind, f"(CAST(0 AS {duckdb_type(value.kind)}) - {value.sql})", True)
    return Typed(value.kind, f"(- {value.sql})", value.may_fail)


def _absolute(values: list[Typed]) -> Typed:
    (value,) = values
    kind = _numbers("abs", values)
    return Typed.null(kind) if value.is_null else Typed(value.kind, f"abs({value.sql})", True)


def _logic(sign: str, decided: str) -> Callable[[list[Typed]], Typed]:
    """AND is false where an earlier part is, even if a later one fails; so is OR true."""

    def chain(values: list[Typed]) -> Typed:
        parts = [_boolean(each, sign) for each in values]
        sql = f" {sign} ".join(each.sql for each in parts)
        if not may_fail(parts[1:]):
            return Typed(pa.bool_(), f"({sql})", may_fail(parts))
        whens = " ".join(f"WHEN {each.sql} IS {decided} THEN {decided}" for each in parts[:-1])
        return Typed(pa.bool_(), f"(CASE {whens} ELSE ({sql}) END)", True)

    return chain


def _negated(values: list[Typed]) -> Typed:
    value = _boolean(values[0], "NOT")
    return value if value.is_null else Typed(pa.bool_(), f"(NOT {value.sql})", value.may_fail)


def _of_same_kind(
    name: str, same_kind_of: Callable[[Sequence[Typed]], list[Typed]]
) -> Callable[[list[Typed]], Typed]:
    def call(values: list[Typed]) -> Typed:
        same = same_kind_of(values)
        return Typed(same[0].kind, f"{name}({', '.join(each.sql for each in same)})", may_fail(same))

    return call


def _among(values: list[Typed]) -> Typed:
    value, *others = _ordered(values)
    if not others:
        raise RefusedError("IN takes at least one value")
    return Typed(
        pa.bool_(),
        f"({value.sql} IN ({', '.join(each.sql for each in others)}))",
        may_fail([value, *others]),
    )


def _is_null(values: list[Typed]) -> Typed:
    return Typed(pa.bool_(), f"({values[0].sql} IS NULL)", values[0].may_fail)


def _is_not_null(values: list[Typed]) -> Typed:
    return Typed(pa.bool_(), f"({values[0].sql} IS NOT NULL)", values[0].may_fail)


def _joined(values: list[Typed]) -> Typed:
    """Unlike DuckDB's function of this name, null if one of them is."""
    if any(pt.is_list(each.kind) for each in values):
        return nested.joined_arrays(values)
    texts = [as_type(each, pa.string()) for each in values]
    if any(each.is_null for each in texts):
        return Typed.null(pa.string())
    return Typed(pa.string(), f"({' || '.join(each.sql for each in texts)})", may_fail(texts))


def _length(values: list[Typed]) -> Typed:
    (value,) = values
    if not (pt.is_string(value.kind) or pt.is_null(value.kind)):
        raise RefusedError(f"length takes STRING, not {spark_name(value.kind)}")
    if value.is_null:
        return Typed.null(pa.int32())
    return Typed(pa.int32(), f"CAST(length({value.sql}) AS INTEGER)", value.may_fail)


def _if(values: list[Typed]) -> Typed:
    condition, *both = values
    return _chosen([_boolean(condition, "WHEN")], both)


def _if_not_null(values: list[Typed]) -> Typed:
    value, *both = values
    return _chosen([_is_not_null([value])], both)


def _null_if(values: list[Typed]) -> Typed:
    same = _compared("=", *values)
    return _chosen([same], [Typed.null(values[0].kind), values[0]])


def _now(_: list[Typed]) -> Typed:
    return Typed(INSTANT, "batch_time")


_MANY: Final = 1000
_FUNCTIONS: Final[dict[str, tuple[int, int, Callable[[list[Typed]], Typed]]]] = {
    "and": (2, _MANY, _logic("AND", "false")),
    "or": (2, _MANY, _logic("OR", "true")),
    "not": (1, 1, _negated),
    "in": (2, _MANY, _among),
    "/": (2, 2, _divided),
    "negative": (1, 1, _negative),
    "[]": (2, 2, nested.item_of),
    "abs": (1, 1, _absolute),
    "array": (0, _MANY, nested.array_of),
    "array_contains": (2, 2, nested.contains),
    "coalesce": (1, _MANY, _of_same_kind("coalesce", same_kind)),
    "concat": (1, _MANY, _joined),
    "current_timestamp": (0, 0, _now),
    "element_at": (2, 2, nested.element_at),
    "greatest": (2, _MANY, _of_same_kind("greatest", _ordered)),
    "if": (3, 3, _if),
    "ifnull": (2, 2, _of_same_kind("coalesce", same_kind)),
    "isnotnull": (1, 1, _is_not_null),
    "isnull": (1, 1, _is_null),
    "least": (2, _MANY, _of_same_kind("least", _ordered)),
    "length": (1, 1, _length),
    "now": (0, 0, _now),
    "nullif": (2, 2, _null_if),
    "nvl": (2, 2, _of_same_kind("coalesce", same_kind)),
    "nvl2": (3, 3, _if_not_null),
    "size": (1, 1, nested.size_of),
    "slice": (3, 3, nested.slice_of),
}
