"""The schema of one operator's state, and how it may evolve from checkpoint to checkpoint.

Owns the schema value, its bytes in the log (a metadata change) and the rules of evolution. Does not own
the bytes of rows (`changes`), or which columns a writer asks to drop or rename (`column_changes`).

At rest it is a document of kind `state-schema` (see `format.envelope`) with the fields `key_columns`,
`max_parallelism` and `arrow`: base64 of the Arrow schema message of the user's columns; and
`partition_columns`, if there are any. Version 2 has `column_ids` as well, and is written only once a column
was dropped or renamed.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa

from dstl_dagster.errors import ErrorKind, FormatError, InvalidInputError
from dstl_dagster.format import ColumnIds, plain_list, whole_number
from dstl_dagster.format.envelope import decode_document, encode_document, reading
from dstl_dagster.settings import parse_names
from dstl_dagster.state.text import schema_as_bytes
from dstl_dagster.state.types import can_be_key, stored_type, wider_type

DEFAULT_MAX_PARALLELISM = 128
PARTITIONED_MAX_PARALLELISM = 4096
"""The default of a state with partition columns: a partition's few key groups then have little of others."""

LARGEST_MAX_PARALLELISM = 2**15
"""Flink's own bound; a key group then fits into 16 bits, where sorting is cheap."""

RESERVED_PREFIX = "__dstl_"
"""Column names with this prefix are ours."""

_ANOTHER_OPERATOR = "to start over, write to an operator of another name"
_START_OVER = f"cast it; {_ANOTHER_OPERATOR}"
_DELETED = pa.field(f"{RESERVED_PREFIX}deleted", pa.bool_(), nullable=False)
_Expression = TypeVar("_Expression")
_KIND = "state-schema"
_PLAIN, _WITH_IDS = 1, 2


