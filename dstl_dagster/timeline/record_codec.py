"""A record's bytes: one JSON document in the common envelope, as specified in `format/README.md`.

Owns encoding and decoding, rejecting bytes that are not a record, the form of the view in a snapshot record,
and the copy of a short record in its object's metadata. Does not own what a record means (`records`), what a
snapshot keeps (`view`), or when a copy is read (`tail`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from dstl_dagster.errors import ErrorKind, FormatError
from dstl_dagster.format import from_fields, plain_list, to_fields
from dstl_dagster.format.envelope import decode_document, encode_document, reading
from dstl_dagster.timeline.records import (
    Aborted,
    Committed,
    Completed,
    Fenced,
    Opened,
    Released,
    Resolved,
    Restored,
    Savepoint,
    Snapshot,
    Subsumed,
    TimelineRecord,
)
from dstl_dagster.timeline.view import CheckpointEntry, TimelineView

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


def encode_record(record: TimelineRecord) -> bytes:
    """The content of the record's object."""
    return encode_document(_KIND, _VERSION, record.to_json())


def decode_record(payload: bytes, slot: int, where: str) -> TimelineRecord:
    """Decode the record read from this slot.

    Raises: FormatError, also if the record claims another slot (a copied object).
    """
    _, fields = decode_document(_KIND, _VERSION, payload, where)
    record = _from_json(fields, where)
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


def _from_json(plain: Mapping[str, Any], where: str) -> TimelineRecord:
    """Inverse of `to_json`.

    Raises: FormatError (kind `newer_version` for a record kind that this release does not know).
    """
    fields = dict(plain)
    kind = _KINDS.get(str(fields.pop("kind", None)))
    if kind is None:
        raise FormatError(
            f"{where} is a record of a kind that this release does not know", ErrorKind.NEWER_VERSION
        )
    with reading(f"{where} is not a valid {kind.kind!r} record"):
        return from_fields(kind, fields)


def view_to_plain(view: TimelineView, readable: Collection[int] = ()) -> dict[str, Any]:
    """What a snapshot record keeps of the view. `readable`: ids of subsumed checkpoints to keep."""
    kept = view.in_snapshot(view.slot, readable)
    return {**to_fields(kept), "checkpoints": [to_fields(each) for each in kept.checkpoints.values()]}


def view_from_plain(plain: Mapping[str, Any], slot: int) -> TimelineView:
    """The view as of the snapshot record in `slot`. Raises: FormatError."""
    where = f"the snapshot in slot {slot}"
    with reading(f"{where} is not valid"):
        fields = dict(plain)
        entries = [from_fields(CheckpointEntry, each) for each in plain_list(fields.pop("checkpoints"))]
        view = from_fields(
            TimelineView,
            fields,
            slot=slot,
            snapshot_slot=slot,
            checkpoints=MappingProxyType({entry.checkpoint_id: entry for entry in entries}),
        )
    named = {
        *view.savepoints.values(),
        *(() if view.shown_id is None else (view.shown_id,)),
    }
    if not named <= set(view.checkpoints):
        raise FormatError(f"{where} refers to checkpoints that it does not contain: {sorted(named)}")
    return view
