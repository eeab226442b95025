"""The records of a timeline: one value type per kind of decision.

Owns what a record means. Does not own its bytes (`record_codec`), when it may be written (`decisions`) or
the race for the slot (`timeline`).

Every record has a slot (its position, from 1), a decision id (a UUID by which a writer that lost the answer
recognises its own record), and the writer's wall-clock time, for people only: nothing is decided by it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, Final

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import Stored, to_fields
from dstl_dagster.storage import Origin

_NO_ID = uuid.UUID(int=0)
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


RUN_WINDOW: Final = "run:"
"""Begins the `window` of a batch that replaces a table's partitions; the run follows."""


@dataclass(frozen=True)
class BatchKey(Stored):
    """Of which source a batch is, and which one. At most one checkpoint of a chain holds it.

    Never a name alone: two sources of a job may both have a batch "2024-01-07", and a weekly partition of
    that key is not the daily one.

    Attributes:
        key: the batch as people name it: a partition, or any text.
        source: the source that it is of; empty for a driver that names none.
        window: of a batch of time, `<start>/<end>`: two instants as ISO 8601 writes an interval, the end
            exclusive; of one that replaces a table's partitions the run, as each may; of a write of files
            their path; empty for any other.
        run: what applies it, where one that applies it again must not pass for a repeat. No part of
            the identity.
        parts: of a batch that replaces several partitions of a table, these: the batches that it is. No part
            of the identity.
    """

    key: str
    source: str = ""
    window: str = ""
    run: str = field(default="", compare=False)
    parts: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, key: BatchKeyLike) -> BatchKey | None:
        """A text alone is a batch of no source. Raises: InvalidInputError."""
        if key is None or isinstance(key, BatchKey):
            return key
        if not isinstance(key, str):
            raise InvalidInputError(f"an idempotency key is text or a BatchKey, not {key!r}")
        if not key.strip():
            raise InvalidInputError(
                "an idempotency key says what its batch holds, such as its day, and this one is empty: under "
                "it, the next batch would be the same one. Name it, or pass None"
            )
        return cls(key)

    @property
    def identity(self) -> str:
        """All of it, as a text that differs for another batch."""
        return json.dumps([self.key, self.source, self.window])

    @property
    def each(self) -> tuple[BatchKey, ...]:
        """Those that a timeline knows: itself, or one of each part."""
        return tuple(replace(self, key=part, parts=()) for part in self.parts) or (self,)

    def __str__(self) -> str:
        return self.key


BatchKeyLike = BatchKey | str | None
"""A batch's name as callers may pass it; `None`: it has no name, and may be applied again."""


@dataclass(frozen=True, kw_only=True)
class TimelineRecord:
    """Fields common to all kinds. `slot`, `decision_id` and `recorded_at` are set by the timeline."""

    kind: ClassVar[str]
    slot: int = 0
    decision_id: uuid.UUID = _NO_ID
    recorded_at: datetime = _NO_TIME

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object."""
        return {"kind": self.kind, **to_fields(self)}


def timeline_id_of(root: TimelineRecord) -> str:
    """The id of the timeline whose first record this is: 16 hex digits."""
    upper, lower = divmod(root.decision_id.int, 1 << 64)
    return f"{upper ^ lower:016x}"


class OfABatch:
    """The facts that follow from the parent, the base and the batch of an attempt, or of its checkpoint."""

    parent: int | None
    base: int | None
    batch: BatchKey | None

    @property
    def builds_on(self) -> int | None:
        """The checkpoint whose state is read and changed; `None` if there is none."""
        return self.parent if self.base is None else self.base or None

    @property
    def idempotency_key(self) -> str | None:
        """The batch as people name it, such as a partition."""
        return None if self.batch is None else self.batch.key


@dataclass(frozen=True, kw_only=True)
class Opened(OfABatch, TimelineRecord):
    """Step 1: an attempt works on a checkpoint. At most one attempt is open at a time.

    `owner` names its opener (a Dagster run, a streaming query). An owner may fence its own attempt.
    `base`, `home`: as of `Completed`.
    """

    kind: ClassVar[str] = "opened"
    attempt: uuid.UUID
    checkpoint_id: int
    parent: int | None
    owner: str
    batch: BatchKey | None = None
    base: int | None = None
    home: str = ""


@dataclass(frozen=True)
class FinalFile:
    """One file of a checkpoint, by its final name.

    `fingerprint` is stored in the object's metadata (`recoverable.recoverable_hash`): it proves that the
    object is this checkpoint's, even when the manifest is gone.
    """

    bucket: str
    name: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Completed(OfABatch, TimelineRecord):
    """Step 5, the commit point: the checkpoint exists.

    `seconds` is how long the step had taken when this record was sent. `manifest_crc32c` is the CRC-32C of
    all bytes of the manifest, which names what follows with its own checksum, and so on to every byte; `None`
    for a manifest that its writer did not store. `home` is the bucket and prefix of the store that it was
    completed in, and `manifest_generation` what the manifest had there, if that was known: a store where it
    has another one is a copy.

    `base` is the checkpoint whose state this one builds on (0: none, the state begins here), where that is
    not its parent: its batch is the parent's, applied anew, or its state is another job's. Of that, `applied`
    are the batches: this one holds them too. `owner` opened the attempt.
    """

    kind: ClassVar[str] = "completed"
    attempt: uuid.UUID
    checkpoint_id: int
    parent: int | None
    manifest: str
    files: tuple[FinalFile, ...] = ()
    batch: BatchKey | None = None
    base: int | None = None
    seconds: float = 0.0
    manifest_crc32c: int | None = None
    home: str = ""
    manifest_generation: int | None = None
    owner: str = ""
    applied: tuple[BatchKey, ...] = ()

    @property
    def origin(self) -> Origin:
        """Where the checkpoint was made: its files are named by the bucket that they had there."""
        return Origin(self.home, self.manifest, self.manifest_generation)

    @property
    def batches(self) -> tuple[BatchKey, ...]:
        """All that it holds first: of another job's state those that this applied, oldest first."""
        return self.applied if self.batch is None else (*self.applied, *self.batch.each)


