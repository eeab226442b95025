"""The options of `format("dstl")` for reading, as one validated value.

Owns their names, parsing, and which go together. Does not own their effect (`source`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.settings import JobOptions, parse_bool, parse_int
from dstl_dagster.spark.given_options import own_and_job_options
from dstl_dagster.spark.sink.options import names_of

__all__ = ["CHANGES", "CHECKPOINTS", "STATE", "SourceOptions"]

STATE: Final = "state"
CHANGES: Final = "changes"
CHECKPOINTS: Final = "checkpoints"

_OF_EVERY_TABLE = ("store", "job", "table")
_OF_TABLE = {
    STATE: (
        "operator",
        "checkpoint",
        "key_groups",
        "columns",
        "partitions",
        "case_sensitive",
    ),
    CHANGES: ("operator", "from_checkpoint", "to_checkpoint", "key_groups"),
    CHECKPOINTS: (),
}


@dataclass(frozen=True)
class SourceOptions:
    """What to read.

    Attributes:
        store, job: the job to read.
        table: `state` (the default), `changes`, or `checkpoints`.
        operator: the operator whose state is read.
        checkpoint: its id; `None`: the latest when the DataFrame is created.
        from_checkpoint, to_checkpoint: changes after the first (exclusive; `None`: the oldest that is kept)
            up to the second (inclusive; `None`: the latest).
        key_groups: only these ranges; empty: all.
        columns: only these, in this order; empty: all.
        partitions: tasks that read; `None`: by the size of the state.
        case_sensitive: whether column names may differ only in case. Spark does not tell a data source.
        job_options: every option whose key has a dot.
    """

    store: str
    job: str
    table: str = STATE
    operator: str = ""
    checkpoint: int | None = None
    from_checkpoint: int | None = None
    to_checkpoint: int | None = None
    key_groups: tuple[KeyGroupRange, ...] = ()
    columns: tuple[str, ...] = ()
    partitions: int | None = None
    case_sensitive: bool = False
    job_options: JobOptions = field(default_factory=JobOptions)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Raises: InvalidInputError naming the option."""
        table = next((value for key, value in options.items() if key.lower() == "table"), STATE)
        if table not in _OF_TABLE:
            raise InvalidInputError(f"option table is one of {', '.join(_OF_TABLE)}, not {table!r}")
        known = (*_OF_EVERY_TABLE, *_OF_TABLE[table])
        given, job_options = own_and_job_options(options, known, f"reading {table}")
        needed = ("store", "job") if table == CHECKPOINTS else ("store", "job", "operator")
        missing = [key for key in needed if not given.get(key)]
        if missing:
            raise InvalidInputError(f'reading format("dstl") needs option {missing[0]}')
        return cls(
            store=given["store"],
            job=given["job"],
            table=table,
            operator=given.get("operator", ""),
            checkpoint=_number(given, "checkpoint"),
            from_checkpoint=_number(given, "from_checkpoint"),
            to_checkpoint=_number(given, "to_checkpoint"),
            key_groups=_ranges(given.get("key_groups", "")),
            columns=names_of(given.get("columns", ""), "columns"),
            partitions=_number(given, "partitions"),
            case_sensitive=parse_bool("case_sensitive", given.get("case_sensitive", "false")),
            job_options=job_options,
        )


def _number(given: Mapping[str, str], option: str) -> int | None:
    return parse_int(option, given[option], minimum=1) if option in given else None


def _ranges(text: str) -> tuple[KeyGroupRange, ...]:
    """`0-15,20`: both ends inclusive."""
    found: list[KeyGroupRange] = []
    for part in text.split(",") if text.strip() else []:
        first, _, last = part.partition("-")
        try:
            found.append(KeyGroupRange.of(int(first), int(last or first)))
            if not found[-1].number_of_key_groups:
                raise ValueError(part)
        except ValueError as error:
            raise InvalidInputError(
                f"option key_groups takes numbers and ranges such as 0-15,20, not {part!r}"
            ) from error
    found.sort(key=lambda each: each.start_key_group)
    for one, other in pairwise(found):
        if one.intersection(other).number_of_key_groups:
            raise InvalidInputError(f"option key_groups names key group {other.start_key_group} twice")
    return tuple(found)
