"""A failed fsync is told once, by Linux too: whatever was told as made after it must survive a power loss."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dstl_dagster.errors import DstlError, ErrorKind, NotFoundError, UnavailableError
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.storage import ABSENT, Generation, LocalObjectStore, Source, put_own
from dstl_dagster.storage.base import ObjectStore
from dstl_dagster.storage.policy.retry import Retries, RetryPolicy
from dstl_dagster.testing.virtual_clock import VirtualClock
from tests.doubles.retrying_store import RetryingStore

PAYLOAD = b"what was told as made"


class LosingDisk:
    """Fails chosen fsyncs, and forgets at the power loss what each of them should have made durable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: Callable[[int, str], bool] = lambda *_: False
        self.count = 0
        self._durable: set[tuple[str, str, int]] = set()
        self._lost_entries: set[tuple[str, str, int]] = set()
        self._lost_inodes: set[int] = set()
        self.held: list[int] = []  # so that no inode's number is given again
        self._real_unlink = os.unlink
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(os, "unlink", self._unlink)

    def _unlink(self, path: str | Path) -> None:
        # What is linked in again after this makes the folder's page dirty again.
        entry = (str(Path(path).parent), Path(path).name, os.lstat(path).st_ino)
        self._real_unlink(path)
        self._lost_entries.discard(entry)

    def _fsync(self, descriptor: int) -> None:
        status, number = os.fstat(descriptor), self.count
        self.count += 1
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        entries = _entries(path) if _is_folder(status) else set()
        if self.failing(number, path):
            # The page is marked clean: a later sync succeeds and writes nothing.
            self._lost_entries |= entries - self._durable
            if not _is_folder(status):
                self._lost_inodes.add(status.st_ino)
            self.held.append(os.dup(descriptor))
            self.held.extend(os.open(Path(folder, name), os.O_PATH) for folder, name, _ in entries)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._durable |= entries - self._lost_entries

    def lose_power(self, root: Path) -> None:
        """What a reboot finds."""
        for folder, name, inode in list(self._lost_entries):
            path = Path(folder, name)
            if path.exists() and path.lstat().st_ino == inode:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in root.rglob("*"):
            if path.is_file() and path.stat().st_ino in self._lost_inodes:
                path.write_bytes(b"\0" * path.stat().st_size)


def _is_folder(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode)


def _entries(folder: str) -> set[tuple[str, str, int]]:
    return {(folder, entry.name, entry.inode()) for entry in os.scandir(folder)}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[LosingDisk]:
    disk = LosingDisk(monkeypatch)
    yield disk
    for descriptor in disk.held:
        os.close(descriptor)


def retrying(root: Path) -> ObjectStore:
    clock = VirtualClock()
    return RetryingStore(LocalObjectStore(root), Retries(RetryPolicy(max_attempts=4), clock=clock))


def create(root: Path) -> bytes:
    put_own(retrying(root), "new/folder/a", PAYLOAD, writer_id="w")
    return retrying(root).get("new/folder/a")


def replace(root: Path) -> bytes:
    store = retrying(root)
    first = store.stat("old") or store.put("old", b"before", precondition=ABSENT)
    put_own(store, "old", PAYLOAD, writer_id="w", precondition=Generation(first.generation))
    return store.get("old")


def stream(root: Path) -> bytes:
    store = retrying(root)
    upload = store.open_write("out/streamed", precondition=ABSENT)
    upload.write(PAYLOAD)
    upload.close()
    return store.get("out/streamed")


def compose(root: Path) -> bytes:
    store = retrying(root)
    for name in ("one", "two"):
        if store.stat(name) is None:
            put_own(store, name, PAYLOAD, writer_id=name)
    store.compose([Source("one"), Source("two")], "both/whole", precondition=ABSENT)
    return store.get("both/whole")[: len(PAYLOAD)]


def persist(root: Path) -> bytes:
    store = retrying(root)
    writer = GSRecoverableWriter(store)
    with writer.open(store.uri_of("out/persisted")) as file:
        file.write(PAYLOAD)
        state = file.persist()
    writer.recover_for_commit(writer.recover(state).close_for_commit().recoverable).commit()
    return store.get("out/persisted")


CHANGES = (create, replace, stream, compose, persist)
READ = {create: "new/folder/a", replace: "old", stream: "out/streamed", compose: "both/whole"}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("times", [1, 3])
def test_what_was_told_as_made_survives(
    change: Callable[[Path], bytes], times: int, tmp_path: Path, disk: LosingDisk
) -> None:
    """Each sync of a change fails, once or for a while: a retrying caller hears of it, or lost nothing."""
    change(tmp_path / "counted")
    syncs = disk.count
    told_made = 0
    for failing in range(syncs):
        root = tmp_path / f"{failing}"
        begun = disk.count
        disk.failing = lambda number, _, begun=begun, failing=failing: (  # type: ignore[misc]
            begun + failing <= number < begun + failing + times
        )
        try:
            assert change(root) == PAYLOAD
        except DstlError:
            continue
        finally:
            disk.failing = lambda *_: False
        told_made += 1
        disk.lose_power(root)
        name = READ.get(change, "out/persisted")
        assert LocalObjectStore(root).get(name).startswith(PAYLOAD), f"sync {failing} of {syncs}"
    assert syncs > 3
    assert told_made > 0 or times > 1 or change in (stream, persist)


def test_a_writer_ends_with_its_failed_sync(tmp_path: Path, disk: LosingDisk) -> None:
    """The first close is unavailable, later ones say that the upload is lost; nothing becomes visible."""
    store = LocalObjectStore(tmp_path)
    upload = store.open_write("a", precondition=ABSENT)
    upload.write(PAYLOAD)
    disk.failing = lambda number, path, begun=disk.count: number == begun  # type: ignore[misc]
    with pytest.raises(UnavailableError):
        upload.close()
    for _ in range(2):
        with pytest.raises(NotFoundError) as caught:
            upload.close()
        assert caught.value.kind == ErrorKind.UPLOAD_LOST
    assert store.stat("a") is None
    assert not list((tmp_path / ".dstl-store" / "temporary").iterdir())


def test_a_stream_is_not_persisted_after_its_failed_sync(tmp_path: Path, disk: LosingDisk) -> None:
    """Every later `persist` and `close` fails too; what was persisted before can be recovered."""
    store = LocalObjectStore(tmp_path)
    writer = GSRecoverableWriter(store)
    file = writer.open(store.uri_of("out"))
    file.write(PAYLOAD)
    state = file.persist()
    file.write(b"lost")
    disk.failing = lambda *_: True
    with pytest.raises(UnavailableError):
        file.persist()
    disk.failing = lambda *_: False
    for end in (file.persist, file.close, file.close_for_commit):
        with pytest.raises(NotFoundError):
            end()
    file.__del__()
    recovered = writer.recover(state)
    recovered.close_for_commit().commit()
    assert store.get("out") == PAYLOAD


def test_an_object_that_could_be_neither_synced_nor_taken_back(
    tmp_path: Path, disk: LosingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk does not even let the file go, nobody in this process is told that it is there."""
    store = LocalObjectStore(tmp_path)
    writer_id = str(uuid.uuid4())
    store.put("before", b"", precondition=ABSENT)

    def refuse(path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    disk.failing = lambda _, path: path == str(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        for _ in range(2):
            with pytest.raises(UnavailableError):
                put_own(store, "a", PAYLOAD, writer_id=writer_id)
    disk.failing = lambda *_: False
    with pytest.raises(UnavailableError):
        put_own(store, "a", PAYLOAD, writer_id=writer_id)
