"""The changelog cache of several processes in one directory: killed ones, other users', forked children's.

    python tests/process/cache_owners.py SCENARIO

Exit status 0 where all was right.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from forks import forked, joined

from dstl_dagster.changelog import ReadCache
from dstl_dagster.changelog.reader.disk_cache import DiskCache
from dstl_dagster.format import StreamStateHandle
from dstl_dagster.storage import ABSENT, FileRanges, MemoryObjectStore

NOBODY = 65534


def opened(cache: DiskCache, name: str) -> FileRanges | None:
    store = MemoryObjectStore()
    store.put(name, name.encode(), precondition=ABSENT)
    return ReadCache(0, cache).open(store, StreamStateHandle(name, None))


def cache_in(place: str) -> DiskCache:
    return DiskCache(Path(place), 60, 1 << 20)


def files_in(place: str) -> list[Path]:
    return [path for path in Path(place).rglob("*") if path.is_file() and path.suffix != ".lock"]


def began(act: Callable[[], object]) -> int:
    """A child that has acted, and lives on."""
    read, write = os.pipe()

    def live() -> None:
        kept = act()
        os.write(write, b"x")
        signal.pause()
        del kept

    child = forked(live)
    os.close(write)
    assert os.read(read, 1) == b"x"
    os.close(read)
    return child


def killed_reader(place: str) -> None:
    """What a killed reader cached goes when the next one begins, although a child of it lives; what a living
    one cached stays.
    """

    def read() -> object:
        cache = cache_in(place)
        held = opened(cache, "held")
        assert held is not None
        other = opened(cache, "idle")
        assert other is not None
        other.close()
        return cache, held

    def read_and_fork() -> object:
        kept = read()
        forked(signal.pause)
        return kept

    dead, living = began(read_and_fork), began(read)
    assert len(files_in(place)) == 4
    os.kill(dead, signal.SIGKILL)
    os.waitpid(dead, 0)
    cache = cache_in(place)
    assert opened(cache, "mine") is not None
    assert len(files_in(place)) == 3
    # The next one also removes the folders of the last two.
    os.kill(living, signal.SIGKILL)
    os.waitpid(living, 0)
    with_nobody_left = cache_in(place)
    assert opened(with_nobody_left, "mine") is not None
    assert len(files_in(place)) == 2


def second_user(place: str) -> None:
    """Two users cache in one directory, each in a folder that the other cannot enter."""
    Path(place).chmod(0o1777)
    cache = cache_in(place)
    source = opened(cache, "mine")
    assert source is not None
    (mine,) = files_in(place)

    def act() -> None:
        os.setuid(NOBODY)
        theirs = cache_in(place)
        kept = opened(theirs, "theirs")
        assert kept is not None
        assert len(files_in(f"{place}/dstl-cache-{NOBODY}")) == 1
        try:
            mine.read_bytes()
        except PermissionError:
            return
        raise AssertionError("another user can read what was cached")

    joined(forked(act))
    assert mine.relative_to(place).parts[0] == "dstl-cache-0"


def planted_folder(place: str) -> None:
    """A folder that another user put where this user's has to be is not used."""
    Path(place).chmod(0o1777)

    def plant() -> None:
        os.setuid(NOBODY)
        (Path(place) / "dstl-cache-0").mkdir()

    joined(forked(plant))
    cache = cache_in(place)
    assert opened(cache, "a") is None
    assert cache.cached_bytes == 0
    assert files_in(place) == []


def forked_child(place: str) -> None:
    """A child caches anew, in a folder of its own, whatever its parent's threads did; neither removes what
    the other uses.
    """
    cache = cache_in(place)
    held, idle = opened(cache, "held"), opened(cache, "idle")
    assert held is not None
    assert idle is not None
    idle.close()
    inside, leave = threading.Event(), threading.Event()

    def hold_the_lock() -> None:
        with cache._lock, cache._folder._lock:
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold_the_lock)
    thread.start()
    assert inside.wait(20)

    def act() -> None:
        assert cache.cached_bytes == 0
        assert bytes(held.read_range(0, 4)) == b"held"
        held.close()
        again = opened(cache, "held")
        assert again is not None
        assert len(files_in(place)) == 3
        again.close()
        cache.close()
        assert len(files_in(place)) == 2

    child = forked(act)
    leave.set()
    thread.join()
    joined(child)
    assert cache.cached_bytes == len("held") + len("idle")
    assert bytes(held.read_range(0, 4)) == b"held"
    held.close()
    cache.close()
    assert files_in(place) == []
    assert list(next(Path(place).iterdir()).iterdir()) == []


SCENARIOS = {each.__name__: each for each in (killed_reader, second_user, planted_folder, forked_child)}

if __name__ == "__main__":
    # Not pytest's directories: they keep other users out of all that is below them.
    with tempfile.TemporaryDirectory() as directory:
        SCENARIOS[sys.argv[1]](directory)
