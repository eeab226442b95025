"""The conformance suite over the stores that need no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstl_dagster.storage import LocalObjectStore
from dstl_dagster.storage.base import ObjectStore
from dstl_dagster.storage.memory import MemoryObjectStore, open_memory
from dstl_dagster.storage.policy.retry import Retries, RetryPolicy
from dstl_dagster.storage.wrapper import WrapperStore
from dstl_dagster.testing.conformance import ObjectStoreConformance, RawRead
from dstl_dagster.testing.fault_schedules import Fault, FaultSchedule, Request, SeededFaults
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.testing.virtual_clock import VirtualClock
from tests.doubles.retrying_store import RetryingStore


class NotWhileStreaming:
    """Spares the parts of a stream: by contract, a failure there ends the stream."""

    def __init__(self, schedule: FaultSchedule) -> None:
        self._schedule = schedule

    def decide(self, request: Request) -> Fault | None:
        return None if request.method == "write" else self._schedule.decide(request)

    def deliver_late_effect(self) -> bool:
        return False


class TestMemory(ObjectStoreConformance):
    @pytest.fixture
    def store(self) -> MemoryObjectStore:
        return MemoryObjectStore()

    @pytest.fixture
    def raw_read(self, store: MemoryObjectStore) -> RawRead:
        def read(name: str) -> bytes | None:
            found = store._account.buckets.get("memory")
            kept = found.objects.get(name) if found else None
            return kept.payload if kept else None

        return read


class TestMemoryBelowAPrefix(ObjectStoreConformance):
    @pytest.fixture
    def store(self) -> ObjectStore:
        self.whole = MemoryObjectStore()
        return open_memory(f"{self.whole.uri}/some/prefix")

    @pytest.fixture
    def raw_read(self, store: ObjectStore) -> RawRead:
        def read(name: str) -> bytes | None:
            found = self.whole._account.buckets.get("memory")
            kept = found.objects.get(f"some/prefix/{name}") if found else None
            return kept.payload if kept else None

        return read


class TestRetryingOverFaults(ObjectStoreConformance):
    """Retries hide errors before the effect, on one request in five."""

    @pytest.fixture
    def store(self) -> RetryingStore:
        self.inner = MemoryObjectStore()
        faults = SeededFaults(11, 0.2, [Fault.ERROR_BEFORE, Fault.DELAY])
        policy = RetryPolicy(max_attempts=12, total_seconds=None)
        return RetryingStore(
            FaultStore(self.inner, NotWhileStreaming(faults)), Retries(policy, clock=VirtualClock())
        )

    @pytest.fixture
    def raw_read(self, store: RetryingStore) -> RawRead:
        def read(name: str) -> bytes | None:
            found = self.inner._account.buckets.get("memory")
            kept = found.objects.get(name) if found else None
            return kept.payload if kept else None

        return read


class TestFaultStoreWithoutFaults(ObjectStoreConformance):
    @pytest.fixture
    def store(self) -> FaultStore:
        self.inner = MemoryObjectStore()
        return FaultStore(self.inner)

    @pytest.fixture
    def raw_read(self, store: FaultStore) -> RawRead:
        def read(name: str) -> bytes | None:
            found = self.inner._account.buckets.get("memory")
            kept = found.objects.get(name) if found else None
            return kept.payload if kept else None

        return read


class TestLocal(ObjectStoreConformance):
    file_beside_folder = False
    empty_levels = False
    long_levels = False

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalObjectStore(tmp_path / "root")

    @pytest.fixture
    def raw_read(self, tmp_path: Path) -> RawRead:
        def read(name: str) -> bytes | None:
            path = tmp_path / "root" / name
            return path.read_bytes() if path.is_file() else None

        return read


class TestWrappedLocal(TestLocal):
    """A wrapper loses neither a method nor a capability of its inner store."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return FaultStore(WrapperStore(LocalObjectStore(tmp_path / "root")))
