"""Each system call of the local store fails once, in each way that disks fail: all or nothing, and told.

Whatever call of an operation fails, the operation either succeeds and its effect is whole, or raises
UnavailableError and the object is the old one or the new one. A read never takes a fault for "not there". A
store that is opened afterwards finds the same, the operation can be repeated, and nothing temporary is left.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dstl_dagster.errors import UnavailableError
from dstl_dagster.storage import ABSENT, ANY, Generation, LocalObjectStore, Source

CALLS = (
    *((os, name) for name in ("open", "close", "fstat", "lstat", "stat", "scandir", "listdir", "mkdir")),
    *((os, name) for name in ("link", "replace", "unlink", "rmdir", "fsync", "read", "pread", "preadv")),
    *((os, name) for name in ("write", "pwrite")),
    (fcntl, "flock"),
)
WAYS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EMFILE, errno.EINTR)
OLD, NEW = b"the old bytes", b"new bytes, which are longer"


class Faults:
    """Counts system calls while armed, and fails the one that it is told to fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._fail_at: int | None = None
        self._way = 0
        self._armed = False

    @contextmanager
    def armed(self, fail_at: int | None = None, way: int = errno.EIO) -> Iterator[None]:
        self.calls, self._fail_at, self._way, self._armed = [], fail_at, way, True
        try:
            yield
        finally:
            self._armed = False

    def around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **how: Any) -> Any:
            if not self._armed:
                return real(*args, **how)
            self.calls.append(name)
            if len(self.calls) - 1 == self._fail_at:
                if name == "close":
                    real(*args, **how)  # the descriptor is gone, whatever the system says
                raise OSError(self._way, os.strerror(self._way))
            return real(*args, **how)

        return call


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    layer = Faults()
    for module, name in CALLS:
        monkeypatch.setattr(module, name, layer.around(name, getattr(module, name)))
    return layer


def begin(root: Path) -> LocalObjectStore:
    """A store that holds two objects, opened anew, as a process that has just started does."""
    store = LocalObjectStore(root)
    store.put("here/a", OLD, precondition=ABSENT)
    store.put("here/b", OLD, precondition=ABSENT)
    return LocalObjectStore(root)


def stream(store: LocalObjectStore) -> None:
    writer = store.open_write("new/c", precondition=ANY)
    try:
        writer.flush()
        writer.write(NEW[:5])
        writer.write(NEW[5:])
        writer.close()
    finally:
        writer.abort()


def compose(store: LocalObjectStore) -> None:
    sources = [Source("here/a"), Source("here/b")]
    if store.stat("new/c") is None:
        store.compose(sources, "new/c", precondition=ANY, delete_sources=True)
        return
    for source in sources:  # repeated, as a commit does: the target is whole, and what is left of them goes
        store.delete(source.name, precondition=ANY)


def replace(store: LocalObjectStore) -> None:
    found = store.stat("here/a")
    assert found is not None
    store.put("here/a", NEW, precondition=Generation(found.generation))


CHANGES: dict[str, tuple[Callable[[LocalObjectStore], object], dict[str, bytes | None]]] = {
    "put": (lambda store: store.put("new/c", NEW, precondition=ANY), {"new/c": NEW}),
    "replace": (replace, {"here/a": NEW}),
    "stream": (stream, {"new/c": NEW}),
    "compose": (compose, {"new/c": OLD + OLD, "here/a": None, "here/b": None}),
    "delete": (lambda store: store.delete("here/a", precondition=ANY), {"here/a": None}),
    "copy": (lambda store: store.copy(Source("here/a"), "new/c", precondition=ANY), {"new/c": OLD}),
}


def opened(store: LocalObjectStore) -> tuple[int, bytes]:
    with closing(store.open_ranges("here/a")) as ranges:
        return ranges.size_bytes(), bytes(ranges.read_range(4, 3))


READS: dict[str, tuple[Callable[[LocalObjectStore], object], object]] = {
    "get": (lambda store: bytes(store.get("here/a")), OLD),
    "range": (lambda store: bytes(store.get_range("here/a", 4, 3)), OLD[4:7]),
    "opened": (opened, (len(OLD), OLD[4:7])),
    "stat": (lambda store: getattr(store.stat("here/a"), "size", None), len(OLD)),
    "list": (lambda store: [stat.name for stat in store.list()], ["here/a", "here/b"]),
    "names taken away": (lambda store: list(store.forget_taken(dry_run=True)), []),
    "list of a folder": (lambda store: [stat.name for stat in store.list("here/")], ["here/a", "here/b"]),
}


def contents(store: LocalObjectStore) -> dict[str, bytes]:
    return {stat.name: bytes(store.get(stat.name, generation=stat.generation)) for stat in store.list()}


def after(before: dict[str, bytes], effect: dict[str, bytes | None]) -> dict[str, bytes]:
    return {name: value for name, value in {**before, **effect}.items() if value is not None}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_whole_or_refused(change: str, faults: Faults, tmp_path: Path) -> None:
    """Every call of it fails once, by each of the ways in turn."""
    act, effect = CHANGES[change]
    old = {"here/a": OLD, "here/b": OLD}
    new = after(old, effect)
    undisturbed = begin(tmp_path / "undisturbed")
    with faults.armed():
        act(undisturbed)
    for run, name in enumerate(list(faults.calls)):
        root = tmp_path / f"{run}"
        store, told = begin(root), None
        with faults.armed(run, WAYS[run % len(WAYS)]):
            try:
                act(store)
            except UnavailableError as error:
                told = error
        where = f"{change}, call {run} ({name}): {told}"
        found = contents(LocalObjectStore(root))
        assert found == new if told is None else _between(found, old, new), where
        again = LocalObjectStore(root)
        act(again)
        assert contents(again) == new, where
        again.put("last", b"", precondition=ANY)
        assert list((root / ".dstl-store" / "temporary").iterdir()) == [], where


def _between(found: dict[str, bytes], old: dict[str, bytes], new: dict[str, bytes]) -> bool:
    """Each object is as before or as after; a source goes only once the target is there."""
    names = old.keys() | new.keys()
    if not all(found.get(name) in (old.get(name), new.get(name)) for name in names | found.keys()):
        return False
    gone = any(name not in found for name in old)
    made = all(found.get(name) == value for name, value in new.items())
    return made or not gone


@pytest.mark.parametrize("way", WAYS, ids=errno.errorcode.get)
@pytest.mark.parametrize("read", READS)
def test_a_read_is_right_or_refused(read: str, way: int, faults: Faults, tmp_path: Path) -> None:
    """No fault reads as an object that is missing or short."""
    act, expected = READS[read]
    store = begin(tmp_path)
    with faults.armed():
        assert act(LocalObjectStore(tmp_path)) == expected
    for run, name in enumerate(list(faults.calls)):
        reader = LocalObjectStore(tmp_path)
        with faults.armed(run, way):
            try:
                found = act(reader)
            except UnavailableError:
                continue
        assert found == expected, f"{read}, call {run} ({name})"
    assert act(store) == expected
