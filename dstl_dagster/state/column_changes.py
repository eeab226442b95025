"""Columns that are dropped and renamed on purpose.

Owns what such a request means for a schema. Does not own the ids that make rows written before readable after
(`format.column_ids`), or the checkpoint that it makes (`checkpoint.between_batches`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.settings import parse_names
from dstl_dagster.state.schema import StateSchema, refuse_alike


@dataclass(frozen=True)
class ColumnChanges:
    """Which columns to drop, and which to rename to what, by their exact names. False if there are none.

    Raises: InvalidInputError (kind `schema_change`) if a name is in it twice, as in a chain or a swap.
    """

    drop: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [*self.drop, *self.rename, *self.rename.values()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise _refusal(
                f"column {twice[0]!r} is dropped or renamed twice in one request: use two checkpoints"
            )

    @classmethod
    def of(cls, drop: Collection[str] = (), rename: Mapping[str, str] | None = None) -> ColumnChanges:
        """Raises: InvalidInputError."""
        return cls(parse_names("drop", drop), dict(rename or {}))

    def __bool__(self) -> bool:
        return bool(self.drop or self.rename)

    def applied_to(self, schema: StateSchema) -> StateSchema:
        """The schema after these changes.

        Raises: InvalidInputError (kind `schema_change`): a key column is dropped, a new name is taken, or a
        column is not there.
        """
        for name in self.drop:
            _require(schema, name)
            schema = schema.without(name)
        for old, new in self.rename.items():
            _require(schema, old)
            names = schema.columns.names
            if new in names:
                raise _refusal(f"column {old!r} cannot become {new!r}: the state has both. Drop one of them")
            refuse_alike([*(each for each in names if each != old), new], "the state's columns")
            schema = schema.with_renamed(old, new)
        return schema


def _require(schema: StateSchema, name: str) -> None:
    names = schema.columns.names
    if name not in names:
        alike = [each for each in names if each.lower() == name.lower()]
        hint = f"did you mean {alike[0]!r}?" if alike else f"it has {', '.join(names)}"
        raise _refusal(f"the state has no column {name!r}: {hint}")


def _refusal(what: str) -> InvalidInputError:
    return InvalidInputError(what, kind=ErrorKind.SCHEMA_CHANGE)