@dataclass(frozen=True)
class StateSchema:
    """The columns of one operator's state. Create it with `of`; the constructor only checks.

    Attributes:
        columns: every column in its stored type, nullable, without metadata, in the user's order.
        key_columns: names of the key columns, in the order in which they are hashed; at least one.
        max_parallelism: number of key groups, 1 to 32,768. Frozen, like the key columns and their types.
        column_ids: which column a name denotes, once columns were dropped or renamed.
        partition_columns: key columns by whose values rows are read and replaced: rows with the same ones are
            in a few key groups (`key_group_hash`). Empty: there are none. Frozen.
    """

    columns: pa.Schema
    key_columns: tuple[str, ...]
    max_parallelism: int
    column_ids: ColumnIds = field(default_factory=ColumnIds)
    partition_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_names(self.columns.names, self.key_columns)
        if type(self.max_parallelism) is not int or not 1 <= self.max_parallelism <= LARGEST_MAX_PARALLELISM:
            raise InvalidInputError(
                f"max_parallelism is {self.max_parallelism!r}, not a whole number from 1 to "
                f"{LARGEST_MAX_PARALLELISM}"
            )
        for name in set(self.partition_columns) - set(self.key_columns):
            raise InvalidInputError(
                f"partition column {name!r} is not among the key columns: {', '.join(self.key_columns)}"
            )
        for name in self.key_columns:
            key_type = self.columns.field(name).type
            if not can_be_key(key_type):
                raise InvalidInputError(
                    f"column {name!r} of type {key_type} cannot be a key: use booleans, "
                    "whole numbers, decimals, text, binary, dates or time stamps",
                    kind=ErrorKind.UNSUPPORTED_TYPE,
                )
        unknown = set(self.column_ids.ids) - set(self.columns.names)
        if unknown or len({*self.ids, *self.column_ids.dropped}) < len(self.ids) + len(
            self.column_ids.dropped
        ):
            raise InvalidInputError(f"columns {self.columns.names} cannot have the ids of {self.column_ids}")

    @classmethod
    def of(
        cls,
        columns: pa.Schema,
        key_columns: Sequence[str],
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        partition_columns: Sequence[str] = (),
    ) -> StateSchema:
        """The state schema for rows of an Arrow schema, each column in its stored type.

        Raises: InvalidInputError: no key, an unknown or repeated name, a name that begins with
        `__dstl_`, a type that cannot be stored or cannot be a key.
        """
        stored = pa.schema([pa.field(field.name, stored_type(field.type, field.name)) for field in columns])
        keys = parse_names("key_columns", key_columns)
        return cls(stored, keys, max_parallelism, partition_columns=tuple(partition_columns))

    @cached_property
    def wire(self) -> pa.Schema:
        """The columns of a change: the user's, then the delete flag."""
        return self.columns.append(_DELETED)

    @cached_property
    def wire_as_bytes(self) -> pa.Schema:
        """`wire` with binary in place of text, which has the same layout."""
        return schema_as_bytes(self.wire)

    @property
    def ids(self) -> list[str]:
        """The id of each column: two schemas of one state name the same column if it has the same id."""
        return [self.column_ids.of(name) for name in self.columns.names]

    @property
    def key_ids(self) -> list[str]:
        """The ids of the key columns, in the order in which they are hashed."""
        return [self.column_ids.of(name) for name in self.key_columns]

    @property
    def arrow_message(self) -> bytes:
        """The Arrow schema message of the columns."""
        return bytes(self.columns.serialize())

    @property
    def reported(self) -> dict[str, Any]:
        """The fields of an operator's report that say it."""
        return {
            "schema": self.arrow_message,
            "key_columns": self.key_columns,
            "max_parallelism": self.max_parallelism,
            "column_ids": self.column_ids,
            "partition_columns": self.partition_columns,
        }

    def conformed(self, rows: pa.Table | pa.RecordBatch) -> pa.Table:
        """The rows in these columns and types, by name; null in those that they do not have."""
        columns = [
            rows.column(field.name).cast(field.type)
            if field.name in rows.schema.names
            else pa.nulls(rows.num_rows, field.type)
            for field in self.columns
        ]
        return pa.table(columns, schema=self.columns)

    def to_bytes(self) -> bytes:
        """The metadata change that precedes the changes it describes."""
        fields: dict[str, Any] = {
            "key_columns": list(self.key_columns),
            "max_parallelism": self.max_parallelism,
            "arrow": base64.b64encode(self.arrow_message).decode("ascii"),
        }
        if self.partition_columns:
            fields["partition_columns"] = list(self.partition_columns)
        if not self.column_ids:
            return encode_document(_KIND, _PLAIN, fields)
        return encode_document(_KIND, _WITH_IDS, fields | {"column_ids": self.column_ids.to_json()})

    @classmethod
    def from_bytes(cls, payload: bytes) -> StateSchema:
        """Inverse of `to_bytes`. Raises: FormatError (kind `newer_version` for a later release's)."""
        _, fields = decode_document(_KIND, _WITH_IDS, payload, "the schema of keyed state")
        with reading("a field of the schema of keyed state is missing or wrong"):
            message = base64.b64decode(fields["arrow"], validate=True)
            key_columns = plain_list(fields["key_columns"])
            max_parallelism = whole_number(fields["max_parallelism"])
            ids = ColumnIds.from_json(fields["column_ids"]) if "column_ids" in fields else None
            partition_columns = plain_list(fields.get("partition_columns", []))
        return cls.from_parts(message, key_columns, max_parallelism, ids, partition_columns)

    @classmethod
    def from_parts(
        cls,
        arrow_message: bytes,
        key_columns: Sequence[str],
        max_parallelism: int,
        column_ids: ColumnIds | None = None,
        partition_columns: Sequence[str] = (),
    ) -> StateSchema:
        """The schema from its stored parts, as in a report or a manifest. Raises: FormatError."""
        what = "stored bytes are not a schema of keyed state"
        try:
            with reading(what):
                columns = pa.ipc.read_schema(pa.py_buffer(arrow_message))
                keys, within = ([str(name) for name in each] for each in (key_columns, partition_columns))
                plain = cls.of(columns, keys, max_parallelism, within)
                return plain if column_ids is None else replace(plain, column_ids=column_ids)
        except FormatError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{what}: {error}") from error

    def evolved_to(self, newer: StateSchema, *, instead: str = _START_OVER) -> StateSchema:
        """The schema to write rows of `newer` with: this schema's columns first, then the new ones.

        `newer` describes rows, so its names are this state's: its `column_ids` do not count. A column may be
        added, left out (later rows have nulls there), or widened (`types.wider_type`). A name that no column
        has any more is a new column. `instead`: what to do where that cannot be, for the error.

        Raises: InvalidInputError (kind `schema_change`): different key columns, key types or number of key
        groups, or a column whose type changed in any other way.
        """
        self._require_same_keys(newer, self.key_columns == newer.key_columns)
        fields = {each.name: each for each in self.columns}
        for each in newer.columns:
            known = fields.get(each.name)
            fields[each.name] = each if known is None else self._joined(known, each, instead)
        ids = self.column_ids.with_new(list(fields)[len(self.columns) :], self.columns.names)
        return replace(self, columns=pa.schema(fields.values()), column_ids=ids)

    def covering(self, other: StateSchema) -> StateSchema:
        """The schema that reads the rows of both, as this schema names them: its columns first.

        `other` is of another checkpoint of this state: its columns are found by their ids, under any
        name. A column that either schema has dropped is left out.

        Raises: InvalidInputError (kind `schema_change`): as `evolved_to`, or if two different columns have
        the same name.
        """
        self._require_same_keys(other, self.key_ids == other.key_ids)
        dropped = {**other.column_ids.dropped, **self.column_ids.dropped}
        fields = {self.column_ids.of(each.name): each for each in self.columns}
        for each in other.columns:
            known = fields.get(column := other.column_ids.of(each.name))
            if column not in dropped:
                fields[column] = each if known is None else self._joined(known, each)
        kept = {column: each for column, each in fields.items() if column not in dropped}
        names = [each.name for each in kept.values()]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise _change(
                f"{twice!r} names two different columns of the checkpoints that are combined",
                f"read each by itself; {_ANOTHER_OPERATOR}",
            )
        ids = {
            each.name: column
            for column, each in kept.items()
            if column != each.name or each.name in self.column_ids.ids
        }
        ids_of_both = ColumnIds(ids, dropped)
        return replace(self, columns=pa.schema(kept.values()), column_ids=ids_of_both)

    def without(self, name: str) -> StateSchema:
        """The schema after this column was dropped. Raises: InvalidInputError for a key column."""
        if name in self.key_columns:
            raise _change(f"{name!r} is a key column and cannot be dropped, since rows are found by it")
        kept = pa.schema([each for each in self.columns if each.name != name])
        return replace(self, columns=kept, column_ids=self.column_ids.with_dropped(name))

    def with_renamed(self, old: str, new: str) -> StateSchema:
        """The schema after a column, which may be a key, was renamed. Raises: InvalidInputError."""
        columns = [each.with_name(new) if each.name == old else each for each in self.columns]
        keys, within = (
            tuple(new if name == old else name for name in names)
            for names in (self.key_columns, self.partition_columns)
        )
        ids = self.column_ids.with_renamed(old, new)
        return StateSchema(pa.schema(columns), keys, self.max_parallelism, ids, within)

    def _require_same_keys(self, other: StateSchema, same: bool) -> None:
        if not same:
            raise _change(
                f"the key columns are {list(self.key_columns)} and cannot become {list(other.key_columns)}"
            )
        if other.max_parallelism != self.max_parallelism:
            raise _change(
                f"max_parallelism is {self.max_parallelism} and cannot become {other.max_parallelism}"
            )

    def _joined(self, known: pa.Field, newer: pa.Field, instead: str = _START_OVER) -> pa.Field:
        if known.name in self.key_columns and newer.type != known.type:
            # The hash of a key depends on its type: int 5 and bigint 5 are in different key groups.
            raise _change(
                f"key column {known.name!r} is {known.type} and cannot become {newer.type}", instead
            )
        wider = wider_type(known.type, newer.type)
        if wider is None and str(known.type).lower() == str(newer.type).lower():
            # Arrow and Spark look fields up by their exact names, and find null where there is none.
            raise _change(
                f"column {known.name!r} is {known.type}, not {newer.type}: the case of a struct's fields is "
                "part of its type. Cast the column to the state's type"
            )
        if wider is None:
            raise _change(f"column {known.name!r} is {known.type} and cannot become {newer.type}", instead)
        return pa.field(known.name, wider)