@dataclass(frozen=True)
class BlockedFile:
    """A file that could not be published: a foreign object has its name, or the store refuses to create it.

    `foreign_generation` is the foreign object's; `None` if there is none.
    """

    name: str
    reason: str
    foreign_generation: int | None = None


@dataclass(frozen=True, kw_only=True)
class Committed(TimelineRecord):
    """End of step 6: every file of the checkpoint is published, or listed as blocked.

    Written again after a `Resolved`, with the new outcome; the newest one counts.
    """

    kind: ClassVar[str] = "committed"
    checkpoint_id: int
    published: tuple[str, ...] = ()
    blocked: tuple[BlockedFile, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Aborted(TimelineRecord):
    """The attempt was ended by its owner before step 5."""

    kind: ClassVar[str] = "aborted"
    attempt: uuid.UUID
    checkpoint_id: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Fenced(TimelineRecord):
    """The attempt was taken over before step 5, by `by`; nothing it does from now on counts."""

    kind: ClassVar[str] = "fenced"
    attempt: uuid.UUID
    checkpoint_id: int
    by: str


@dataclass(frozen=True, kw_only=True)
class Subsumed(TimelineRecord):
    """Step 7: these checkpoints may be deleted, and can no longer be restored to."""

    kind: ClassVar[str] = "subsumed"
    checkpoint_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Savepoint(TimelineRecord):
    """A checkpoint is retained under a name, exempt from retention, until it is released.

    `until`: step 7 releases it from then on. Until a record says so, it keeps its checkpoint.
    """

    kind: ClassVar[str] = "savepoint"
    checkpoint_id: int
    name: str
    until: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Released(TimelineRecord):
    """The savepoint of this name no longer keeps its checkpoint."""

    kind: ClassVar[str] = "released"
    checkpoint_id: int
    name: str


class Resolution(StrEnum):
    """A person's decision on a blocked file."""

    KEEP = "keep"  # the foreign object stays; the checkpoint's own file is discarded
    REPLACE = "replace"  # that generation of the foreign object goes; the checkpoint's own file is published


@dataclass(frozen=True, kw_only=True)
class Resolved(TimelineRecord):
    """How one blocked file is resolved. Written before anything is touched; anyone may carry it out."""

    kind: ClassVar[str] = "resolved"
    checkpoint_id: int
    name: str
    resolution: Resolution
    foreign_generation: int | None


@dataclass(frozen=True, kw_only=True)
class Restored(TimelineRecord):
    """The job resumes from this checkpoint, or begins anew (0). Later ones are abandoned, and an open attempt
    is dead.
    """

    kind: ClassVar[str] = "restored"
    checkpoint_id: int
    by: str

    @property
    def where(self) -> str:
        """As people say it, after "to"."""
        return f"checkpoint {self.checkpoint_id}" if self.checkpoint_id else "before its first checkpoint"


@dataclass(frozen=True, kw_only=True)
class Snapshot(TimelineRecord):
    """The view of all records before this one (`view`), so that reading can start here."""

    kind: ClassVar[str] = "snapshot"
    view: Mapping[str, Any] = field(default_factory=dict)
