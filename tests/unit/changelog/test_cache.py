"""The cache on disk: one download, bounded disk, and files that go when nobody reads them."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dstl_dagster.changelog import FsStateChangelogStorage, FsStateChangelogStorageView, ReadCache
from dstl_dagster.changelog.reader.disk_cache import DiskCache
from dstl_dagster.errors import UnavailableError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, SequenceNumber, StreamStateHandle
from dstl_dagster.storage import ABSENT, LocalObjectStore, MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock
from tests.doubles.uploads import ManualTimer


def cached_files(directory: Path) -> dict[int, int]:
    """A descriptor of each file without a name that this process has in the directory, by its inode."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if link.readlink().is_relative_to(directory) and link.stat().st_nlink == 0:
                found[link.stat().st_ino] = int(link.name)
    return found


class CountingStore(MemoryObjectStore):
    """A store that counts downloads and can break them."""

    def __init__(self) -> None:
        super().__init__()
        self.downloads = 0
        self.breaks = 0

    def get_range(self, name: str, *arguments: Any, **how: Any) -> Any:
        self.downloads += 1
        return super().get_range(name, *arguments, **how)

    def open_read(self, name: str, **arguments: Any) -> Any:
        self.downloads += 1
        reader = super().open_read(name, **arguments)
        if self.breaks > 0:
            self.breaks -= 1

            class Broken:
                def read(self, size: int = -1) -> bytes:
                    raise UnavailableError("the line broke")

                def close(self) -> None:
                    reader.close()

            return Broken()
        return reader


class Fixture:
    """A cache under a turned clock, and a store with files of 10 bytes."""

    def __init__(self, directory: Path, max_bytes: int = 100, max_files: int | None = None) -> None:
        self.directory = directory
        self.store = CountingStore()
        self.clock, self.timer = VirtualClock(), ManualTimer()
        self.disk = DiskCache(
            directory, 60, max_bytes, max_files=max_files, clock=self.clock, timer=self.timer
        )
        self.cache = ReadCache(0, self.disk)

    def open(self, name: str) -> Any:
        if self.store.stat(name) is None:
            self.store.put(name, name.encode().ljust(10), precondition=ABSENT)
        return self.cache.open(self.store, StreamStateHandle(name, None))

    def files(self) -> int:
        return len(cached_files(self.directory))


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[Fixture]:
    fixture = Fixture(tmp_path)
    yield fixture
    fixture.cache.close()


def test_close_stream_twice(cached: Fixture) -> None:
    """ChangelogStreamHandleReaderWithCacheTest.testCloseStreamTwice: it gives up one hold; re-open works."""
    first, second = cached.open("a"), cached.open("a")
    first.close()
    first.close()
    cached.timer.advance(61)
    assert cached.files() == 1
    assert bytes(second.read_range(0, 1)) == b"a"
    second.close()
    again = cached.open("a")
    assert bytes(again.read_range(0, 10)) == b"a         "
    again.close()
    assert cached.store.downloads == 1


def test_an_idle_file_goes_after_its_time(cached: Fixture) -> None:
    """A file nobody reads is deleted after the idle time, counted from the last use, not from an earlier."""
    cached.open("a").close()
    cached.timer.advance(59)
    cached.clock.advance(59)
    cached.open("a").close()
    cached.timer.advance(59)
    assert cached.files() == 1
    cached.timer.advance(1)
    assert cached.files() == 0
    assert cached.disk.cached_bytes == 0


@pytest.mark.parametrize("limit", [{"max_bytes": 25}, {"max_files": 2}], ids=["disk", "descriptors"])
def test_disk_and_descriptors_are_bounded(tmp_path: Path, limit: dict[str, int]) -> None:
    """Idle files make room, the longest idle first; what does not fit is read from the store instead."""
    cached = Fixture(tmp_path, **limit)
    held = cached.open("held")
    cached.open("old").close()
    cached.clock.advance(1)
    new = cached.open("new")
    assert cached.files() == 2
    assert cached.open("too much") is None
    assert cached.disk.cached_bytes == 20
    for each in (held, new):
        each.close()
    cached.cache.close()
    assert cached.files() == 0


def test_a_failed_download_leaves_nothing(cached: Fixture) -> None:
    """A download that breaks is an error, leaves no file and no reserved disk; the next one works."""
    cached.store.breaks = 1
    with pytest.raises(UnavailableError):
        cached.open("a")
    assert (cached.files(), cached.disk.cached_bytes) == (0, 0)
    cached.open("a").close()


def test_a_local_store_is_not_cached(tmp_path: Path) -> None:
    """Files that lie on this machine already are read where they are."""
    store = LocalObjectStore(tmp_path / "store", durable=False)
    store.put("a", b"x", precondition=ABSENT)
    cache = ReadCache(0, DiskCache(tmp_path, 60, 100))
    assert cache.open(store, StreamStateHandle("a", None)) is None
    cache.close()