def as_spelled(columns: pa.Schema, before: StateSchema | None, *, case_sensitive: bool) -> pa.Schema:
    """These columns, in the state's spelling. Raises: InvalidInputError (kind `schema_change`)."""
    if before is None:
        return columns
    names = spelled(columns.names, before.columns.names, case_sensitive=case_sensitive)
    return pa.schema([field.with_name(name) for name, field in zip(names, columns, strict=True)])


def schema_to_write(
    columns: pa.Schema,
    keys: Sequence[str],
    max_parallelism: int | None,
    before: StateSchema | None,
    partition_columns: Sequence[str] = (),
) -> StateSchema:
    """These columns and those that the state already has, so that the last report always lists all.

    Narrower types of keys are those of the state. `partition_columns`: of a new state. Raises: as
    `StateSchema.of` and `evolved_to`.
    """
    if before is None:
        if max_parallelism is None:
            max_parallelism = PARTITIONED_MAX_PARALLELISM if partition_columns else DEFAULT_MAX_PARALLELISM
        return StateSchema.of(columns, keys, max_parallelism, partition_columns)
    fields = []
    for each in columns:
        frozen = before.columns.field(each.name).type if each.name in before.key_columns else each.type
        fits = wider_type(frozen, each.type) == frozen
        fields.append(each.with_type(frozen) if fits else each)
    groups = before.max_parallelism if max_parallelism is None else max_parallelism
    return before.evolved_to(StateSchema.of(pa.schema(fields), keys, groups))


