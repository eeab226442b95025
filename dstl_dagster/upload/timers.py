"""Delayed commands. Owns one timer thread; does not own the commands (keep them short).

Everything that waits in this layer goes through a `Timer`, so that a test controls time.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from dstl_dagster.errors import ClosedError, UnavailableError

_logger = logging.getLogger(__name__)

Cancel = Callable[[], None]


class Timer(Protocol):
    """Runs commands later, one after another. Any thread may schedule."""

    def schedule(self, delay_seconds: float, command: Callable[[], None]) -> Cancel:
        """Call `command` once, after the delay; the returned call cancels it.

        Raises: ClosedError when closed, UnavailableError if no thread can be started for it.
        """
        ...

    def close(self) -> None:
        """Drop what is scheduled; wait for a running command. May be called again."""
        ...


class ThreadTimer:
    """A timer with one daemon thread, started at the first use."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._condition = threading.Condition()
        self._queue: list[tuple[float, int, list[Callable[[], None]]]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def schedule(self, delay_seconds: float, command: Callable[[], None]) -> Cancel:
        # A list of one: emptied by a cancel, so that the queue need not be searched.
        slot = [command]
        with self._condition:
            if self._closed:
                raise ClosedError(f"timer {self._name} is closed and takes no further command")
            due = time.monotonic() + delay_seconds
            heapq.heappush(self._queue, (due, next(self._order), slot))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    slot.clear()
                    raise UnavailableError(f"no thread can be started for {self._name}: {error}") from error
                self._thread = thread
            if self._queue[0][2] is slot:
                self._condition.notify()
        return slot.clear

    def _run(self) -> None:
        while (command := self._next()) is not None:
            try:
                command()
            except Exception:
                _logger.exception("a timed command failed in %s", self._name)

    def _next(self) -> Callable[[], None] | None:
        with self._condition:
            while not self._closed:
                if not self._queue:
                    self._condition.wait()
                    continue
                due, _, slot = self._queue[0]
                wait_seconds = due - time.monotonic()
                if wait_seconds > 0 and slot:
                    self._condition.wait(wait_seconds)
                    continue
                heapq.heappop(self._queue)
                try:
                    return slot.pop()
                except IndexError:
                    continue  # cancelled
            return None

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._queue.clear()
            self._condition.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
