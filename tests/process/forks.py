"""Forks without exec while a store is in use: what the child inherits must harm neither side.

    python tests/process/forks.py SCENARIO PLACE

Exit status 0 where all was right. A scenario that hangs is killed by its caller.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from dstl_dagster.changelog import ReadCache
from dstl_dagster.changelog.reader.disk_cache import DiskCache
from dstl_dagster.errors import NotFoundError
from dstl_dagster.format import StreamStateHandle
from dstl_dagster.storage import (
    ABSENT,
    ANY,
    LocalObjectStore,
    MemoryObjectStore,
    ObjectStore,
    RangeReader,
    open_store,
)

CHILDREN = 4


def run_scenario(script: str, scenario: str, place: object) -> None:
    """Run a scenario of a script like this one; whatever it leaves running goes with it."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(
        [sys.executable, script, scenario, str(place)], env=environment, start_new_session=True
    )
    try:
        assert process.wait(timeout=60) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # children that hang go too
        process.wait()


def forked(act: Callable[[], object]) -> int:
    """A child that acts, and then ends as its work said."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        act()
        status = 0
    finally:
        os._exit(status)


def joined(*children: int) -> None:
    for child in children:
        _, status = os.waitpid(child, 0)
        assert status == 0, f"a child ended with {status}"


def inherited_locks(place: str) -> None:
    """A child that was forked while another thread held a lock does not hold it after that thread's death."""
    inside, leave = threading.Event(), threading.Event()
    store = LocalObjectStore(place)

    def hold() -> None:
        hidden = store._writing.hidden
        with hidden.locked([f"{number}" for number in range(200)]):  # every stripe
            inside.set()
            leave.wait()

    # The middle process holds the locks, forks a child that sleeps, and is killed.
    read, write = os.pipe()
    middle = os.fork()
    if middle == 0:
        threading.Thread(target=hold, daemon=True).start()
        inside.wait()
        sleeper = forked(signal.pause)
        os.write(write, str(sleeper).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(middle, 0)
    sleeper = int(os.read(read, 20))
    try:
        store.put("after", b"x", precondition=ABSENT)
    finally:
        os.kill(sleeper, signal.SIGKILL)


def inherited_upload(place: str) -> None:
    """A child that drops its copy of an upload leaves the parent's alone, and cannot go on with it."""
    store = LocalObjectStore(place)
    upload = store.open_write("a", precondition=ABSENT)
    upload.write(b"first ")

    def drop() -> None:
        try:
            upload.write(b"child ")
        except NotFoundError:
            pass
        else:
            raise AssertionError("the child wrote into its parent's upload")
        upload.abort()

    joined(forked(drop))
    upload.write(b"second")
    upload.close()
    assert store.get("a") == b"first second"


def shared_store(place: str) -> None:
    """Parent and children ask for different objects through a store that was opened and used before."""
    store = open_store(place)
    names = [f"{number}" for number in range(CHILDREN + 1)]
    for size, name in enumerate(names):
        store.put(name, b"x" * size, precondition=ANY)
    children = [forked(lambda turn=turn: ask(store, names, turn)) for turn in range(CHILDREN)]  # type: ignore[misc]
    ask(store, names, CHILDREN)
    joined(*children)


def ask(store: ObjectStore, names: list[str], turn: int) -> None:
    for _ in range(20):
        stat = store.stat(names[turn])
        assert stat is not None
        assert (stat.name, stat.size) == (names[turn], turn)
        assert store.get(names[turn]) == b"x" * turn


def inherited_cache(place: str) -> None:
    """A child caches anew, whatever its parent's threads did, and neither deletes what the other reads."""
    store, disk = MemoryObjectStore(), DiskCache(Path(place), 60, 1 << 20)
    cache = ReadCache(0, disk)

    def opened(name: str) -> RangeReader:
        found = cache.open(store, StreamStateHandle(name, None))
        assert found is not None
        return found

    for name in ("held", "idle"):
        store.put(name, name.encode(), precondition=ABSENT)
    held = opened("held")
    opened("idle").close()
    inside, leave = threading.Event(), threading.Event()

    def hold_the_lock() -> None:
        with disk._lock:
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold_the_lock)
    thread.start()
    assert inside.wait(20)

    def act() -> None:
        assert (disk.cached_bytes, descriptors_in(place)) == (0, 1)
        assert bytes(held.read_range(0, 4)) == b"held"
        held.close()
        again = opened("held")
        assert descriptors_in(place) == 2
        again.close()
        cache.close()
        assert descriptors_in(place) == 0

    child = forked(act)
    leave.set()
    thread.join()
    joined(child)
    assert (disk.cached_bytes, descriptors_in(place)) == (8, 3)
    assert bytes(held.read_range(0, 4)) == b"held"
    held.close()
    cache.close()
    assert descriptors_in(place) == 0


def descriptors_in(place: str) -> int:
    """That this process has of files, with a name or without, in this folder."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += link.readlink().is_relative_to(place)
    return found


SCENARIOS = {
    each.__name__: each for each in (inherited_locks, inherited_upload, inherited_cache, shared_store)
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](sys.argv[2] if "://" in sys.argv[2] else str(Path(sys.argv[2])))