def update_by_name(
    update: Mapping[str, _Expression],
    schema: StateSchema,
    filled: str | None,
    what: str,
    *,
    case_sensitive: bool = False,
) -> dict[str, _Expression]:
    """A merge's update by the state's names, without the column that the package fills.

    Raises: InvalidInputError naming a key or an unknown column, or if no value column is updated although
    the state has some: new keys would have nulls alone.
    """
    names = [name for name in schema.columns.names if name not in schema.key_columns]
    if not isinstance(update, Mapping):
        raise InvalidInputError(
            f"{what}: update is {update!r}, not expressions by column, such as {{'total': 'new.total'}}"
        )
    parse_names("update", list(update))
    by_name = dict(zip(spelled(update, names, case_sensitive=case_sensitive), update.values(), strict=True))
    for name in by_name:
        if name not in names:
            raise InvalidInputError(
                f"{what}: update names {name!r}, which is not a value column of the state: {', '.join(names)}"
            )
    by_name.pop(filled or "", None)
    values = [name for name in names if name != filled]
    if values and not by_name:
        raise InvalidInputError(
            f"{what}: update is empty, so each new key would have nulls: say what becomes of "
            f"{values[0]!r}, as in {{{values[0]!r}: {f'new.{values[0]}'!r}}}"
        )
    return by_name


def _change(what: str, instead: str = _ANOTHER_OPERATOR) -> InvalidInputError:
    return InvalidInputError(f"{what}: {instead}", kind=ErrorKind.SCHEMA_CHANGE)


def _check_names(names: Sequence[str], key_columns: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidInputError(f"column names must be unique, but these are repeated: {', '.join(repeated)}")
    ours = [name for name in names if name.startswith(RESERVED_PREFIX)]
    if ours:
        raise InvalidInputError(
            f"rename column {ours[0]!r}: names that begin with {RESERVED_PREFIX} are reserved"
        )
    if not key_columns:
        raise InvalidInputError("keyed state needs at least one key column")
    if len(set(key_columns)) != len(key_columns):
        raise InvalidInputError(f"a key column is named twice: {', '.join(key_columns)}")
    missing = [name for name in key_columns if name not in names]
    if missing:
        raise InvalidInputError(f"key column {missing[0]!r} is not among the columns: {', '.join(names)}")


def spelled(names: Iterable[str], known: Sequence[str], *, case_sensitive: bool) -> tuple[str, ...]:
    """Each name as `known` spells it; a name that is unknown in any case stays as it is.

    Raises: InvalidInputError (kind `schema_change`) if a name matches several of `known`.
    """
    return tuple(
        name
        if case_sensitive or name in known
        else _only(name, [each for each in known if _alike(each, name)])
        for name in names
    )


def require_spark_schema(schema: object, what: str) -> None:
    """Pass if it is text or a StructType. Raises: InvalidInputError."""
    if not isinstance(schema, str) and not hasattr(schema, "fieldNames"):
        kind = type(schema)
        raise InvalidInputError(
            f"{what}: the schema is a {kind.__module__}.{kind.__qualname__}, not columns such as "
            "'customer STRING, total DOUBLE', or a StructType of Spark: write its columns so"
        )


def refuse_alike(names: Iterable[str], what: str) -> None:
    """Pass if no two names differ only in case. Raises: InvalidInputError (kind `schema_change`)."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidInputError(
                f"{what}: columns {other!r} and {name!r} differ only in case, and Spark treats them as one "
                "unless `spark.sql.caseSensitive` is true: use the state's spelling for both",
                kind=ErrorKind.SCHEMA_CHANGE,
            )


def _only(name: str, alike: Sequence[str]) -> str:
    if len(alike) > 1:
        raise InvalidInputError(
            f"column {name!r} could be any of {', '.join(map(repr, alike))}, which differ only in case: "
            "use the exact name",
            kind=ErrorKind.SCHEMA_CHANGE,
        )
    return alike[0] if alike else name


def _alike(one: str, other: str) -> bool:
    return one.lower() == other.lower()
