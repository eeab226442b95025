"""The columns that a writer drops and renames on purpose.

Owns what such a request means for a schema, and what of it is done already. Does not own the ids that make
rows written before readable after (`format.column_ids`), or the checkpoint that makes one without a batch
(`checkpoint.between_batches`).

A request stays in the code of a job for many batches, and a restore may go back before it. So a writer's
request says what the columns shall be, and asking again for what is so already changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.settings import parse_names
from dstl_dagster.state.schema import StateSchema, refuse_alike

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ColumnChanges:
    """Which columns to drop, and which to rename to what, by their exact names. False if there are none.

    Raises: InvalidInputError (kind `schema_change`) if a name is in it twice: asked for again, a chain, a
    swap, or a new column of a dropped name would do something else.
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
        return cls(parse_names("drop_columns", drop), dict(rename or {}))

    def __bool__(self) -> bool:
        return bool(self.drop or self.rename)

    def applied_to(
        self, schema: StateSchema, *, case_sensitive: bool = False, strict: bool = False
    ) -> StateSchema:
        """The schema after these changes.

        Args:
            case_sensitive: whether names of columns may differ only in case afterwards.
            strict: refuse what is not there, instead of taking it for done.

        Raises: InvalidInputError (kind `schema_change`): a key column is dropped, a new name is taken, or a
        column is not there and `strict`, or is there in another case.
        """
        for name in self.drop:
            if name in schema.columns.names:
                schema = schema.without(name)
            else:
                _absent(schema, name, strict=strict)
        for old, new in self.rename.items():
            names = schema.columns.names
            if old not in names:
                if strict or new not in names:
                    _absent(schema, old, strict=strict)
            elif new in names:
                raise _refusal(f"column {old!r} cannot become {new!r}: the state has both. Drop one of them")
            else:
                if not case_sensitive:
                    refuse_alike([*(each for each in names if each != old), new], "the state's columns")
                schema = schema.with_renamed(old, new)
        return schema

    def refuse_written(self, names: Iterable[str], *, case_sensitive: bool = False) -> None:
        """Pass if none of these new columns is one that goes. Raises: InvalidInputError (`schema_change`).

        `names`: of the batch's columns that the state does not have after the changes.
        """
        going = {name if case_sensitive else name.lower() for name in (*self.drop, *self.rename)}
        for name in names:
            if (name if case_sensitive else name.lower()) in going:
                raise _refusal(
                    f"column {name!r} is dropped or renamed, and the batch writes it: change the batch's "
                    "columns, or ask for the change no longer"
                )


def _absent(schema: StateSchema, name: str, *, strict: bool) -> None:
    names = schema.columns.names
    known_before = name in schema.column_ids.dropped.values()
    alike = [each for each in names if each.lower() == name.lower()]
    if strict or (alike and not known_before):
        hint = f"did you mean {alike[0]!r}?" if alike else f"it has {', '.join(names)}"
        raise _refusal(f"the state has no column {name!r}: {hint}")
    log.info("column %r is not in the state: nothing to drop or rename", name)


def _refusal(what: str) -> InvalidInputError:
    return InvalidInputError(what, kind=ErrorKind.SCHEMA_CHANGE)
