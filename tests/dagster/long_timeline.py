"""A store in memory whose job has completed any number of checkpoints: old records are generated on demand.

The last of them is retained, with its manifest; a snapshot follows them, as in a real timeline.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, Manifest
from dstl_dagster.errors import NotFoundError
from dstl_dagster.format.names import JobNames
from dstl_dagster.keyed import store_manifest
from dstl_dagster.storage import ABSENT, MemoryObjectStore, ObjectStat
from dstl_dagster.timeline import (
    CheckpointEntry,
    Committed,
    Completed,
    Opened,
    Snapshot,
    TimelineRecord,
    TimelineView,
)
from dstl_dagster.timeline.record_codec import encode_record, view_to_plain
from dstl_dagster.timeline.tail import TailReader

JOB = "days"
NAMES = JobNames(JOB, f"{1:016x}")
MADE_AT = datetime(2024, 1, 1, tzinfo=UTC)
_PER_CHECKPOINT = 3


class LongTimeline(MemoryObjectStore):
    """`count` checkpoints in the slots 1 to 3 * count, and a snapshot in the next one."""

    def __init__(self, count: int) -> None:
        super().__init__("long")
        self._count = count
        self._last_old = _PER_CHECKPOINT * count
        self._add_end()

    @property
    def snapshot_slot(self) -> int:
        return self._last_old + 1

    def record(self, slot: int) -> TimelineRecord:
        """An old record."""
        number, part = (slot - 1) // _PER_CHECKPOINT + 1, (slot - 1) % _PER_CHECKPOINT
        parent = number - 1 or None
        common = {"slot": slot, "decision_id": uuid.UUID(int=slot << 64), "recorded_at": MADE_AT}
        attempt = uuid.UUID(int=number << 64)
        if part == 0:
            return Opened(
                attempt=attempt, checkpoint_id=number, parent=parent, owner="spark-submit", **common
            )
        if part == 1:
            name = NAMES.manifest(number, attempt)
            return Completed(attempt=attempt, checkpoint_id=number, parent=parent, manifest=name, **common)
        return Committed(checkpoint_id=number, **common)

    def _add_end(self) -> None:
        completed, committed = self.record(self._last_old - 1), self.record(self._last_old)
        assert isinstance(completed, Completed)
        assert isinstance(committed, Committed)
        number = completed.checkpoint_id
        attempt = Attempt(number, completed.attempt, completed.parent, JOB, self.uri)
        store_manifest(self, attempt, Manifest(JOB, number, completed.attempt, completed.parent))
        view = TimelineView(
            slot=self._last_old,
            checkpoints={number: CheckpointEntry(completed, committed)},
            last_completed_id=number,
            highest_id=number,
        )
        snapshot = Snapshot(
            slot=self.snapshot_slot,
            decision_id=uuid.uuid4(),
            recorded_at=MADE_AT,
            view=view_to_plain(view),
        )
        self.put(NAMES.slot(self.snapshot_slot), encode_record(snapshot), precondition=ABSENT)
        TailReader(self, NAMES).write_hint(self.snapshot_slot)

    def complete_more(self, count: int) -> None:
        """More checkpoints, by the coordinator itself."""
        coordinator = CheckpointCoordinator(JOB, self, owner="spark-submit")
        for _ in range(count):
            attempt = coordinator.trigger()
            coordinator.record(attempt)
            coordinator.confirm(attempt)
            coordinator.compose_commit()

    # ---- generating the old records ----

    def _old(self, name: str) -> bytes | None:
        slot, _ = (NAMES.slot_of(name) if name.startswith(NAMES.timeline_prefix) else None) or (None, "")
        return encode_record(self.record(slot)) if slot is not None and slot <= self._last_old else None

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        old = self._old(name)
        return super().get(name, generation=generation) if old is None else old

    def stat(self, name: str, *, generation: int | None = None) -> ObjectStat | None:
        old = self._old(name)
        if old is None:
            return super().stat(name, generation=generation)
        return ObjectStat(name, 1, len(old), 0, MADE_AT)

    def list(self, prefix: str = "", *, start_offset: str | None = None) -> Iterator[ObjectStat]:
        if prefix == NAMES.timeline_prefix:
            first = 1 if start_offset is None else int(start_offset.removeprefix(prefix))
            for slot in range(first, self._last_old + 1):
                found = self.stat(NAMES.slot(slot))
                if found is None:
                    raise NotFoundError(f"slot {slot}")
                yield found
        yield from super().list(prefix, start_offset=start_offset)
