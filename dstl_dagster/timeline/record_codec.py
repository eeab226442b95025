"""A record's bytes: one JSON document in the common envelope, as specified in `format/README.md`.

Owns encoding and decoding, rejecting bytes that are not a record, and the copy of a short record in its
object's metadata. Does not own what a record means (`records`), or when a copy is read (`tail`).
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from dstl_dagster.errors import ErrorKind, FormatError, InternalError
from dstl_dagster.format.envelope import decode_document, encode_document, reading
from dstl_dagster.timeline.records import (
    Aborted,
    BatchKey,
    BlockedFile,
    Committed,
    Completed,
    Fenced,
    FinalFile,
    Opened,
    Released,
    Resolution,
    Resolved,
    Restored,
    Savepoint,
    Snapshot,
    Subsumed,
    TimelineRecord,
)

_KIND = "record"
_VERSION = 1
_KINDS: dict[str, type[TimelineRecord]] = {
    kind.kind: kind
    for kind in (
        *(Opened, Completed, Committed, Aborted, Fenced, Subsumed),
        *(Savepoint, Released, Resolved, Restored, Snapshot),
    )
}
_COPY_KEY = "dstl-record"
_MAX_COPY_BYTES = 6 * 1024
"""GCS takes 8 KiB of metadata for an object, keys included."""
_HEADER_WORDS = 4
R = TypeVar("R", bound=TimelineRecord)


def encode_record(record: TimelineRecord) -> bytes:
    """The content of the record's object."""
    return encode_document(_KIND, _VERSION, record_to_plain(record))


def decode_record(payload: bytes, slot: int, where: str) -> TimelineRecord:
    """Decode the record read from this slot.

    Raises: FormatError, also if the record claims another slot (a copied object).
    """
    _, fields = decode_document(_KIND, _VERSION, payload, where)
    record = record_from_plain(fields, where)
    if record.slot != slot:
        raise FormatError(f"{where} claims to be the record of slot {record.slot}")
    return record


def copy_in_metadata(payload: bytes) -> dict[str, str]:
    """The metadata of the record's object: its bytes once more, so that a listing of slots reads them.

    Empty for a long record, and for one with letters that not every way to write metadata takes.
    """
    if len(payload) > _MAX_COPY_BYTES or not payload.isascii():
        return {}
    return {_COPY_KEY: payload.decode("ascii").replace("\n", " ", 1)}


def copy_of_record(metadata: Mapping[str, str]) -> bytes | None:
    """The copy that `copy_in_metadata` made, as bytes for `decode_record`; `None` if there is no copy.

    An object's metadata may be edited where its bytes may not. The envelope has the length and the checksum,
    so a copy is the record, or is refused.
    """
    words = metadata.get(_COPY_KEY, "").split(" ", _HEADER_WORDS)
    if len(words) <= _HEADER_WORDS:
        return None
    return (" ".join(words[:_HEADER_WORDS]) + "\n" + words[_HEADER_WORDS]).encode("utf-8", "surrogatepass")


def record_to_plain(record: TimelineRecord) -> dict[str, Any]:
    """The record as a plain JSON object, the inverse of `record_from_plain`."""
    names = (name for name, _, _ in _FIELDS[type(record)])
    return {"kind": record.kind, **{name: _plain(getattr(record, name)) for name in names}}


def record_from_plain(fields: Mapping[str, Any], where: str) -> TimelineRecord:
    """Raises: FormatError (kind `newer_version` for a record kind that this release does not know)."""
    values = dict(fields)
    kind = _KINDS.get(str(values.pop("kind", None)))
    if kind is None:
        raise FormatError(
            f"{where} is a record of a kind that this release does not know", ErrorKind.NEWER_VERSION
        )
    with reading(f"{where} is not a valid {kind.kind!r} record"):
        return _typed(kind, values)


def _plain(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, BatchKey):
        return value.to_json()
    if isinstance(value, BlockedFile | FinalFile):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    return value


def _typed(kind: type[R], fields: Mapping[str, Any]) -> R:
    values: dict[str, Any] = {
        name: None if optional and fields[name] is None else reader(fields[name])
        for name, reader, optional in _FIELDS[kind]
    }
    if len(fields) > len(values):
        raise ValueError(f"unknown fields {sorted(set(fields) - set(values))}")
    return kind(**values)


def _readers_of(kind: type[TimelineRecord]) -> tuple[tuple[str, Callable[[Any], Any], bool], ...]:
    """Each field's name, its parser, and whether it may be null. A name means the same in every kind."""
    names = [field.name for field in dataclasses.fields(kind)]
    missing = [name for name in names if name not in _READERS]
    if missing:
        raise InternalError(f"no reader for the record fields {missing}")
    return tuple((name, _READERS[name], name in _OPTIONAL) for name in names)


def _text(plain: Any) -> str:
    if not isinstance(plain, str):
        raise TypeError(f"expected text, found {plain!r}")
    return plain


def _count(plain: Any) -> int:
    if not isinstance(plain, int) or isinstance(plain, bool) or plain < 0:
        raise TypeError(f"expected a non-negative integer, found {plain!r}")
    return plain


def _texts(plain: Any) -> tuple[str, ...]:
    return tuple(_text(item) for item in _list(plain))


def _list(plain: Any) -> list[Any]:
    if not isinstance(plain, list):
        raise TypeError(f"expected a list, found {plain!r}")
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


def _finals(plain: Any) -> tuple[FinalFile, ...]:
    return tuple(
        FinalFile(_text(item["bucket"]), _text(item["name"]), _text(item["fingerprint"]))
        for item in _list(plain)
    )


def _mapping(plain: Any) -> dict[str, Any]:
    if not isinstance(plain, dict):
        raise TypeError(f"expected an object, found {plain!r}")
    return plain


_OPTIONAL = {
    "parent",
    "base",
    "batch",
    "manifest_crc32c",
    "manifest_generation",
    "foreign_generation",
    "until",
}
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
    "manifest_crc32c": _count,
    "manifest_generation": _count,
    "home": _text,
    "base": _count,
    "batch": BatchKey.from_json,
    "applied": lambda plain: tuple(BatchKey.from_json(item) for item in _list(plain)),
    "files": _finals,
    "published": _texts,
    "blocked": _blocked,
    "seconds": float,
    "name": _text,
    "until": datetime.fromisoformat,
    "resolution": Resolution,
    "foreign_generation": _count,
    "view": _mapping,
    "checkpoint_ids": lambda plain: tuple(_count(item) for item in _list(plain)),
}
_FIELDS = {kind: _readers_of(kind) for kind in _KINDS.values()}
"""Computed once: reading a long tail decodes many records, and each snapshot encodes many."""
