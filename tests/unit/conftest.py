"""A job in memory, and the things that its tasks would make: changelog files and components."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import Attempt, Checkpoint, CheckpointCoordinator, FileReport, OperatorReport
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StreamStateHandle
from dstl_dagster.keyed import KeyedState, Run, SharedFiles, with_merge, write_rows
from dstl_dagster.keyed.documents.runs import Merge
from dstl_dagster.keyed.merge.policy import DueMerge
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings import CheckpointOptions, GSFileSystemOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ABSENT, MemoryObjectStore, ObjectStore

JOB = "orders"


class CountingStore(MemoryObjectStore):
    """Notes which objects are read, in whole or in part."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        self.read.append(name)
        return super().get(name, generation=generation)

    def get_range(self, name: str, start: int, length: int, *, generation: int | None = None) -> bytes:
        self.read.append(name)
        return super().get_range(name, start, length, generation=generation)

    @property
    def changelog_files(self) -> int:
        """How many reads were of changelog files."""
        return sum("/changelog/" in name for name in self.read)


@pytest.fixture
def counting_store() -> CountingStore:
    """An empty store that counts."""
    return CountingStore()


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

    def base(self, attempt: Attempt, operator: str = "totals") -> OperatorReport:
        """A file that is the operator's whole state, and the report of it: a merge, if there is state."""
        report = self.changes(attempt, operator, b"everything")
        if attempt.builds_on is None:
            return report
        run = Run(0, attempt.builds_on, report.handles, merged=True, whole=True)
        merge = Merge(KeyGroupRange.of(0, 127), run)
        return dataclasses.replace(report, handles=(), upserts=0, merges=(merge,))

    def file(
        self, attempt: Attempt, name: str, *parts: bytes, options: GSFileSystemOptions | None = None
    ) -> FileReport:
        """A file written as one component a part, and the report of it."""
        writer = GSRecoverableWriter(self.store, options, attempt=attempt.attempt)
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


class KeyedJob:
    """A job with keyed state in memory: one operator, and the shortest way to its checkpoints."""

    OPERATOR = "aircraft"
    SCHEMA = StateSchema.of(pa.schema({"tail": pa.string(), "flights": pa.int64()}), ["tail"], 16)

    def __init__(self, store: ObjectStore, **options: object) -> None:
        self.store = store
        self.coordinator = CheckpointCoordinator(
            JOB,
            store,
            CheckpointOptions(**options),  # type: ignore[arg-type] # given by the tests
            owner="test",
        )

    def report(
        self,
        attempt: Attempt,
        upserts: Sequence[Mapping[str, Any]],
        deletes: Sequence[Mapping[str, Any]] = (),
        *,
        schema: StateSchema | None = None,
        operator: str = OPERATOR,
        partitions: int = 2,
    ) -> OperatorReport:
        schema = schema or self.SCHEMA
        rows = pa.Table.from_pylist([*upserts, *deletes], schema=schema.columns)
        deleted = pa.array([False] * len(upserts) + [True] * len(deletes), pa.bool_())
        return write_rows(
            rows,
            attempt,
            self.store,
            operator=operator,
            schema=schema,
            deleted=deleted,
            partitions=partitions,
        )

    def changes(self, *changes: object, **how: object) -> Checkpoint:
        """One checkpoint with these changes; arguments as `report` has them."""
        attempt = self.coordinator.trigger()
        return self.complete(attempt, self.report(attempt, *changes, **how))  # type: ignore[arg-type]

    def complete(self, attempt: Attempt, *reports: OperatorReport) -> Checkpoint:
        self.coordinator.record(attempt, reports)
        self.coordinator.confirm(attempt)
        self.coordinator.compose_commit()
        return self.coordinator.get(attempt.checkpoint_id)

    def state(self, checkpoint: Checkpoint | None = None, operator: str = OPERATOR) -> KeyedState:
        at = checkpoint or self.coordinator.latest()
        assert at is not None
        state = KeyedState.of(self.store, at.manifest, operator)
        assert state is not None
        return state

    def merging(
        self,
        *changes: object,
        key_groups: KeyGroupRange = KeyGroupRange.of(0, 15),  # noqa: B008 - a constant
        first: int = 0,
        **how: object,
    ) -> Checkpoint:
        """One checkpoint that merges the runs of some key groups from `first` on, below these changes."""
        latest = self.coordinator.latest()
        assert latest is not None
        attempt = self.coordinator.trigger()
        before = latest.manifest.operators[self.OPERATOR]
        report = self.report(attempt, *changes, **how) if changes else before.report.unchanged()  # type: ignore[arg-type]
        return self.complete(attempt, self.merged(attempt, report, latest, DueMerge(key_groups, first)))

    def merged(
        self, attempt: Attempt, report: OperatorReport, parent: Checkpoint, due: DueMerge
    ) -> OperatorReport:
        """The report with this merge below it, durable."""
        shared = SharedFiles(self.store, attempt)
        return shared.durable_now(with_merge(report, parent.manifest, due, shared))

    def rows(self, checkpoint: Checkpoint | None = None) -> list[dict[str, Any]]:
        """The rows, by the order of their keys."""
        tables = self.state(checkpoint).tables()
        return sorted((row for table in tables for row in table.to_pylist()), key=repr)

    def names(self, prefix: str = "") -> list[str]:
        return [stat.name for stat in self.store.list(prefix)]


@pytest.fixture
def keyed() -> KeyedJob:
    return KeyedJob(MemoryObjectStore())


@pytest.fixture
def keyed_on() -> type[KeyedJob]:
    """For a test that chooses the store or the options."""
    return KeyedJob


@pytest.fixture
def job() -> Job:
    return Job(MemoryObjectStore())


@pytest.fixture
def job_of() -> type[Job]:
    """For a test that chooses the store."""
    return Job


@pytest.fixture
def uuids() -> Callable[[], uuid.UUID]:
    """UUIDs that count up, so that a failure shows the same names again."""
    numbers = iter(range(1, 10_000))
    return lambda: uuid.UUID(int=next(numbers) << 64)


@pytest.fixture
def job_on() -> type[Job]:
    """For a test that chooses the store."""
    return Job
