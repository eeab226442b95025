"""When two column names denote the same column: by Spark's rule, case counts only if the session says so.

Owns that rule. Does not own where the session's setting comes from, nor which names are reserved (`schema`).
State keeps the spelling of a column's first write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dstl_dagster.errors import ErrorKind, InvalidInputError

__all__ = ["refuse_alike", "spelled"]


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