def test_close_deletes_what_is_idle_at_once_and_the_rest_when_let_go(tmp_path: Path) -> None:
    """After close nothing new is cached, and no file is left once its reader ends."""
    cached = Fixture(tmp_path)
    held = cached.open("held")
    cached.open("idle").close()
    cached.cache.close()
    assert cached.files() == 1
    assert bytes(held.read_range(0, 4)) == b"held"
    assert cached.open("more") is None
    held.close()
    assert (cached.files(), cached.disk.cached_bytes) == (0, 0)


def test_many_readers_download_once(tmp_path: Path) -> None:
    """Threads that want one file at the same time share one download."""
    cached = Fixture(tmp_path)
    cached.open("a").close()
    store, cache = CountingStore(), ReadCache(0, DiskCache(tmp_path, 60, 100))
    store.put("a", b"x" * 10, precondition=ABSENT)
    barrier = threading.Barrier(8)
    sources: list[Any] = []

    def read() -> None:
        barrier.wait(20)
        sources.append(cache.open(store, StreamStateHandle("a", None)))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (len(sources), store.downloads) == (8, 1)
    for source in sources:
        source.close()
    cache.close()
    cached.cache.close()


def test_a_recovery_reads_through_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view downloads a file once for all change sets in it, verifies them, and leaves no file behind."""
    store = CountingStore()
    with (
        FsStateChangelogStorage("job", store) as storage,
        storage.create_writer("op", KeyGroupRange.of(0, 9)) as writer,
    ):
        for key_group in range(10):
            writer.append(key_group, b"%d" % key_group)
            writer.next_sequence_number()
        handle = writer.persist(SequenceNumber.of(0), 1).result().job_manager_owned_snapshot
    assert handle is not None
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with FsStateChangelogStorageView(store) as view:
        for _ in range(3):
            assert [each.change for each in view.create_reader().read(handle)] == [
                b"%d" % each for each in range(10)
            ]
        assert store.downloads == 1
    assert not cached_files(tmp_path)


def test_a_harmed_cached_file_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached file that was altered on disk is found out, and the store is read instead."""
    store = CountingStore()
    with (
        FsStateChangelogStorage("job", store) as storage,
        storage.create_writer("op", KeyGroupRange.of(0, 9)) as writer,
    ):
        writer.append(1, b"precious")
        handle = writer.persist(SequenceNumber.of(0), 1).result().job_manager_owned_snapshot
    assert isinstance(handle, ChangelogStateHandle)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with FsStateChangelogStorageView(store) as view:
        assert len(list(view.create_reader().read(handle))) == 1
        (descriptor,) = cached_files(tmp_path).values()
        (octet,) = os.pread(descriptor, 1, 18)
        os.pwrite(descriptor, bytes([octet ^ 1]), 18)
        assert list(view.create_reader().read(handle)) == [(1, b"precious")]


def test_a_cached_file_has_no_name(cached: Fixture) -> None:
    """No other user or process can open it, and the kernel deletes it with the process."""
    source = cached.open("a")
    assert cached.files() == 1
    assert list(cached.directory.iterdir()) == []
    source.close()


def test_reserved_disk_is_given_back_after_any_failure(
    cached: Fixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No disk, no descriptor, a stop in the middle: nothing stays reserved, and the next download works."""
    full = OSError(errno.ENOSPC, "no space left")
    for function, error in (
        *((tempfile.TemporaryFile, each) for each in (full, full, KeyboardInterrupt())),
        *((os.dup, each) for each in (OSError(errno.EMFILE, "too many open files"), KeyboardInterrupt())),
    ):

        def refuse(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(tempfile if function is tempfile.TemporaryFile else os, function.__name__, refuse)
            if isinstance(error, OSError):
                assert cached.open("a") is None
            else:
                with pytest.raises(KeyboardInterrupt):
                    cached.open("a")
        taken = 1 if function is os.dup else 0
        assert (cached.files(), cached.disk.cached_bytes) == (taken, 10 * taken)
    (warning,) = caplog.records  # once for each error
    assert "no space left" in warning.getMessage()
    cached.open("b").close()


def test_a_reader_may_end_while_the_cache_is_closed(tmp_path: Path) -> None:
    """A file that becomes idle when the timer takes nothing more goes at once; its reader sees no error."""
    cached = Fixture(tmp_path)
    source = cached.open("a")
    cached.timer.close()
    source.close()
    assert (cached.files(), cached.disk.cached_bytes) == (0, 0)
    cached.cache.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_cache_that_nobody_closed_frees_its_disk(tmp_path: Path) -> None:
    """Its files go with the last reference to it."""
    cached = Fixture(tmp_path)
    cached.open("a").close()
    assert cached.files() == 1
    cached.timer = cached.cache = cached.disk = None  # type: ignore[assignment]
    gc.collect()
    assert cached.files() == 0
