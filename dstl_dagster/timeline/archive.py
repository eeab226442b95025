"""Facts that snapshots leave out, each stored under a name that finds it with one request.

    archive/attempts/<upper 64 bits of the attempt>      how an attempt ended
    archive/keys/<SHA-256 of the key>/<checkpoint>       a checkpoint that holds a batch
    archive/requests/<decision id>                       the slot of the record that answered a request

Owns these objects. Does not own when they are written (`timeline`, before each snapshot record).

Why this is safe. Everything here is derived from records that stay on the timeline for ever, so every writer
writes the same bytes, repeating a write changes nothing, and all that a killed writer left is true. A view
looks here only for facts older than its snapshot, and all of those were archived before the snapshot record
was written.

They are stored as every document is that never changes, a manifest and a report too: its bytes are a function
of its content, so the same bytes under its name are success, no matter who wrote them; different bytes are a
conflict, unless the caller knows that they say the same.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from dstl_dagster.concurrency import gather
from dstl_dagster.errors import ConflictError, DstlError, ErrorKind, NotFoundError, UnavailableError
from dstl_dagster.format import JobNames
from dstl_dagster.format.envelope import decode_document, encode_document, reading
from dstl_dagster.format.names import attempt_half
from dstl_dagster.storage import ABSENT, ObjectStore
from dstl_dagster.timeline.records import BatchKey
from dstl_dagster.timeline.view import Fate, TimelineView


def in_doubt(what: str, error: DstlError) -> UnavailableError:
    """The error for a write that failed and is not there: it may still arrive, unless writes are denied."""
    if error.kind == ErrorKind.NO_PERMISSION:
        return UnavailableError(f"{what} cannot be written: {error}", kind=ErrorKind.NO_PERMISSION)
    return UnavailableError(f"{error}. Whether {what} was written is unknown: run the step again")


def write_once(
    store: ObjectStore,
    name: str,
    payload: bytes,
    *,
    otherwise: ConflictError,
    is_same: Callable[[bytes], bool] = lambda _: False,
) -> tuple[bytes, int | None]:
    """Create the object. Succeeds if the same bytes are already there, or others for which `is_same` is true.

    Returns: the bytes that are there, and their generation if this call created them.
    Raises: `otherwise` if different bytes are there; UnavailableError if the outcome cannot be determined
    (call again).
    """
    try:
        made = store.put(name, payload, precondition=ABSENT)
    except (ConflictError, UnavailableError) as error:
        try:
            there = store.get(name)
        except NotFoundError:
            raise in_doubt(name, error) from error
        if there != payload and not is_same(there):
            raise otherwise from error
        return there, None
    return payload, made.generation


_KIND = "archived"
_VERSION = 1
_REMEMBERED = 10_000
T = TypeVar("T")


class Archive:
    """The archive of one job. Thread-safe. Caches how attempts ended, which never changes.

    Args:
        threads: concurrent writes, at most.
    """

    def __init__(self, store: ObjectStore, names: JobNames, *, threads: int = 1) -> None:
        self._store = store
        self._names = names
        self._threads = threads
        self._fates: dict[int, Fate] = {}
        self._lock = threading.Lock()

    def write(self, view: TimelineView) -> None:
        """Archive everything that a snapshot of `view` leaves out. Idempotent; safe to run concurrently.

        Raises: UnavailableError (then no snapshot may be written), ConflictError (a foreign object).
        """
        writes = [partial(self._write, *each) for each in self._documents(view)]
        gather(writes, self._threads, "dstl-archive")

    def checkpoints_of_key(self, key: str | BatchKey) -> list[int]:
        """Every archived checkpoint that held this batch, or one of this name; ascending.

        Raises: FormatError.
        """
        name, identity = (key, None) if isinstance(key, str) else (key.key, key.identity)
        listed = self._store.list(self._names.archived_key_prefix(name))
        found = (self._names.archived_key_of(stat.name, name, identity) for stat in listed)
        return [each for each in found if each is not None]

    def fate_of_half(self, half: int) -> Fate | None:
        """How the attempt with these upper 64 bits ended; `None` if it is not archived."""
        with self._lock:
            known = self._fates.get(half)
        if known is not None:
            return known
        fate = self._read(self._names.archived_attempt(half), Fate.from_json)
        if fate is not None:
            with self._lock:
                if len(self._fates) >= _REMEMBERED:
                    self._fates.clear()
                self._fates[half] = fate
        return fate

    def slot_of_request(self, decision_id: uuid.UUID) -> int | None:
        """The slot of the record that answered the request; `None` if it is not archived."""
        return self._read(self._names.archived_request(decision_id), lambda fields: int(fields["slot"]))

    def _documents(self, view: TimelineView) -> Iterator[tuple[str, dict[str, Any]]]:
        for fate in view.ended.values():
            yield self._names.archived_attempt(attempt_half(fate.attempt)), fate.to_json()
        for key, checkpoint_ids in view.keys.items():
            for checkpoint_id in checkpoint_ids:
                yield self._names.archived_key(key.key, checkpoint_id, key.identity), key.to_json()
        for decision_id, slot in view.requests.items():
            yield self._names.archived_request(decision_id), {"slot": slot}

    def _write(self, name: str, fields: dict[str, Any]) -> None:
        foreign = ConflictError(
            f"foreign object {name} in the archive: move it away", kind=ErrorKind.FOREIGN_OBJECT
        )
        write_once(self._store, name, encode_document(_KIND, _VERSION, fields), otherwise=foreign)

    def _read(self, name: str, reader: Callable[[dict[str, Any]], T]) -> T | None:
        try:
            payload = self._store.get(name)
        except NotFoundError:
            return None
        _, fields = decode_document(_KIND, _VERSION, payload, name)
        with reading(f"{name} is not a valid archived fact"):
            return reader(fields)
