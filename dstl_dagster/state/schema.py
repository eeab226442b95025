"""The schema of one operator's state, and how it may evolve from checkpoint to checkpoint.

Owns the schema value, its bytes in the log (a metadata change) and the rules of evolution. Does not own
the bytes of rows (`changes`).

At rest it is a document of kind `state-schema` (see `format.envelope`) with the fields `key_columns`,
`max_parallelism` and `arrow`: base64 of the Arrow schema message of the user's columns.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from dstl_dagster.errors import ErrorKind, FormatError, InvalidInputError
from dstl_dagster.format.envelope import decode_document, encode_document, reading
from dstl_dagster.state.text import schema_as_bytes
from dstl_dagster.state.types import can_be_key, stored_type, wider_type

__all__ = ["DEFAULT_MAX_PARALLELISM", "LARGEST_MAX_PARALLELISM", "RESERVED_PREFIX", "StateSchema"]

DEFAULT_MAX_PARALLELISM = 128
LARGEST_MAX_PARALLELISM = 2**15
"""Flink's own bound; a key group then fits into 16 bits, where sorting is cheap."""

RESERVED_PREFIX = "__dstl_"
"""Column names with this prefix are ours."""

_DELETED = pa.field(f"{RESERVED_PREFIX}deleted", pa.bool_(), nullable=False)
_KIND = "state-schema"
_VERSION = 1


@dataclass(frozen=True)
class StateSchema:
    """The columns of one operator's state. Create it with `of`; the constructor only checks.

    Attributes:
        columns: every column in its stored type, nullable, without metadata, in the user's order.
        key_columns: names of the key columns, in the order in which they are hashed; at least one.
        max_parallelism: number of key groups, 1 to 32,768. Frozen, like the key columns and their types.
    """

    columns: pa.Schema
    key_columns: tuple[str, ...]
    max_parallelism: int

    def __post_init__(self) -> None:
        _check_names(self.columns.names, self.key_columns)
        if not 1 <= self.max_parallelism <= LARGEST_MAX_PARALLELISM:
            raise InvalidInputError(
                f"max_parallelism {self.max_parallelism} is outside 1..{LARGEST_MAX_PARALLELISM}"
            )
        for name in self.key_columns:
            key_type = self.columns.field(name).type
            if not can_be_key(key_type):
                raise InvalidInputError(
                    f"column {name!r} of type {key_type} cannot be a key: use booleans, "
                    "whole numbers, decimals, text, binary, dates or time stamps",
                    kind=ErrorKind.UNSUPPORTED_TYPE,
                )

    @classmethod
    def of(
        cls,
        columns: pa.Schema,
        key_columns: Sequence[str],
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
    ) -> StateSchema:
        """The state schema for rows of an Arrow schema, each column in its stored type.

        Raises: InvalidInputError: no key, an unknown or repeated name, a name that begins with
        `__dstl_`, a type that cannot be stored or cannot be a key.
        """
        stored = pa.schema([pa.field(field.name, stored_type(field.type, field.name)) for field in columns])
        return cls(stored, tuple(key_columns), max_parallelism)

    @property
    def wire(self) -> pa.Schema:
        """The columns of a change: the user's, then the delete flag."""
        return self.columns.append(_DELETED)

    @cached_property
    def wire_as_bytes(self) -> pa.Schema:
        """`wire` with binary in place of text, which has the same layout."""
        return schema_as_bytes(self.wire)

    @property
    def arrow_message(self) -> bytes:
        """The Arrow schema message of the columns."""
        return bytes(self.columns.serialize())

    def to_bytes(self) -> bytes:
        """The metadata change that precedes the changes it describes."""
        fields = {
            "key_columns": list(self.key_columns),
            "max_parallelism": self.max_parallelism,
            "arrow": base64.b64encode(self.arrow_message).decode("ascii"),
        }
        return encode_document(_KIND, _VERSION, fields)

    @classmethod
    def from_bytes(cls, payload: bytes) -> StateSchema:
        """Inverse of `to_bytes`. Raises: FormatError (kind `newer_version` for a later release's)."""
        _, fields = decode_document(_KIND, _VERSION, payload, "the schema of keyed state")
        with reading("the schema of keyed state lacks a field or has a wrong one"):
            message = base64.b64decode(fields["arrow"], validate=True)
            key_columns, max_parallelism = list(fields["key_columns"]), int(fields["max_parallelism"])
        return cls.from_parts(message, key_columns, max_parallelism)

    @classmethod
    def from_parts(
        cls, arrow_message: bytes, key_columns: Sequence[str], max_parallelism: int
    ) -> StateSchema:
        """The schema from its stored parts, as in a report or a manifest. Raises: FormatError."""
        what = "stored bytes are not a schema of keyed state"
        try:
            with reading(what):
                columns = pa.ipc.read_schema(pa.py_buffer(arrow_message))
                return cls.of(columns, [str(name) for name in key_columns], max_parallelism)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{what}: {error}") from error

    def evolved_to(self, newer: StateSchema) -> StateSchema:
        """The schema that holds the rows of both: this schema's columns first, then the new ones.

        A column may be added, left out (later rows have nulls there), or widened (`types.wider_type`).

        Raises: InvalidInputError (kind `schema_change`): different key columns, key types or number of key
        groups, or a column whose type changed in any other way.
        """
        if newer.key_columns != self.key_columns:
            raise _change(
                f"the key columns are {list(self.key_columns)} and cannot become {list(newer.key_columns)}"
            )
        if newer.max_parallelism != self.max_parallelism:
            raise _change(
                f"max_parallelism is {self.max_parallelism} and cannot become {newer.max_parallelism}"
            )
        fields = {field.name: field for field in self.columns}
        for field in newer.columns:
            known = fields.get(field.name)
            fields[field.name] = field if known is None else self._joined(known, field)
        return StateSchema(pa.schema(fields.values()), self.key_columns, self.max_parallelism)

    def _joined(self, known: pa.Field, newer: pa.Field) -> pa.Field:
        if known.name in self.key_columns and newer.type != known.type:
            # The hash of a key depends on its type: int 5 and bigint 5 are in different key groups.
            raise _change(
                f"key column {known.name!r} is {known.type} and cannot become {newer.type}: cast it"
            )
        wider = wider_type(known.type, newer.type)
        if wider is None:
            raise _change(f"column {known.name!r} is {known.type} and cannot become {newer.type}: cast it")
        return pa.field(known.name, wider)


def _change(what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{what}; to start over, write to an operator of another name", kind=ErrorKind.SCHEMA_CHANGE
    )


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
