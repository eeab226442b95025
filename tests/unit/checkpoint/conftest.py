"""A job in memory, and the things that its tasks would make: changelog files and components."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, FileReport, OperatorReport
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StreamStateHandle
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.storage import ABSENT, MemoryObjectStore, ObjectStore

JOB = "orders"


class Job:
    """One job and its tasks."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def coordinator(self, owner: str = "test", **options: object) -> CheckpointCoordinator:
        return CheckpointCoordinator(JOB, self.store, CheckpointOptions(**options), owner=owner)  # type: ignore[arg-type]

    def changes(
        self, attempt: Attempt, operator: str = "totals", payload: bytes = b"changes"
    ) -> OperatorReport:
        """A task's changelog file, and the report of it."""
        name = f"{attempt.names.changelog_base_path(attempt.attempt)}/{JOB}/dstl/{uuid.uuid4()}"
        stat = self.store.put(name, payload, precondition=ABSENT)
        stream = StreamStateHandle(name, len(payload), stat.generation, stat.crc32c, stat.size)
        handle = ChangelogStateHandle(((stream, 0),), KeyGroupRange.of(0, 127), len(payload), len(payload))
        return OperatorReport(operator, (handle,), ("key",), 128, b"schema", upserts=1)

    def file(self, attempt: Attempt, name: str, *parts: bytes) -> FileReport:
        """A file written as one component a part, and the report of it."""
        writer = GSRecoverableWriter(self.store, attempt=attempt.attempt)
        stream = writer.open(self.store.uri_of(name))
        for part in parts:
            stream.write(part)
            stream.sync()
        committer = stream.close_for_commit()
        return FileReport(committer.recoverable, tuple(committer.components), rows=len(parts), format="text")

    def checkpoint(
        self, coordinator: CheckpointCoordinator, position: int, *, key: str | None = None
    ) -> Attempt:
        """One whole checkpoint with state, a file and a position."""
        attempt = coordinator.trigger(idempotency_key=key)
        coordinator.record(
            attempt,
            [self.changes(attempt)],
            [self.file(attempt, f"out/{position}.txt", b"a", b"b")],
            {"source": position},
        )
        coordinator.confirm(attempt)
        coordinator.compose_commit()
        return attempt

    def names(self, prefix: str = "") -> list[str]:
        return [stat.name for stat in self.store.list(prefix)]


@pytest.fixture
def job() -> Job:
    return Job(MemoryObjectStore())


@pytest.fixture
def uuids() -> Callable[[], uuid.UUID]:
    """UUIDs that count up, so that a failure shows the same names again."""
    numbers = iter(range(1, 10_000))
    return lambda: uuid.UUID(int=next(numbers) << 64)
