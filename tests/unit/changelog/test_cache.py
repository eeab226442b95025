"""The cache on disk: one download, bounded disk, and files that go when nobody reads them."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dstl_dagster.changelog import FsStateChangelogStorage, FsStateChangelogStorageView, ReadCache
from dstl_dagster.changelog.reader.disk_cache import DiskCache
from dstl_dagster.errors import UnavailableError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, SequenceNumber, StreamStateHandle
from dstl_dagster.storage import ABSENT, LocalObjectStore, MemoryObjectStore, PrivateFile
from dstl_dagster.testing.uploads import ManualTimer
from dstl_dagster.testing.virtual_clock import VirtualClock


def cached_files(directory: Path) -> list[Path]:
    """Without the locks of their folders."""
    return [path for path in directory.rglob("*") if path.is_file() and path.suffix != ".lock"]


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

    def __init__(self, directory: Path, max_bytes: int = 100) -> None:
        self.directory = directory
        self.store = CountingStore()
        self.clock, self.timer = VirtualClock(), ManualTimer()
        self.disk = DiskCache(directory, 60, max_bytes, clock=self.clock, timer=self.timer)
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


def test_disk_is_bounded(tmp_path: Path) -> None:
    """Idle files make room, the longest idle first; what does not fit is read from the store instead."""
    cached = Fixture(tmp_path, max_bytes=25)
    held = cached.open("held")
    cached.open("old").close()
    cached.clock.advance(1)
    assert cached.open("new") is not None
    assert cached.files() == 2
    assert cached.open("too much") is None
    assert cached.disk.cached_bytes == 20
    held.close()
    cached.cache.close()


def test_a_failed_download_leaves_nothing(cached: Fixture) -> None:
    """A download that breaks is an error, leaves no file and no reserved disk; the next one works."""
    cached.store.breaks = 1
    with pytest.raises(UnavailableError):
        cached.open("a")
    assert (cached.files(), cached.disk.cached_bytes) == (0, 0)
    assert cached.open("a") is not None


def test_a_local_store_is_not_cached(tmp_path: Path) -> None:
    """Files that lie on this machine already are read where they are."""
    store = LocalObjectStore(tmp_path / "store", durable=False)
    store.put("a", b"x", precondition=ABSENT)
    cache = ReadCache(0, DiskCache(tmp_path / "cache", 60, 100))
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
    store, cache = CountingStore(), ReadCache(0, DiskCache(tmp_path / "other", 60, 100))
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
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


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
        (path,) = cached_files(tmp_path)
        content = bytearray(path.read_bytes())
        content[18] ^= 1
        path.write_bytes(content)
        assert list(view.create_reader().read(handle)) == [(1, b"precious")]


def other_owner(home: Path) -> None:
    home.mkdir(0o700)
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(home, 65534, 65534)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "link": lambda home: home.symlink_to(home.parent / "elsewhere"),
    "file": lambda home: home.write_bytes(b""),
    "open to others": lambda home: (home.mkdir(), home.chmod(0o770)),
    "another's": other_owner,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_folder_that_others_can_change_is_not_used(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named once, and files are read from the store."""
    hostile, elsewhere = tmp_path / "hostile", tmp_path / "hostile" / "elsewhere"
    elsewhere.mkdir(parents=True)
    home = hostile / f"dstl-cache-{os.geteuid()}"
    HOSTILE[kind](home)
    store = CountingStore()
    disk = DiskCache(hostile, 60, 100, timer=ManualTimer())
    cache = ReadCache(0, disk)
    for name in "ab":
        store.put(name, name.encode(), precondition=ABSENT)
        assert cache.open(store, StreamStateHandle(name, None)) is None
    assert disk.cached_bytes == 0
    (record,) = caplog.records
    assert str(home) in record.getMessage()
    cache.close()
    assert not any(elsewhere.iterdir())
    assert home.is_symlink() or home.is_file() or not any(home.iterdir())


def test_the_folder_is_this_users_alone(cached: Fixture) -> None:
    """No other user can enter it, and no other process uses it."""
    source = cached.open("a")
    (path,) = cached_files(cached.directory)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path.parents[1], path.parent, path)] == [
        0o700,
        0o700,
        0o600,
    ]
    other = ReadCache(0, DiskCache(cached.directory, 60, 100, timer=ManualTimer()))
    kept = other.open(cached.store, StreamStateHandle("a", None))
    assert kept is not None
    assert len({path.parent for path in cached_files(cached.directory)}) == 2
    kept.close()
    other.close()
    source.close()
    assert cached.files() == 1


def test_reserved_disk_is_given_back_after_any_failure(
    cached: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder, no descriptor, a stop in the middle: nothing stays reserved, and the next download works."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: -1)  # nobody's folder
        assert cached.open("a") is None
    assert cached.disk.cached_bytes == 0
    cached.open("a").close()
    for error in (OSError(errno.EMFILE, "too many open files"), KeyboardInterrupt()):

        def refuse(*_: object, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(PrivateFile, "open", refuse)
            if isinstance(error, OSError):
                assert cached.open("b") is None
            else:
                with pytest.raises(KeyboardInterrupt):
                    cached.open("b")
        assert (cached.files(), cached.disk.cached_bytes) == (1, 10)
    assert cached.open("b") is not None


def test_a_file_that_somebody_removed_is_downloaded_again(cached: Fixture) -> None:
    """It is cached anew, in a new folder where that is gone; the disk of the first is free."""
    cached.open("a").close()
    shutil.rmtree(next(cached.directory.iterdir()))
    again = cached.open("a")
    assert bytes(again.read_range(0, 1)) == b"a"
    assert (cached.files(), cached.disk.cached_bytes) == (1, 10)
    again.close()
    assert cached.store.downloads == 2


def test_a_reader_may_end_while_the_cache_is_closed(tmp_path: Path) -> None:
    """A file that becomes idle when the timer takes nothing more goes at once; its reader sees no error."""
    cached = Fixture(tmp_path)
    source = cached.open("a")
    cached.timer.close()
    source.close()
    assert (cached.files(), cached.disk.cached_bytes) == (0, 0)
    cached.cache.close()
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_cache_that_nobody_closed_frees_its_disk(tmp_path: Path) -> None:
    """Its files go with the last reference to it."""
    cached = Fixture(tmp_path)
    cached.open("a").close()
    assert cached.files() == 1
    cached.timer = cached.cache = cached.disk = None  # type: ignore[assignment]
    gc.collect()
    assert cached.files() == 0
