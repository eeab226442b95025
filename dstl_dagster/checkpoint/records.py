"""The records of a timeline: one value per kind of decision, and their bytes.

Owns what a record says and how it is written (`docs/format.md`). Does not own when a record may be
written (`decisions`) or who writes it first (`timeline`).

Every record has a slot (its place, from 1), a decision id (a UUID by which a writer that lost the answer
knows its own record), and the writer's clock, for people only: nothing is ever decided by it.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

from dstl_dagster.errors import FormatError, InternalError
from dstl_dagster.format.envelope import decode_document, encode_document

__all__ = [
    "Aborted",
    "BlockedFile",
    "Committed",
    "Completed",
    "Fenced",
    "Opened",
    "Subsumed",
    "TimelineRecord",
    "decode_record",
    "encode_record",
]

_KIND = "record"
_VERSION = 1

_NO_ID = uuid.UUID(int=0)
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class TimelineRecord:
    """What all kinds share. `slot`, `decision_id` and `recorded_at` are set by the timeline."""

    kind: ClassVar[str]
    slot: int = 0
    decision_id: uuid.UUID = _NO_ID
    recorded_at: datetime = _NO_TIME


@dataclass(frozen=True, kw_only=True)
class Opened(TimelineRecord):
    """Step 1: an attempt works on a checkpoint. At most one attempt is open at a time.

    `owner` names who opened it (a Dagster run, a streaming query): the same owner may fence its own.
    """

    kind: ClassVar[str] = "opened"
    attempt: uuid.UUID
    checkpoint_id: int
    parent: int | None
    owner: str
    idempotency_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Completed(TimelineRecord):
    """Step 5, the commit point: the checkpoint exists. `files` are final object names with their bucket.

    `seconds` is how long the step took until this record was sent.
    """

    kind: ClassVar[str] = "completed"
    attempt: uuid.UUID
    checkpoint_id: int
    parent: int | None
    manifest: str
    files: tuple[str, ...] = ()
    idempotency_key: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class BlockedFile:
    """A file that could not be published because somebody else's object has its name."""

    name: str
    reason: str
    foreign_generation: int | None = None


@dataclass(frozen=True, kw_only=True)
class Committed(TimelineRecord):
    """End of step 6: every file of the checkpoint is published, or listed as blocked."""

    kind: ClassVar[str] = "committed"
    checkpoint_id: int
    published: tuple[str, ...] = ()
    blocked: tuple[BlockedFile, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Aborted(TimelineRecord):
    """The attempt gave itself up before step 5."""

    kind: ClassVar[str] = "aborted"
    attempt: uuid.UUID
    checkpoint_id: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Fenced(TimelineRecord):
    """The attempt was taken over before step 5, by `by`; whatever it does from now on is void."""

    kind: ClassVar[str] = "fenced"
    attempt: uuid.UUID
    checkpoint_id: int
    by: str


@dataclass(frozen=True, kw_only=True)
class Subsumed(TimelineRecord):
    """Step 7: these checkpoints may be deleted. They cannot be restored to from here on."""

    kind: ClassVar[str] = "subsumed"
    checkpoint_ids: tuple[int, ...]


_KINDS: dict[str, type[TimelineRecord]] = {
    kind.kind: kind for kind in (Opened, Completed, Committed, Aborted, Fenced, Subsumed)
}
R = TypeVar("R", bound=TimelineRecord)


def encode_record(record: TimelineRecord) -> bytes:
    """The bytes of the object that is the record."""
    fields: dict[str, Any] = {"kind": record.kind}
    for field in dataclasses.fields(record):
        fields[field.name] = _plain(getattr(record, field.name))
    return encode_document(_KIND, _VERSION, fields)


def decode_record(payload: bytes, slot: int, where: str) -> TimelineRecord:
    """The record in these bytes, which were read from this slot.

    Raises: FormatError, also where the record says that it belongs into another slot (a copied object).
    """
    _, fields = decode_document(_KIND, _VERSION, payload, where)
    kind = _KINDS.get(str(fields.pop("kind", None)))
    if kind is None:
        raise FormatError(f"{where} is a record of a kind that this release does not know", "newer_version")
    try:
        record = _typed(kind, fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{where}: not a {kind.kind!r} record as documented: {error!r}") from error
    if record.slot != slot:
        raise FormatError(f"{where} says that it is the record of slot {record.slot}")
    return record


def _plain(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, BlockedFile):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _typed(kind: type[R], fields: Mapping[str, Any]) -> R:
    values = {field.name: _value(field.name, fields[field.name]) for field in dataclasses.fields(kind)}
    extra = set(fields) - set(values)
    if extra:
        raise ValueError(f"unknown fields {sorted(extra)}")
    return kind(**values)


def _value(name: str, plain: Any) -> Any:
    """The typed value of one field. A field name means the same in every kind."""
    if name in _OPTIONAL and plain is None:
        return None
    reader = _READERS.get(name)
    if reader is None:
        raise InternalError(f"no reader for the record field {name!r}")
    return reader(plain)


def _text(plain: Any) -> str:
    if not isinstance(plain, str):
        raise TypeError(f"text expected, found {plain!r}")
    return plain


def _count(plain: Any) -> int:
    if not isinstance(plain, int) or isinstance(plain, bool) or plain < 0:
        raise TypeError(f"a whole number of 0 or more expected, found {plain!r}")
    return plain


def _texts(plain: Any) -> tuple[str, ...]:
    return tuple(_text(item) for item in _list(plain))


def _list(plain: Any) -> list[Any]:
    if not isinstance(plain, list):
        raise TypeError(f"a list expected, found {plain!r}")
    return plain


def _blocked(plain: Any) -> tuple[BlockedFile, ...]:
    return tuple(
        BlockedFile(
            name=_text(item["name"]),
            reason=_text(item["reason"]),
            foreign_generation=(
                None if item["foreign_generation"] is None else _count(item["foreign_generation"])
            ),
        )
        for item in _list(plain)
    )


_OPTIONAL = {"parent", "idempotency_key"}
_READERS: dict[str, Any] = {
    "slot": _count,
    "decision_id": uuid.UUID,
    "recorded_at": datetime.fromisoformat,
    "attempt": uuid.UUID,
    "checkpoint_id": _count,
    "parent": _count,
    "owner": _text,
    "by": _text,
    "reason": _text,
    "manifest": _text,
    "idempotency_key": _text,
    "files": _texts,
    "published": _texts,
    "blocked": _blocked,
    "seconds": float,
    "checkpoint_ids": lambda plain: tuple(_count(item) for item in _list(plain)),
}
