"""What tests of round trips share: a store that counts its requests, and a job with a long past."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, OperatorReport
from dstl_dagster.checkpoint.steps.record import build_manifest
from dstl_dagster.errors import ConflictError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StreamStateHandle
from dstl_dagster.keyed import AttemptReport, Manifest, store_manifest
from dstl_dagster.storage import ABSENT, ObjectStat, ObjectStore, Precondition, WrapperStore
from dstl_dagster.timeline import Committed, Completed, Opened, Subsumed

PAGE = 1000


class Counted(WrapperStore):
    """Counts requests by method; a page of a listing is one, and a batch is one."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.requests: Counter[str] = Counter()

    def in_bucket(self, bucket_name: str) -> ObjectStore:
        other = super().in_bucket(bucket_name)
        assert isinstance(other, Counted)
        return other

    def spent(self) -> int:
        """The requests since the last call."""
        found = self.requests.total()
        self.requests.clear()
        return found

    def put(self, name: str, payload: Any, **how: Any) -> ObjectStat:
        self.requests["put"] += 1
        return super().put(name, payload, **how)

    def stat(self, name: str, **how: Any) -> ObjectStat | None:
        self.requests["stat"] += 1
        return super().stat(name, **how)

    def get(self, name: str, **how: Any) -> bytes:
        self.requests["get"] += 1
        return super().get(name, **how)

    def get_range(self, name: str, start: int, length: int, **how: Any) -> bytes | memoryview:
        self.requests["get_range"] += 1
        return super().get_range(name, start, length, **how)

    def open_read(self, name: str, **how: Any) -> Any:
        self.requests["open_read"] += 1
        return super().open_read(name, **how)

    def list(self, prefix: str = "", **how: Any) -> Iterator[ObjectStat]:
        for at, stat in enumerate(super().list(prefix, **how)):
            self.requests["list"] += at % PAGE == 0
            yield stat
        if not any(True for _ in super().list(prefix, **how)):
            self.requests["list"] += 1

    def list_first(self, prefix: str, count: int, **how: Any) -> Sequence[ObjectStat]:
        self.requests["list"] += 1
        return super().list_first(prefix, count, **how)

    def compose(self, sources: Any, target: str, **how: Any) -> ObjectStat:
        self.requests["compose"] += 1
        return super().compose(sources, target, **how)

    def delete(self, name: str, **how: Any) -> bool:
        self.requests["delete"] += 1
        return super().delete(name, **how)

    def delete_all(self, objects: Sequence[tuple[str, Precondition]]) -> Sequence[bool | ConflictError]:
        self.requests["delete_all"] += 1
        return super().delete_all(objects)


class Past:
    """A job with many checkpoints, written without the steps: as fast as the store takes them.

    Each checkpoint adds one changelog file to one operator. No snapshot is written.
    """

    def __init__(self, store: ObjectStore, coordinator: CheckpointCoordinator) -> None:
        self.store = store
        self.coordinator = coordinator
        self._parent: Manifest | None = None

    def add(self, count: int) -> None:
        """So many more checkpoints, each committed."""
        for _ in range(count):
            self._add()

    def subsume(self, *checkpoint_ids: int) -> None:
        self.coordinator.timeline.append(Subsumed(checkpoint_ids=checkpoint_ids))

    def _add(self) -> None:
        timeline, parent = self.coordinator.timeline, self._parent
        number = 1 if parent is None else parent.checkpoint_id + 1
        above = None if parent is None else parent.checkpoint_id
        attempt = Attempt(number, uuid.uuid4(), above, self.coordinator.job, self.store.uri)
        timeline.append(Opened(attempt=attempt.attempt, checkpoint_id=number, parent=above, owner="past"))
        name = f"{attempt.names.changelog_base_path(attempt.attempt)}/orders/dstl/{uuid.uuid4()}"
        stat = self.store.put(name, b"changes", precondition=ABSENT)
        stream = StreamStateHandle(name, 7, stat.generation, stat.crc32c, stat.size)
        handle = ChangelogStateHandle(((stream, 0),), KeyGroupRange.of(0, 127), 7, 7)
        report = AttemptReport((OperatorReport("totals", (handle,), ("key",), 128, b""),), (), {}, 0.0)
        self._parent = build_manifest(attempt, report, parent)
        self._parent = store_manifest(self.store, attempt, self._parent)
        manifest = attempt.names.manifest(number, attempt.attempt)
        timeline.append(
            Completed(attempt=attempt.attempt, checkpoint_id=number, parent=above, manifest=manifest)
        )
        timeline.append(Committed(checkpoint_id=number))
