"""The options of `format("dstl")` for reading, as one validated value.

Owns their names, parsing, and which go together. Does not own their effect (`source`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.settings import JobOptions, parse_bool, parse_int
from dstl_dagster.spark.option_names import names_of, own_and_job_options
from dstl_dagster.timeline import AsOf

STATE: Final = "state"
CHANGES: Final = "changes"
CHECKPOINTS: Final = "checkpoints"

_VERSION, _TIMESTAMP, _TIME_ZONE = "versionasof", "timestampasof", "timezone"
_CHECKPOINT = ("at", _VERSION, _TIMESTAMP)
_BETWEEN = ("from_checkpoint", "to_checkpoint")
_FOLLOWING = ("startingcheckpoint", "maxcheckpointspertrigger", "followrestores")
_IN_MIXED_CASE = (
    *("startingCheckpoint", "maxCheckpointsPerTrigger", "followRestores"),
    *("versionAsOf", "timestampAsOf"),
)
_SPELLED = {each.lower(): each for each in _IN_MIXED_CASE}
_LATEST: Final = AsOf.of(None)
_OF_EVERY_TABLE = ("store", "job", "table", "path")
_LATEST_NAME, _EARLIEST_NAME = "latest", "earliest"
_OF_TABLE = {
    STATE: (
        "operator",
        *_CHECKPOINT,
        _TIME_ZONE,
        "key_groups",
        "columns",
        "partitions",
        "case_sensitive",
        "where",
    ),
    CHANGES: ("operator", *_BETWEEN, *_FOLLOWING, "key_groups"),
    CHECKPOINTS: (),
}


@dataclass(frozen=True)
class SourceOptions:
    """What to read.

    Attributes:
        store, job: the job to read.
        table: `state` (the default), `changes`, or `checkpoints`.
        operator: the operator whose state is read.
        checkpoint: the one to read, by `at`, or `versionAsOf` or `timestampAsOf`; by default the latest when
            the read is planned. A `timestampAsOf` without a zone is in that of the option `timeZone`.
        from_checkpoint, to_checkpoint: changes after the first (exclusive; `None`: all, beginning with the
            whole state at the oldest that is retained) up to the second (inclusive; `None`: the latest).
        starting_checkpoint: a stream has the changes after this one (exclusive), which may be `latest`;
            `None`, or `earliest`: first the whole state at the newest.
        max_checkpoints_per_trigger: of a stream's micro-batch, 1 or more.
        follow_restores: after a restore a stream goes on with what differs.
        key_groups: only these ranges; empty: all.
        columns: only these, in this order; empty: all.
        where: only rows that pass this condition (`keyed.Condition`); empty: all.
        partitions: tasks that read; `None`: by the size of the state.
        case_sensitive: whether column names may differ only in case. Spark does not pass it on.
        job_options: every option whose key has a dot.
    """

    store: str
    job: str
    table: str = STATE
    operator: str = ""
    checkpoint: AsOf = _LATEST
    from_checkpoint: AsOf | None = None
    to_checkpoint: AsOf | None = None
    starting_checkpoint: AsOf | None = None
    max_checkpoints_per_trigger: int = 1
    follow_restores: bool = False
    key_groups: tuple[KeyGroupRange, ...] = ()
    columns: tuple[str, ...] = ()
    where: str = ""
    partitions: int | None = None
    case_sensitive: bool = False
    job_options: JobOptions = field(default_factory=JobOptions)

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
        """`streaming`: `None`: not known yet, as while the schema is asked for.

        Raises: InvalidInputError naming the option.
        """
        table = next((value for key, value in options.items() if key.lower() == "table"), STATE)
        if table not in _OF_TABLE:
            raise InvalidInputError(f"option table is one of {', '.join(_OF_TABLE)}, not {table!r}")
        known = (*_OF_EVERY_TABLE, *_OF_TABLE[table])
        given, job_options = own_and_job_options(options, known, f"reading {table}")
        given = _addressed(given, table)
        _refuse_other_way(table, given, streaming)
        needed = ("store", "job") if table == CHECKPOINTS else ("store", "job", "operator")
        missing = [key for key in needed if not given.get(key)]
        if missing:
            raise InvalidInputError(f'reading format("dstl") needs option {missing[0]}')
        return cls(
            store=given["store"],
            job=given["job"],
            table=table,
            operator=given.get("operator", ""),
            checkpoint=_as_of(given, *_CHECKPOINT) or _LATEST,
            from_checkpoint=_as_of(given, "from_checkpoint"),
            to_checkpoint=_as_of(given, "to_checkpoint"),
            starting_checkpoint=_starting(given),
            max_checkpoints_per_trigger=_number(given, "maxcheckpointspertrigger") or 1,
            follow_restores=parse_bool("followRestores", given.get("followrestores", "false")),
            key_groups=KeyGroupRange.parse_all(given.get("key_groups", "")),
            columns=names_of(given.get("columns", ""), "columns"),
            where=given.get("where", ""),
            partitions=_number(given, "partitions"),
            case_sensitive=parse_bool("case_sensitive", given.get("case_sensitive", "false")),
            job_options=job_options,
        )


def _addressed(given: Mapping[str, str], table: str) -> dict[str, str]:
    """The options with what `load(path)` says: `<store>/<job>/<operator>`; of `checkpoints` no operator."""
    given = dict(given)
    path = given.pop("path", None)
    if path is None:
        return given
    names = ("store", "job") if table == CHECKPOINTS else ("store", "job", "operator")
    parts = path.rstrip("/").rsplit("/", len(names) - 1)
    form = "/".join(f"<{name}>" for name in names)
    if len(parts) < len(names) or not all(parts) or parts[0].endswith(":/"):
        raise InvalidInputError(f"{path!r} is no address: write {form}, or the options {', '.join(names)}")
    twice = [name for name in names if name in given]
    if twice:
        raise InvalidInputError(f"the address {path!r} says {form}: leave out option {twice[0]}")
    return given | dict(zip(names, parts, strict=True))


def _starting(given: Mapping[str, str]) -> AsOf | None:
    word = given.get("startingcheckpoint", _EARLIEST_NAME)
    if word == _EARLIEST_NAME:
        return None
    return _LATEST if word == _LATEST_NAME else _as_of(given, "startingcheckpoint")


def _refuse_other_way(table: str, given: Mapping[str, str], streaming: bool | None) -> None:
    if streaming and table != CHANGES:
        raise InvalidInputError(
            f'a stream reads changes, not {table}: set option table="changes", or use spark.read for {table}'
        )
    others = {None: (), True: _BETWEEN, False: _FOLLOWING}[streaming]
    wrong = [option for option in others if option in given]
    if wrong:
        raise InvalidInputError(
            f"option {wrong[0]} is of {'spark.read' if streaming else 'spark.readStream'}; "
            f"{'a stream' if streaming else 'a read of changes'} takes "
            f"{', '.join(_SPELLED.get(each, each) for each in (_FOLLOWING if streaming else _BETWEEN))}"
        )


def _as_of(given: Mapping[str, str], *options: str) -> AsOf | None:
    """The checkpoint that one of these options names; each is another spelling of the first."""
    named = [option for option in options if option in given]
    if len(named) > 1:
        raise InvalidInputError(f"options {named[0]} and {named[1]} both name the checkpoint: give one")
    if not named:
        return None
    option, text = named[0], given[named[0]]
    try:
        if option == _TIMESTAMP:
            return AsOf.time(_instant(text, given.get(_TIME_ZONE)))
        found = AsOf.of_text(text)
    except InvalidInputError as error:
        raise InvalidInputError(f"option {_SPELLED.get(option, option)}: {error}") from error
    if option == _VERSION and found.is_time:
        raise InvalidInputError(f"option versionAsOf takes no time: use timestampAsOf for {text!r}")
    return found


def _instant(text: str, zone: str | None) -> datetime:
    """The instant; text without a zone is in `zone`. A Python data source knows no session's zone."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidInputError(f"{text!r} is not a time: write it as 2026-11-22T18:00Z") from error
    if at.tzinfo is None and zone is None:
        raise InvalidInputError(
            f"{text!r} has no time zone, and Spark does not say that of the session: write it as "
            "2026-11-22T18:00Z or 2026-11-22T18:00+09:00, or add option timeZone, such as "
            'spark.conf.get("spark.sql.session.timeZone")'
        )
    return at if at.tzinfo is not None else at.replace(tzinfo=_zone(zone or ""))


def _zone(name: str) -> tzinfo:
    """Of a region or an offset, the two forms of Spark's zones."""
    try:
        if name[:1] in ("+", "-"):
            offset = datetime.fromisoformat(f"2000-01-01T00:00{name}").tzinfo
            assert offset is not None
            return offset
        return ZoneInfo(name)
    except (ValueError, ZoneInfoNotFoundError) as error:
        raise InvalidInputError(
            f"option timeZone is {name!r}, which is no zone such as Asia/Tokyo and no offset such as +09:00"
        ) from error


def _number(given: Mapping[str, str], option: str) -> int | None:
    return parse_int(option, given[option], minimum=1) if option in given else None
