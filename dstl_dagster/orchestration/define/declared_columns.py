"""Whether the declared columns of a state and the rule over them fit, known as definitions load.

Owns reading the names and types of Spark's DDL without a JVM, and the form of SQL. Does not own what a state
may hold (`state`), or what SQL means: Spark analyzes it in the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.define.asset_arguments import argument
from dstl_dagster.orchestration.define.merge_rule import MergeRule
from dstl_dagster.state import (
    StateSchema,
    is_deterministic,
    require_spark_schema,
    spelled,
    ttl_to_write,
    update_by_name,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_NESTED: Final = pa.struct([("value", pa.string())])
"""Stands for what is neither a key nor a time."""
_TYPES: Final[Mapping[str, pa.DataType]] = {
    **dict.fromkeys(("array", "map", "struct"), _NESTED),
    **dict.fromkeys(("string", "char", "character", "varchar"), pa.string()),
    **dict.fromkeys(("byte", "tinyint"), pa.int8()),
    **dict.fromkeys(("short", "smallint"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("long", "bigint"), pa.int64()),
    **dict.fromkeys(("float", "real"), pa.float32()),
    **dict.fromkeys(("decimal", "dec", "numeric"), pa.decimal128(10, 0)),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), pa.timestamp("us", "UTC")),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "date": pa.date32(),
    "interval": pa.duration("us"),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
}
"""The columns that a state can have, by the first word of their type in Spark's DDL."""
_TOKEN: Final = re.compile(
    r"""`(?:[^`]|``)*`|(?<!\w)[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*"""
    r"""|/\*[\s\S]*?\*/|[\s\S]"""
)
_COLUMN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|[^\s`:]+)(?:\s*:\s*|\s+)([A-Za-z_]+)")
_OLD: Final = re.compile(r"(?<![\w.`])old\.(`(?:[^`]|``)+`|\w+)", re.IGNORECASE)
_CALLED: Final = re.compile(r"(?<![\w.`])(\w+)\s*\(")
_UNFINISHED: Final = re.compile(
    r"(?:[-+*/%=<>|&^~!,.]|(?<![\w.`])(?:and|or|not|in|is|like|between|case|when|then|else))\s*\Z",
    re.IGNORECASE,
)
_CLOSING: Final = {"(": ")", "[": "]"}


def require_fitting(what: str, rule: MergeRule) -> None:
    """`schema`, if there is one, has the keys, the TTL's column and what the rules name; SQL is whole.

    Raises: InvalidInputError, as the run would for most, naming the column or the rule.
    """
    keys, schema, update, ttl = rule.keys, rule.schema, rule.update, rule.ttl
    if schema is None or update is None:  # the columns come with the first rows
        columns = pa.schema([(name, pa.string()) for name in keys])
    else:
        with argument("schema"):
            columns = _columns(what, schema)
    with argument("keys"):
        state = StateSchema.of(columns, spelled(keys, columns.names, case_sensitive=False))
    if rule.max_parallelism is not None:
        with argument("max_parallelism"):
            StateSchema.of(columns, state.key_columns, rule.max_parallelism)
    if schema is None or update is None:
        return
    with argument("ttl"):
        ttl_to_write(ttl, None, state, 0)
    with argument("update"):
        filled = ttl.column if ttl is not None and ttl.is_processing_time else None
        update_by_name(update, state, filled, what)
        for name, text in update.items():
            _require_whole(f"{what}: {name}", text, columns.names)
    with argument("delete"):
        _require_whole(what, rule.delete, columns.names)


def _columns(what: str, schema: StructType | str) -> pa.Schema:
    require_spark_schema(schema, what)
    if not isinstance(schema, str):
        declared = [(each.name, each.dataType.simpleString()) for each in schema]
    else:
        declared = list(_declared(what, schema))
    found: dict[str, pa.DataType] = {}
    for name, text in declared:
        word = re.split(r"[\s(<]", text, maxsplit=1)[0].lower()
        if word not in _TYPES:
            raise InvalidInputError(
                f"{what}: column {name!r} cannot be of type {text}: a state holds {', '.join(_TYPES)}"
            )
        if name in found:
            raise InvalidInputError(f"{what}: column {name!r} occurs twice: leave one out")
        found[name] = _TYPES[word]
    return pa.schema(found)


def _declared(what: str, schema: str) -> Iterator[tuple[str, str]]:
    for part in _parts(schema):
        column = _COLUMN.match(part)
        if column is None:
            raise InvalidInputError(
                f"{what}: {part.strip() or schema!r} is no column: write names and types, such as "
                "customer STRING, total DOUBLE"
            )
        name = column[1]
        yield (name[1:-1].replace("``", "`") if name.startswith("`") else name), column[2]


def _parts(schema: str) -> list[str]:
    """Between the commas that are in no brackets and no quotes."""
    parts, depth = [""], 0
    for part in _TOKEN.findall(schema):
        depth += (part in "(<") - (part in ")>")
        if part == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += part
    return parts


def _without_text(part: str) -> str:
    """A literal without its text, a space for a comment; all else as it is."""
    if len(part) == 1 or part.startswith("`"):
        return part
    return " " if part.startswith(("--", "/*")) else "''"


def _require_whole(what: str, sql: Any, names: Sequence[str]) -> None:
    """Brackets and quotes are closed, `old` has the columns, functions are deterministic. Text, comments and
    a Column pass.
    """
    if not isinstance(sql, str):
        return
    rest, open_ = "", []
    for part in _TOKEN.findall(sql):
        if part in ("(", "["):
            open_.append(_CLOSING[part])
        elif part in (")", "]") and (not open_ or open_.pop() != part):
            raise InvalidInputError(f"{what}: {sql!r} has a {part} that nothing opens")
        elif part in ("'", '"', "`"):
            raise InvalidInputError(f"{what}: {sql!r} has a {part} that nothing closes")
        rest += _without_text(part)
    if open_ or not rest.strip() or _UNFINISHED.search(rest):
        raise InvalidInputError(f"{what}: {sql!r} ends before its expression does")
    for name in _CALLED.findall(rest):
        if not is_deterministic(name):
            raise InvalidInputError(
                f"{what}: {name}() gives another value each time, so a repeated batch would write other rows"
            )
    for name in _OLD.findall(rest):
        (column,) = spelled([name.strip("`")], names, case_sensitive=False)
        if column not in names:
            raise InvalidInputError(f"{what}: the state has no column {column!r}: {', '.join(names)}")
