"""Files of a local store that are damaged, half copied or removed, looked at meanwhile, and put back."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dstl_dagster.errors import DstlError, FormatError, NotFoundError
from dstl_dagster.format.crc32c import crc32c
from dstl_dagster.storage import (
    ABSENT,
    Generation,
    LocalObjectStore,
    ObjectStat,
    Source,
)
from dstl_dagster.storage.local import files as local_files
from dstl_dagster.storage.local import reading as local_reading

RIGHT = b"the right bytes, of which there are a few"


def flipped(path: Path) -> None:
    path.write_bytes(RIGHT[:5] + bytes([RIGHT[5] ^ 1]) + RIGHT[6:])


def cut(path: Path) -> None:
    path.write_bytes(RIGHT[: len(RIGHT) // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def replaced(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"other bytes")


def removed(path: Path) -> None:
    path.unlink()


def put_back(path: Path) -> None:
    path.write_bytes(RIGHT)


def moved_back(path: Path) -> None:
    aside = path.with_name("aside")
    aside.write_bytes(RIGHT)
    aside.replace(path)


def by_another_process(store: LocalObjectStore, name: str, _: int) -> None:
    look = "import sys; from dstl_dagster.storage import open_store; list(open_store(sys.argv[1]).list())"
    subprocess.run([sys.executable, "-c", look, store.uri], check=True)


def by_another_store(store: LocalObjectStore, name: str, generation: int) -> None:
    other = LocalObjectStore(store.root, durable=False)
    other.stat(name)
    list(other.list())


def by_reads(store: LocalObjectStore, name: str, generation: int) -> None:
    for pinned in (None, generation):
        for read in (store.get, store.open_read, store.open_ranges, store.stat):
            with contextlib.suppress(DstlError):
                read(name, generation=pinned)


def by_refused_changes(store: LocalObjectStore, name: str, generation: int) -> None:
    for change in (
        lambda: store.put(name, b"mine", precondition=Generation(generation + 10**17)),
        lambda: store.delete(name, precondition=Generation(generation + 10**17)),
        lambda: store.copy(Source(name, generation), "copied", precondition=ABSENT),
        lambda: store.compose([Source(name)], "composed", precondition=ABSENT, delete_sources=True),
    ):
        with contextlib.suppress(DstlError):
            change()
    assert {stat.name for stat in store.list()} <= {name}


Look = Callable[[LocalObjectStore, str, int], None]
DAMAGES = [flipped, cut, emptied, replaced, removed]
LOOKS: list[Look] = [by_another_store, by_reads, by_refused_changes]


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "root", durable=False)


def written(store: LocalObjectStore, name: str = "f/a") -> ObjectStat:
    return store.put(name, RIGHT, precondition=ABSENT, metadata={"k": "v"})


def assert_reads(store: LocalObjectStore, made: ObjectStat) -> None:
    assert store.stat(made.name) == made
    assert store.stat(made.name, generation=made.generation) == made
    assert store.get(made.name, generation=made.generation) == RIGHT
    assert list(store.list()) == [made]


@pytest.mark.parametrize("back", [put_back, moved_back])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_put_back_is_the_object_again(
    store: LocalObjectStore, damage: Callable[[Path], None], back: Callable[[Path], None]
) -> None:
    """Whatever looked at the damaged file, and in whatever order; another process finds it, too."""
    made = written(store)
    path = store.root / made.name
    for looks in [(by_another_process,), *itertools.permutations(LOOKS, 2)]:
        damage(path)
        for look in looks:
            look(store, made.name, made.generation)
        error = NotFoundError if damage is removed else FormatError
        for generation in (None, made.generation):
            with pytest.raises(error) as raised:
                store.get(made.name, generation=generation)
            if error is FormatError:
                for checksum in (made.crc32c, crc32c(path.read_bytes())):
                    assert f"{checksum:#010x}" in str(raised.value)
        back(path)
        assert_reads(store, made)
        assert_reads(LocalObjectStore(store.root, durable=False), made)


def test_half_a_copy_that_is_listed(store: LocalObjectStore, tmp_path: Path) -> None:
    """A listing between the files of a copy, records first or last, does not spoil it."""
    made = written(store)
    for first, then in itertools.permutations([Path("f/a"), Path(".dstl-store")]):
        copy = tmp_path / f"copy-{first.name}"
        (copy / "f").mkdir(parents=True)
        for part in (first, then):
            if (store.root / part).is_dir():
                shutil.copytree(store.root / part, copy / part, dirs_exist_ok=True)
            else:
                (copy / part).write_bytes(RIGHT[:9])
                list(LocalObjectStore(copy).list())
                (copy / part).write_bytes(RIGHT)
            list(LocalObjectStore(copy).list())
        assert_reads(LocalObjectStore(copy), made)


def test_a_copy_without_records(store: LocalObjectStore, tmp_path: Path) -> None:
    """The files are objects as ones put there by hand, also one that was listed while it was copied."""
    made = written(store)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "a").write_bytes(RIGHT[:9])
    copy = LocalObjectStore(tmp_path / "copy")
    assert [stat.size for stat in copy.list()] == [9]
    (tmp_path / "copy" / "a").write_bytes(RIGHT)
    found = copy.stat("a")
    assert found is not None
    assert (found.crc32c, found.size, dict(found.metadata)) == (made.crc32c, made.size, {})
    assert copy.get("a") == RIGHT
    assert LocalObjectStore(copy.root).stat("a") == found


def refuse_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mount for reading only does, or the folder of another user."""
    real = os.open

    def refusing(path: str, flags: int, *rest: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, *rest)

    monkeypatch.setattr(local_files.os, "open", refusing)


@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_a_copy_that_cannot_be_written(
    store: LocalObjectStore, tmp_path: Path, records: bool, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read at once, nothing is left in it, and each process gives a file the same generation."""
    made = written(store)
    hidden = [] if records else [".dstl-store"]
    root = shutil.copytree(store.root, tmp_path / "copy", ignore=shutil.ignore_patterns(*hidden))
    before = {path: path.is_file() and path.read_bytes() for path in root.rglob("*")}
    if own:
        refuse_writes(monkeypatch)
    else:
        user = os.geteuid() + 1
        monkeypatch.setattr(local_files.os, "geteuid", lambda: user)
    found = LocalObjectStore(root).stat(made.name)
    assert found is not None
    assert (found == made) == records
    assert_reads(LocalObjectStore(root), found)
    assert {path: path.is_file() and path.read_bytes() for path in root.rglob("*")} == before


def test_a_copy_is_summed_once(
    store: LocalObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its bytes proved is noted: another process does not read them again to list it."""
    made = written(store)
    root = shutil.copytree(store.root, tmp_path / "copy")
    assert list(LocalObjectStore(root).list()) == [made]

    def read_again(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(local_reading, "_crc32c_of", read_again)
    assert list(LocalObjectStore(root).list()) == [made]
