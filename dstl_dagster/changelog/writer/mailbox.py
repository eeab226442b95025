"""A writer's one thread: commands from any thread, run on the owner's.

Owns the queue of commands, and its runner: a call of the owner's, or the owner's event loop. Does not own
what the commands do, nor the futures that they complete (`future`).

Source: Flink's `MailboxExecutor`, of which the changelog uses `execute` alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import InvalidInputError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class MailboxExecutor(Protocol):
    """Something that runs commands on one thread, in order."""

    def execute(self, command: Callable[[], None], description: str) -> None:
        """Run `command` later, or now, on the owner's thread. Any thread may call."""
        ...


class TaskMailbox:
    """A mailbox that its owner, the thread that made it, empties.

    `execute` may be called from any thread; everything else from the owner's alone (InvalidInputError).
    An exception of a command is raised to the owner, and the commands behind it stay queued.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._condition = threading.Condition()
        self._commands: deque[tuple[Callable[[], None], str]] = deque()
        self._owner = threading.get_ident()
        self._loop: AbstractEventLoop | None = None

    @property
    def is_owner(self) -> bool:
        """Whether this thread is the owner."""
        return threading.get_ident() == self._owner

    def execute(self, command: Callable[[], None], description: str) -> None:
        """Queue a command; the owner runs it when it next drains the mailbox, or its event loop does."""
        with self._condition:
            self._commands.append((command, description))
            self._condition.notify_all()
            loop = self._loop
        if loop is not None:
            self._wake_loop(loop)

    def run_in(self, loop: AbstractEventLoop) -> None:
        """From now on `loop`, which the owner's thread runs, also runs commands as they come.

        A loop of the owner's that runs later takes its place. One that is closed is forgotten.
        """
        self._check_owner()
        with self._condition:
            known, self._loop = self._loop is loop, loop
            missed = bool(self._commands) and not known
        if missed:
            self._wake_loop(loop)

    def _wake_loop(self, loop: AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self.run_pending)
        except RuntimeError:
            # Closed: the commands wait for a call of the owner's.
            with self._condition:
                if self._loop is loop:
                    self._loop = None

    def run_pending(self) -> int:
        """Run what is queued now, without waiting. Returns how many commands ran."""
        self._check_owner()
        count = 0
        while self._commands:
            try:
                command, _ = self._commands.popleft()
            except IndexError:
                break
            command()
            count += 1
        return count

    def run_until(self, future: Future[Any], timeout: float | None = None) -> None:
        """Run commands as they come until the future is done.

        TimeoutError after `timeout` seconds; the future and the queued commands are left as they are.
        """
        self._check_owner()
        deadline = None if timeout is None else self._clock.monotonic_seconds() + timeout
        # `Future.done` is the plain one: a mailbox future would run this mailbox to answer.
        future.add_done_callback(self._wake)
        while not Future.done(future):
            if self.run_pending():
                continue
            with self._condition:
                if self._commands or Future.done(future):
                    continue
                wait_seconds = None if deadline is None else deadline - self._clock.monotonic_seconds()
                if wait_seconds is not None and wait_seconds <= 0:
                    raise TimeoutError("the future was not done in time; its work goes on")
                self._condition.wait(wait_seconds)

    def _wake(self, _: Future[Any]) -> None:
        with self._condition:
            self._condition.notify_all()

    def _check_owner(self) -> None:
        if not self.is_owner:
            raise InvalidInputError(
                "a mailbox is run by the thread that made it: hand a command over with execute() instead"
            )
