"""A store opened for a command, and the sign of life of a command that takes long.

Owns when a line is printed, and what it says.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from dstl_dagster.cli.output import is_quiet, say
from dstl_dagster.errors import NotFoundError
from dstl_dagster.format import counted, nearest, readable_bytes
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import (
    NO_COST,
    Cost,
    CostMeter,
    LocalObjectStore,
    ObjectStore,
    metered,
    open_store,
)


def open_working(uri: str, options: GSFileSystemOptions) -> ObjectStore:
    """The store at `uri`; its requests are counted on stderr while the current command runs.

    Raises: as `open_store`; NotFoundError if it is a folder that does not exist.
    """
    meter = CostMeter()
    store = open_store(uri, options)
    if isinstance(store, LocalObjectStore):
        require_folder(store.root)
    store = metered(store, meter)
    if is_quiet():
        return store
    working = Working(lambda: meter.cost, moments(at_terminal=sys.stderr.isatty()))
    working.start()
    click.get_current_context().call_on_close(working.stop)
    return store


def require_folder(folder: Path) -> None:
    """No command makes a store, and a mistyped one is not an empty one."""
    if folder.is_dir():
        return
    parent = next(each for each in folder.parents if each.is_dir())
    wanted = folder.relative_to(parent).parts[0]
    near = nearest(wanted, (each.name for each in parent.iterdir() if each.is_dir()))
    advice = f"did you mean {near}?" if near else "it has no folder at all"
    raise NotFoundError(f"there is no folder {folder}: {parent} has no {wanted!r}; {advice}")


def moments(*, at_terminal: bool) -> Iterator[float]:
    """Seconds after the start at which to print: a person waits for 2 seconds, a log for 30."""
    yield from (2.0, 5.0) if at_terminal else ()
    step = 10.0 if at_terminal else 30.0
    moment = step
    while True:
        yield moment
        moment += step


class Working:
    """Prints what was requested so far, at each moment by which there was more of it.

    No line is printed while nothing is requested, as when the command waits for an answer. `start` and `stop`
    are the owner's; a daemon thread prints.

    Args:
        cost: all so far.
        moments: seconds after `start`, ascending.
        wait: waits for an event for some seconds, and says whether it is set.
    """

    def __init__(
        self,
        cost: Callable[[], Cost],
        moments: Iterator[float],
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._cost, self._moments = cost, moments
        self._clock, self._wait = clock, wait
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dstl-working", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        began, shown = self._clock(), NO_COST
        for moment in self._moments:
            if self._wait(self._ended, max(0.0, began + moment - self._clock())):
                return
            now = self._cost()
            if now.requests != shown.requests:
                with contextlib.suppress(OSError):  # stderr is closed
                    say(_line(self._clock() - began, now), err=True)
                shown = now


def _line(seconds: float, cost: Cost) -> str:
    moved = ((cost.bytes_down, "read"), (cost.bytes_up, "written"))
    bytes_moved = "".join(f", {readable_bytes(size)} {way}" for size, way in moved if size)
    return f"... {seconds:.0f} s, {counted(cost.requests, 'request')}{bytes_moved}"


_PATIENCE_SECONDS = 2.0


def progress_of(what: str, clock: Callable[[], float] = time.monotonic) -> Callable[[int, int], None]:
    """A callback that prints the progress of long work to stderr: each tenth, after the first 2 seconds."""
    began, quiet = clock(), is_quiet()

    def show(done: int, count: int) -> None:
        if quiet or count < 2 or clock() - began < _PATIENCE_SECONDS:
            return
        if done == count or done % max(1, count // 10) == 0:
            say(f"{done} of {count} {what}", err=True)

    return show
