"""What a store declares, and that callers choose by it and by nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dstl_dagster import storage
from dstl_dagster.changelog import ReadCache
from dstl_dagster.changelog.reader.disk_cache import DiskCache
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import StreamStateHandle
from dstl_dagster.registry import TaskChangelogRegistry
from dstl_dagster.settings import FsStateChangelogOptions, LocalRecoveryConfig
from dstl_dagster.storage import (
    ABSENT,
    LocalObjectStore,
    MemoryObjectStore,
    ObjectStore,
    StoreCapabilities,
    WrapperStore,
)
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.upload.scheduler import scheduler_from_config
from tests.doubles.uploads import CallerExecutor, ManualTimer

NEAR = StoreCapabilities(is_local=True, max_useful_threads=1)


class Declares(WrapperStore):
    """A store that declares something else than the one beneath."""

    def __init__(self, inner: ObjectStore, declared: StoreCapabilities) -> None:
        super().__init__(inner)
        self.declared = declared

    @property
    def capabilities(self) -> StoreCapabilities:
        return self.declared


def test_a_store_that_says_nothing_is_a_bucket_behind_a_network() -> None:
    """A store that derives from the contract inherits defaults that are true of any store."""

    class Silent(ObjectStore):
        pass

    assert Silent().capabilities == StoreCapabilities()
    assert not StoreCapabilities().is_local
    assert Silent().open_ranges("a") is None


def test_useful_threads() -> None:
    """As many as wanted where there is no limit, never more than the limit, always one."""
    assert StoreCapabilities().useful_threads(8) == 8
    assert StoreCapabilities(max_useful_threads=2).useful_threads(8) == 2
    assert StoreCapabilities(max_useful_threads=2).useful_threads(1) == 1
    with pytest.raises(InvalidInputError):
        StoreCapabilities(max_useful_threads=0)


def test_look_ups_on_this_machine_take_one_thread() -> None:
    """More only wait for the interpreter; across a network as many as are useful."""
    near = StoreCapabilities(is_local=True, max_useful_threads=2)
    assert (near.useful_threads(8), near.lookup_threads(8)) == (2, 1)
    assert StoreCapabilities().lookup_threads(8) == 8
    assert StoreCapabilities(max_useful_threads=4).lookup_threads(8) == 4


def test_a_near_store_is_not_cached(tmp_path: Path) -> None:
    """The cache of a recovery keeps a copy of what is a round trip away, whatever the kind of the store."""
    cache = ReadCache(0, DiskCache(tmp_path, 60, 100, timer=ManualTimer()))
    for inner in (MemoryObjectStore(), LocalObjectStore(tmp_path / "store", durable=False)):
        inner.put("a", b"0123456789", precondition=ABSENT)
        handle = StreamStateHandle("a", None)
        assert cache.open(Declares(inner, NEAR), handle) is None
        cached = cache.open(Declares(inner, StoreCapabilities()), handle)
        assert cached is not None
        cached.close()
    cache.close()


@pytest.mark.parametrize(("declared", "threads"), [(NEAR, 1), (StoreCapabilities(), 5)])
def test_the_scheduler_starts_the_threads_that_are_worth_it(
    declared: StoreCapabilities, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more upload threads than the store declares useful, and all that are configured without a limit."""
    import concurrent.futures

    from dstl_dagster.upload import scheduler

    started = []

    class Pool(concurrent.futures.ThreadPoolExecutor):
        def __init__(self, max_workers: int, **options: str) -> None:
            started.append(max_workers)
            super().__init__(max_workers, **options)

    monkeypatch.setattr(scheduler, "ThreadPoolExecutor", Pool)
    made = scheduler_from_config(
        "job",
        Declares(MemoryObjectStore(), declared),
        FsStateChangelogOptions(num_upload_threads=5),
        TaskChangelogRegistry(lambda handle: None, CallerExecutor()),
        LocalRecoveryConfig.disabled(),
        base_path="",
    )
    made.close()
    assert started == [threads]


def test_open_ranges_meet_faults(tmp_path: Path) -> None:
    """A wrapped object that is kept open is read through the wrapper, byte for byte."""
    store = FaultStore(LocalObjectStore(tmp_path, durable=False))
    store.put("a", b"0123456789", precondition=ABSENT)
    opened = store.open_ranges("a")
    assert opened is not None
    assert opened.read_range(2, 3) == b"234"
    opened.close()
    assert [request.method for request in store.requests] == ["put", "open_ranges", "read"]


def test_the_face_loads_a_store_only_when_it_is_asked_for() -> None:
    """Every public name resolves, and importing the face loads no client, no Arrow and no store."""
    assert all(getattr(storage, name) is not None for name in storage.__all__)
    heavy = "('google.cloud', 'pyarrow', 'dstl_dagster.storage.local.store', 'dstl_dagster.storage.memory')"
    code = f"import sys, dstl_dagster.storage; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
